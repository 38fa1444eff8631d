"""Specs that a configuration makes of texts: it names a constructor and its arguments."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, cast

from ..spec import LogitsProcessorSpec, SpecError, Tokenizer
from ..spec.suggestions import instead_of

CONSTRUCTORS = "from_text", "from_words", "from_tokenizer", "for_tokenizer"
"""The constructors that make specs of texts with a tokenizer."""

LoadTokenizer = Callable[[], Tokenizer]


def make_spec(
    spec_type: type[LogitsProcessorSpec],
    name: str,
    arguments: Any,
    tokenizer: LoadTokenizer | None,
) -> LogitsProcessorSpec | None:
    """Call a constructor of a spec; without a tokenizer, only check the call.

    Raises:
        SpecError: if there is no such constructor, or an argument is unknown or missing.
        Exception: as the constructor or the tokenizer does.
    """
    make = getattr(spec_type, name, None)
    parameters = dict(inspect.signature(make).parameters) if make else {}
    if make is None or parameters.pop("tokenizer", None) is None:
        known = [each for each in CONSTRUCTORS if hasattr(spec_type, each)]
        what = f"{spec_type.__name__} has no {name}; it has {', '.join(known) or 'none'}"
        raise SpecError(what)
    if not isinstance(arguments, Mapping):
        raise SpecError(f"Expected an object with {', '.join(parameters)}, got {arguments!r:.100}")
    given = dict(cast("Mapping[Any, Any]", arguments))
    for each in given.keys() - parameters.keys():
        raise SpecError(f"There is no argument {each!r}; {instead_of(str(each), parameters)}")
    for each, parameter in parameters.items():
        if parameter.default is parameter.empty and each not in given:
            raise SpecError(f"Expected the argument {each!r}")
    return None if tokenizer is None else make(**given, tokenizer=tokenizer())

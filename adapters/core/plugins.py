"""Plugins: logits processors that the operator installs and clients name, with parameters.

A package registers a plugin in the entry-point group ``logitport.plugins``::

    [project.entry-points."logitport.plugins"]
    my-rule = "my_package:make_rule"

``make_rule(params)`` is called with the client's parameters when a request is admitted and when it
starts. It returns an ``Automaton`` (the fastest), a ``HistoryRule``, or a callable for this request
alone, with the arguments (output ids, logits) or (prompt ids, output ids, logits). Any exception,
``SystemExit`` included, refuses the request with the exception's message. Only
``KeyboardInterrupt`` propagates, because it comes from the operator.
"""

import inspect
import reprlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from importlib.metadata import entry_points
from typing import Any

from ...spec import SpecError
from ...spec.errors import text_of
from .automaton import Automaton

GROUP = "logitport.plugins"


class HistoryRule(ABC):
    """A rule that depends on the whole history, and on nothing else."""

    @abstractmethod
    def additions(
        self, prompt_ids: Sequence[int], output_ids: Sequence[int]
    ) -> Mapping[int, float]:
        """Compute the values to add to logits before the next token is chosen.

        Args:
            prompt_ids: the prompt's token ids; read-only.
            output_ids: the output's token ids so far; read-only.

        Returns:
            Values by token id; ``BAN_BIAS`` bans a token.
        """


PluginPart = Automaton | HistoryRule | Callable[..., Any]


def resolve_plugin(name: str, params: Mapping[str, Any]) -> PluginPart:
    """Call an installed plugin with ``params``.

    Raises:
        SpecError: if the plugin is not installed, cannot be imported, raises, or returns something
            that is no logits processor.
    """
    load = _plugins().get(name)
    if load is None:
        known = ", ".join(sorted(_plugins())) or "none"
        raise SpecError(
            f"No plugin {name!r} is installed on the server; installed: {known}", "name"
        )
    make = load_once(load)
    if isinstance(make, BaseException):
        what = f"The plugin {name!r} cannot be imported: {text_of(make)}"
        raise SpecError(what, "name") from make
    try:
        part = make(params)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # SystemExit would end the server
        what = f"The plugin {name!r} refuses its parameters: {text_of(error)}"
        raise SpecError(what, "params") from error
    if not isinstance(part, Automaton | HistoryRule):
        try:
            takes_prompt(part)
        except Exception as error:
            what = f"The plugin {name!r} returned no logits processor: {text_of(error)}"
            raise SpecError(what, "name") from error
    return part


def takes_prompt(processor: Callable[..., Any]) -> bool:
    """Return whether a callable takes the prompt's ids before the output's ids and the logits.

    Raises:
        TypeError: if the argument is not callable or takes other arguments.
    """
    if not callable(processor):
        raise TypeError(f"expected a callable, got one of type {type(processor).__name__}")
    try:
        parameters = inspect.signature(processor).parameters
    except ValueError as error:  # for some callables that are not written in Python
        raise TypeError(f"{error}; wrap it in a function of Python's") from error
    positional = [p for p in parameters.values() if p.kind <= p.POSITIONAL_OR_KEYWORD]
    required = [p for p in positional if p.default is inspect.Parameter.empty]
    if len(required) > 3 or len(positional) < 2:
        raise TypeError(
            f"{reprlib.repr(processor)} takes {len(positional)} arguments; expected "
            "(output_ids, logits) or (prompt_ids, output_ids, logits)"
        )
    return len(required) == 3


Make = Callable[[Mapping[str, Any]], PluginPart]


@lru_cache
def load_once(load: Callable[[], Make]) -> Make | BaseException:
    """Import a plugin once: a failing import may be slow, so requests do not repeat it."""
    try:
        return load()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return error.with_traceback(None)


@lru_cache(maxsize=1)
def _plugins() -> dict[str, Callable[[], Make]]:
    """Map names to importers: a broken plugin must fail only the requests that name it."""
    return {entry_point.name: entry_point.load for entry_point in entry_points(group=GROUP)}

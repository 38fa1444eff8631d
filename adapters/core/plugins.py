"""Processors that the server's owner has installed; clients name them and pass parameters.

A package offers one in the entry-point group ``logitport.plugins``::

    [project.entry-points."logitport.plugins"]
    my-rule = "my_package:make_rule"

``make_rule(params)`` is called with the client's parameters, when a request is admitted and when
it starts, and returns an ``Automaton`` (the fastest), a ``HistoryRule``, or a callable of the
request's own, with the arguments (output ids, logits) or (prompt ids, output ids, logits).
Any exception refuses the request with the exception's message, ``SystemExit`` included; only
``KeyboardInterrupt``, which is the operator's, goes through.
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
    """A rule that needs the whole history, and is a function of it alone."""

    @abstractmethod
    def additions(
        self, prompt_ids: Sequence[int], output_ids: Sequence[int]
    ) -> Mapping[int, float]:
        """What to add to which tokens' logits before the next token is chosen.

        Args:
            prompt_ids: the prompt's token ids; not to be changed.
            output_ids: the output's token ids so far; not to be changed.

        Returns:
            token id -> value, ``BAN_BIAS`` for a token that must not be chosen.
        """


PluginPart = Automaton | HistoryRule | Callable[..., Any]


def resolve_plugin(name: str, params: Mapping[str, Any]) -> PluginPart:
    """Ask an installed plugin for what it does with ``params``.

    Raises:
        SpecError: if there is no such plugin, it cannot be imported, it raises, or it makes what
            cannot act.
    """
    load = _plugins().get(name)
    if load is None:
        known = ", ".join(sorted(_plugins())) or "none"
        raise SpecError(
            f"No plugin {name!r} is installed on the server; installed: {known}", "$.name"
        )
    make = _loaded(load)
    if isinstance(make, BaseException):
        what = f"The plugin {name!r} cannot be imported: {text_of(make)}"
        raise SpecError(what, "$.name") from make
    try:
        part = make(params)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # SystemExit would end the server
        what = f"The plugin {name!r} refuses its parameters: {text_of(error)}"
        raise SpecError(what, "$.params") from error
    if not isinstance(part, Automaton | HistoryRule):
        try:
            takes_prompt(part)
        except Exception as error:
            what = f"The plugin {name!r} made what cannot act: {text_of(error)}"
            raise SpecError(what, "$.name") from error
    return part


def takes_prompt(processor: Callable[..., Any]) -> bool:
    """Whether a callable is to be given the prompt's ids, before the output's and the logits.

    Raises:
        TypeError: if it is not callable or takes something else.
    """
    if not callable(processor):
        raise TypeError(f"expected a callable, got one of type {type(processor).__name__}")
    try:
        parameters = inspect.signature(processor).parameters
    except ValueError as error:  # of some that are not written in Python
        raise TypeError(f"{error}; wrap it in a function of Python's") from error
    positional = [
        parameter
        for parameter in parameters.values()
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    required = [p for p in positional if p.default is inspect.Parameter.empty]
    if len(required) > 3 or len(positional) < 2:
        raise TypeError(
            f"{reprlib.repr(processor)} takes {len(positional)} arguments; expected "
            "(output_ids, logits) or (prompt_ids, output_ids, logits)"
        )
    return len(required) == 3


Make = Callable[[Mapping[str, Any]], PluginPart]


@lru_cache
def _loaded(load: Callable[[], Make]) -> Make | BaseException:
    """An import that fails can take long, and is not tried again for each request."""
    try:
        return load()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return error.with_traceback(None)


@lru_cache(maxsize=1)
def _plugins() -> dict[str, Callable[[], Make]]:
    """What imports each: one that cannot be imported is a matter of the requests that name it."""
    return {entry_point.name: entry_point.load for entry_point in entry_points(group=GROUP)}

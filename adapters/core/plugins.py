"""Processors that the server's owner has installed; clients name them and pass parameters.

A package offers one in the entry-point group ``logitport.plugins``::

    [project.entry-points."logitport.plugins"]
    my-rule = "my_package:make_rule"

``make_rule(params)`` is called with the client's parameters, when a request is admitted and when
it starts, and returns an ``Automaton`` (the fastest), a ``HistoryRule``, or a callable of the
request's own, with the arguments (output ids, logits) or (prompt ids, output ids, logits).
Any exception refuses the request with the exception's message.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from importlib.metadata import entry_points
from typing import Any

from ...spec import SpecError
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
        SpecError: if there is no such plugin, or it raises.
    """
    make = _plugins().get(name)
    if make is None:
        known = ", ".join(sorted(_plugins())) or "none"
        raise SpecError(
            f"No plugin {name!r} is installed on the server; installed: {known}", "$.name"
        )
    try:
        part = make(params)
    except Exception as error:
        raise SpecError(
            f"The plugin {name!r} refuses its parameters: {error}", "$.params"
        ) from error
    if not (isinstance(part, Automaton | HistoryRule) or callable(part)):
        raise SpecError(
            f"The plugin {name!r} made a {type(part).__name__}, which cannot act", "$.name"
        )
    return part


@lru_cache(maxsize=1)
def _plugins() -> dict[str, Callable[[Mapping[str, Any]], PluginPart]]:
    return {entry_point.name: entry_point.load() for entry_point in entry_points(group=GROUP)}

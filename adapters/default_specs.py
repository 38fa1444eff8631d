"""Default specs, for requests that bring no specs of their own."""

from collections.abc import Callable, Sequence
from importlib.metadata import entry_points

from ..spec import LogitsProcessorSpec, Tokenizer
from .policy import Policy

GROUP = "logitport.default_specs"
"""The entry-point group of functions ``(tokenizer: Callable[[], Tokenizer]) -> Sequence[spec]``."""

DefaultSpecs = Callable[[Callable[[], Tokenizer]], Sequence[LogitsProcessorSpec]]


def default_specs(
    tokenizer: Callable[[], Tokenizer], policy: Policy | None = None
) -> list[LogitsProcessorSpec]:
    """Call every installed function of the group, once, when an engine starts.

    Args:
        tokenizer: loads the engine's tokenizer; functions that need a tokenizer call it.
        policy: the engine's policy, whose default specs come last.
    """
    specs: list[LogitsProcessorSpec] = []
    for entry_point in entry_points(group=GROUP):
        ask: DefaultSpecs = entry_point.load()
        specs.extend(ask(tokenizer))
    return specs if policy is None else [*specs, *policy.default]

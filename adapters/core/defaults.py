"""Default specs: what an engine's requests get when they bring none of their own."""

from collections.abc import Callable, Sequence
from importlib.metadata import entry_points

from ...spec import LogitsProcessorSpec, Tokenizer

GROUP = "logitport.default_specs"
"""Entry-point group of functions ``(tokenizer: Callable[[], Tokenizer]) -> Sequence[spec]``."""

DefaultSpecs = Callable[[Callable[[], Tokenizer]], Sequence[LogitsProcessorSpec]]


def default_specs(tokenizer: Callable[[], Tokenizer]) -> list[LogitsProcessorSpec]:
    """Ask every installed function of the group, once, when an engine starts.

    Args:
        tokenizer: loads the engine's tokenizer; called by those that need one.
    """
    specs: list[LogitsProcessorSpec] = []
    for entry_point in entry_points(group=GROUP):
        ask: DefaultSpecs = entry_point.load()
        specs.extend(ask(tokenizer))
    return specs

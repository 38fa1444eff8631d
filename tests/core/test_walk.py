"""The walk, compared with a search through all outputs of a few tokens by the reference."""

from collections.abc import Iterator, Sequence
from itertools import combinations_with_replacement
from typing import Any

from hypothesis import strategies as st
from logitport import spec as s
from logitport.adapters.conformance.kinds import KINDS
from logitport.adapters.conformance.kinds.base import BAN, Add, Allow, Draws, Force, flat
from logitport.adapters.conformance.reference import edit
from logitport.adapters.core.program import compile_specs
from logitport.adapters.core.walk import contradiction
from logitport.spec import LogitsProcessorSpec, SpecError

VOCAB = 5
LONGEST = 6
"""Tokens of the outputs that are searched: enough for two texts of three tokens."""
MOST = 20_000
"""Outputs that are searched for a loss."""

Specs = Sequence[LogitsProcessorSpec]
Tokens = tuple[int, ...]

COMPARED = [
    kind
    for kind, each in KINDS.items()
    if each.edit and each.strategy and not each.minimal.needs_vocabulary
]
DRAW = Draws(VOCAB, most=3, longest=3, count=3)


def ends_of(specs: Specs) -> set[int]:
    found: set[int] = set()
    for spec in specs:
        found.update(getattr(spec, "stop_token_ids", ()))
        found.update(token for token in [getattr(spec, "eos_token_id", None)] if token is not None)
    return found


class Outputs:
    """All outputs of a few tokens for some specs."""

    def __init__(self, specs: Specs) -> None:
        self.specs, self.ends, self.left = specs, ends_of(specs), MOST
        self.known: dict[tuple[LogitsProcessorSpec, Tokens, Tokens], Any] = {}

    def options(self, specs: Specs, prompt: Tokens, output: Tokens) -> tuple[list[int], bool]:
        """Return the tokens that obey all specs, and whether one is forced."""
        acting: list[Any] = []
        for spec in specs:
            key = spec, prompt, output
            if key not in self.known:
                self.known[key] = flat([edit(spec, prompt, output)])
            acting += self.known[key]
        left = set(range(VOCAB))
        for each in acting:
            match each:
                case Force():
                    left &= {each.token}
                case Allow():
                    left &= each.tokens
                case Add():
                    left -= {token for token, value in each.values.items() if value == BAN}
        return sorted(left), any(isinstance(each, Force) for each in acting)

    def are_lost(self, prompt: Tokens = (), output: Tokens = ()) -> bool:
        """Whether every way leads to a step that leaves no token."""
        options, is_forced = self.options(self.specs, prompt, output)
        if not options:
            return True
        going_on = [token for token in options if token not in self.ends]
        if not going_on or len(output) == LONGEST:
            return False
        return all(self.are_lost(prompt, (*output, token)) for token in going_on)

    def may_be_lost(self, prompt: Tokens = ()) -> bool | None:
        """Whether some output leads to such a step; ``None`` if there are too many outputs."""
        waiting: list[Tokens] = [()]
        for output in waiting:
            self.left -= 1
            if self.left < 0:
                return None
            options, _ = self.options(self.specs, prompt, output)
            if not options:
                return True
            if len(output) < 2 * LONGEST:
                tokens = [token for token in options if token not in self.ends]
                for spec in self.specs if not tokens else ():
                    tokens += self.options((spec,), prompt, output)[0]
                waiting += [(*output, token) for token in dict.fromkeys(tokens)]
        return False


def prompts(specs: Specs) -> Iterator[Tokens]:
    yield ()
    for spec in specs:
        if isinstance(spec, s.PhasesSpec):
            yield from list(prompts([each for _, each in spec.inner_specs()]))[1:]
        if isinstance(spec, s.ThinkingBudgetSpec):
            yield spec.start_token_ids
            yield from spec.other_start_token_ids


def refused(specs: Specs, vocab_size: int | None = VOCAB) -> bool:
    program = compile_specs(specs)
    ends = sorted(ends_of(specs))
    return contradiction(program.automata, program.ngrams, vocab_size, ends) is not None


def check(specs: Specs) -> str:
    """Compare the walk with the reference. Returns what they say."""
    try:
        is_refused = refused(specs)
    except SpecError:
        return "too large"
    if not is_refused:
        assert not Outputs(specs).are_lost(), specs
        return "admitted"
    outputs = Outputs(specs)
    if outputs.are_lost():
        return "lost"
    found = [outputs.may_be_lost(prompt) for prompt in prompts(specs)]
    assert True in found or None in found, specs
    return "may be lost" if True in found else "not known"


def pairs(number: int) -> Any:
    kinds = st.sampled_from([*combinations_with_replacement(COMPARED, 2)])
    return kinds.flatmap(lambda two: st.tuples(*(KINDS[kind].strategy(DRAW) for kind in two)))

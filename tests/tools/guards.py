"""Random requests beside random guards: no row may offer what a guard forbids.

``make guards`` runs a million on the host. The reference, which knows no automata, finds what a
guard forbids after a history. Logits come as engines have them: masked, biased, or with a forced
token.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Annotated, Any

import torch
import typer
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from logitport import spec as s
from logitport.adapters import REALIZABLE, Backend, Policy, guard_of
from logitport.adapters.core import Program, Realizer, Vocabulary, compile_specs
from logitport.adapters.core.automaton import Edit
from logitport.adapters.reference import edits
from logitport.adapters.reference.kinds.base import Add, Allow, flat

from examples._support.v2_on_cpu import be_quick
from tests.support.strategies import payload_specs, specs, within_limits
from tests.support.triton_process import INTERPRETED

TOKENS = (b"a", b"b", b"ab", b"ze", b"bra", b"zebra", b"z", b" ", b"e", b"ra", None)
"""The last one is special: replies leave it out."""
VOCAB = len(TOKENS)
END = 7
"""The end token. It is not held to the guard: it comes where nothing else is left."""
TEXT = s.BannedTextSpec(("zebra",))
FORBIDDING = (
    *(s.BannedTokensSpec, s.BannedSequencesSpec, s.AllowedTokensSpec, s.MinTokensSpec),
    *(s.NoRepeatNgramSpec, s.NoLoopSpec, s.AutomatonSpec, s.PhasesSpec),
)
BY_HAND = (
    (s.LogitBiasSpec({3: 1000.0}), s.ForcedEndSpec(1, (4,))),
    (s.AllowedTokensSpec((3, 4)),),
    (s.ChoiceSpec(((3, 4), (5,)), END),),
    (s.TriggerSpec((3,), (4,)),),
    (s.ForcedTokenSequenceSpec((3, 9, 4)), s.ForcedEndSpec(3, (3, 4))),
    (s.ForcedTokenSequenceSpec((3, 10, 4)),),
)

Specs = tuple[s.LogitsProcessorSpec, ...]
Row = tuple[Specs, list[int], list[int], torch.Tensor]
"""A guard, a prompt, an output with its drafts, and the row after the edits."""


@cache
def vocabulary() -> Vocabulary:
    return Vocabulary.of_tokens(TOKENS)


@cache
def compiled(of: Specs) -> Program:
    return compile_specs(of, vocabulary)


@cache
def guarding(of: Specs) -> Program:
    backend = Backend("test", REALIZABLE, load_vocabulary=vocabulary, policy=Policy(guard=of))
    program = guard_of(backend, VOCAB)
    assert program is not None
    return replace(program, end_token=END)


def drawn(strategy: Any, count: int, number: int) -> list[Specs]:
    """Draw sets of specs that compile."""
    kept: list[Specs] = []

    @seed(number)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )
    @given(strategy)
    def draw(of: Specs) -> None:
        try:
            compiled(of)
        except s.SpecError:
            return
        kept.append(of)

    draw()
    return kept


def forces(of: Specs) -> bool:
    return any(Edit.FORCE in automaton.edit for automaton in compiled(of).automata)


def guards(count: int, number: int) -> list[Specs]:
    """Draw guards: sets of specs that force nothing."""
    lists = st.lists(specs(VOCAB, kinds=FORBIDDING), min_size=1, max_size=3).map(tuple)
    kept = [of for of in drawn(lists.filter(within_limits), count, number) if not forces(of)]
    every = [(TEXT,), *kept, *((*of, TEXT) for of in kept[::4])]
    return [of for of in every if is_admitted(of)]


def is_admitted(guard: Specs) -> bool:
    try:
        return bool(guarding(guard))
    except s.SpecError:  # its own specs contradict each other
        return False


def clients(count: int, number: int) -> list[Specs]:
    return [*BY_HAND * 10, *drawn(payload_specs(VOCAB), count, number)]


def forbidden(guard: Specs, prompt: Sequence[int], output: Sequence[int]) -> set[int]:
    """Return the tokens that a guard forbids after a history, by the reference."""
    every, found = set(range(VOCAB)), set[int]()
    for each in flat(edits([spec for spec in guard if spec != TEXT], prompt, output)):
        match each:
            case Add():
                found |= {token for token, value in each.values.items() if value < -5e8}
            case Allow():
                found |= every - each.tokens
            case _:
                pass
    if TEXT in guard:
        text = b"".join(TOKENS[token] or b"" for token in output)
        said = text.count(b"zebra")  # drafts may say it; a token may not complete it
        found |= {
            token for token in every if (text + (TOKENS[token] or b"")).count(b"zebra") > said
        }
    return found - {END}


def check(row: Row) -> None:
    """Check that what the guard forbids has no probability."""
    guard, prompt, output, logits = row
    best = float(logits.max())
    for token in forbidden(guard, prompt, output):
        assert float(logits[token]) <= best - 4e8, (guard, prompt, output, token, logits)


def as_engines(numbers: random.Random, logits: torch.Tensor) -> None:
    """Mask, bias or force tokens of a row, as engines do before processors."""
    how = numbers.random()
    if how < 0.2:
        logits[numbers.sample(range(VOCAB), numbers.randint(1, VOCAB - 1))] = -torch.inf
    elif how < 0.3:
        logits[numbers.randrange(VOCAB)] = 1e9
    elif how < 0.4:
        logits[numbers.randrange(VOCAB)] += 10_000


@dataclass
class Request:
    guard: Specs
    own: Specs
    prompt: list[int]
    output: list[int]

    @property
    def program(self) -> Program:
        guard = guarding(self.guard)
        return replace(compiled(self.own), guard=guard) if self.own else guard


def choose(numbers: random.Random, logits: torch.Tensor) -> int:
    """Choose a token that the row offers; often the best."""
    best = float(logits.max())
    left = [token for token in range(VOCAB) if float(logits[token]) > best - 1e6]
    return int(logits.argmax()) if numbers.random() < 0.5 else numbers.choice(left)


def request(numbers: random.Random, of: Sequence[Specs], own: Sequence[Specs]) -> Request:
    prompt = [numbers.randrange(VOCAB) for _ in range(numbers.randrange(4))]
    mine = numbers.choice(own) if numbers.random() < 0.9 else ()
    output = [numbers.randrange(VOCAB) for _ in range(numbers.choice((0, 0, 0, 2)))]
    return Request(numbers.choice(of), mine, prompt, output)


def on_host(count: int, number: int, steps: int = 8, rows: int = 32) -> int:
    """Run requests on ``Realizer``, with a neighbour in each second row; return the rows."""
    numbers, checked = random.Random(number), 0
    of, own = guards(300, number), clients(600, number)
    realizer, generator = Realizer(VOCAB), torch.Generator().manual_seed(number)
    for _ in range(0, count, rows):
        running = {2 * i: request(numbers, of, own) for i in range(rows)}
        for row, each in running.items():
            realizer.add(row, each.program, each.prompt, each.output, END)
        for _ in range(steps):
            before = torch.randn(2 * rows, VOCAB, generator=generator)
            for row in running:
                as_engines(numbers, before[row])
            after = before.clone()
            realizer.apply(after)
            assert after[1::2].equal(before[1::2])
            for row, each in running.items():
                check((each.guard, each.prompt, each.output, after[row]))
                each.output.append(choose(numbers, after[row]))
            checked += rows
    assert realizer.failed_requests == 0
    return checked


def on_device(count: int, number: int, steps: int = 4, rows: int = 8) -> int:
    """The same on ``DeviceRealizer``, with two drafts for each request."""
    from tests.support.device_engine import Engine
    from tests.support.requests import Request as Slot

    numbers, checked = random.Random(number), 0
    of, own = guards(100, number), clients(200, number)
    engine = Engine(torch.device("cpu"), vocabulary=VOCAB, slots=2 * rows)
    generator = torch.Generator().manual_seed(number)
    for _ in range(0, count, rows):
        running: dict[int, Request] = {}
        for _ in range(rows):
            each = request(numbers, of, own)
            running[engine.add(Slot((), each.prompt, each.output), each.program)] = each
        for _ in range(steps):
            drafts = {slot: [numbers.randrange(VOCAB) for _ in range(2)] for slot in running}
            before = torch.randn(3 * rows, VOCAB, generator=generator)
            for row in before:
                as_engines(numbers, row)
            after, of_rows = engine.apply(drafts, before)
            for row, (slot, k) in enumerate(of_rows):
                each = running[slot]
                drafted = [*each.output, *drafts[slot][:k]]
                check((each.guard, each.prompt, drafted, after[row]))
                checked += 1
            for row, (slot, k) in enumerate(of_rows):
                if k == 0:  # no draft is accepted
                    engine.accept(slot, [choose(numbers, after[row])])
        for slot in running:
            engine.finish(slot)
    assert engine.realizer.failed_requests == 0
    return checked


def main(
    requests: Annotated[int, typer.Option(help="how many, on the host")] = 1_000_000,
    device: Annotated[int, typer.Option(help="how many, on the device")] = 2_000,
    number: Annotated[int, typer.Option("--seed", help="the first seed")] = 0,
) -> None:
    """Hold guards against random requests."""
    if INTERPRETED:
        be_quick()
    runs: list[tuple[Callable[[int, int], int], int, int]] = [(on_host, requests, 20_000)]
    runs.append((on_device, device, 500))
    for run, count, most in runs:
        rows = 0
        for i, start in enumerate(range(0, count, most)):
            rows += run(min(most, count - start), number + i)
            print(f"{run.__name__}: {min(start + most, count)} requests, {rows} rows", flush=True)


if __name__ == "__main__":
    typer.run(main)

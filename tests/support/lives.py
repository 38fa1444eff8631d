"""One simulated engine: what engines do with requests, in any order, and a driver for each.

Requests enter, wait, resume, move, swap beams, accept drafts, take tokens back and leave; their own
code fails, and so do calls of the core. Each row of each step has the edits of its request, as the
reference says, or is ended if the request has failed. A ``Driver`` translates this for one adapter,
or for one of the core's two realizers.
"""

import logging
import random
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from logitport.adapters import admission
from logitport.adapters.core import (
    Acting,
    Chain,
    HistoryRule,
    Mark,
    Program,
    compile_specs,
    plugins,
)
from logitport.adapters.core.contradictions import check_contradictions
from logitport.adapters.reference import Edit, Force, combine, edits
from logitport.adapters.reference.kinds.base import flat
from logitport.spec import (
    ChainStep,
    LogitBiasSpec,
    Payload,
    PluginSpec,
    PythonProcessorSpec,
    SpecError,
)

from tests.support.drawn import KEY, assert_drawn, is_repeated
from tests.support.faults import METHODS, MODULES, Faults
from tests.support.requests import (
    ONE_OF_EACH,
    STOP,
    VOCABULARY,
    assert_row,
    forced_logit,
    random_logits,
)
from tests.support.samplers import shaped

MOST = 5
"""Requests at a time."""

CHAINS = (
    ((ChainStep(top_k=1),), 1.0),
    ((ChainStep(top_k=3),), 0.5),
    ((ChainStep(min_p=0.3),), 2.0),
)
"""The fields of chains whose borders are easily found."""


class FailsLater(HistoryRule):
    """The plugin ``fails``: adds to a token until so many tokens are out."""

    def __init__(self, after: int) -> None:
        self.after = after

    def additions(self, prompt_ids: Sequence[int], output_ids: Sequence[int]) -> dict[int, float]:
        if len(output_ids) >= self.after:
            raise RuntimeError("on purpose")
        return {3: 1.5}


def _add(output_ids: list[int], logits: torch.Tensor) -> None:
    logits[3] += 1.5


ADDS = PythonProcessorSpec(lambda: _add)
MEANT = LogitBiasSpec({3: 1.5})
"""What the plugin means until it fails, and what ``_add`` does."""


class Output(list[int]):
    """Token ids, to which there may be weak references."""


RowOf = tuple[torch.Tensor, torch.Tensor, Sequence[int]]
"""Logits before and after a step, and the output that they come after."""


@dataclass(eq=False)
class Life:
    """A request with the specs of a group, an output for each beam, and a row for each draft."""

    group: int
    specs: Sequence[Any]
    prompt: list[int]
    outputs: list[list[int]]
    drafts: list[int] = field(default_factory=list[int])
    running: bool = True
    without_specs: int | None = None  # steps without them since a fault has ended it
    of_engine: Any = None  # what a driver has of it
    continued: int = 0
    draw: Mark | Chain | None = None  # what acts after all else

    @property
    def has_failed(self) -> bool:
        """Whether its plugin has to."""
        out = self.continued + len(self.outputs[0]) + len(self.drafts)
        return any(isinstance(s, PluginSpec) and out >= s.params["after"] for s in self.specs)

    @property
    def histories(self) -> list[list[int]]:
        """The output before each of its rows: one for each beam, and one for each draft."""
        output = self.outputs[0]
        return [*self.outputs, *([*output, *self.drafts[: k + 1]] for k in range(len(self.drafts)))]

    def edits(self, output: Sequence[int]) -> list[Edit]:
        own = PluginSpec | PythonProcessorSpec
        meant = [MEANT if isinstance(spec, own) else spec for spec in self.specs]
        end = len(self.prompt) - self.continued
        return edits(meant, self.prompt[:end], [*self.prompt[end:], *output])


_programs: dict[tuple[int, ...], tuple[Any, Program]] = {}


class Driver:
    """An engine's side of an adapter, without the engine.

    In the core (``is_core``), calls may fail at any time, in logits of any type, requests may have
    code, and one that has been ended may stay.
    """

    beams: ClassVar[int] = 1  # the most of a request
    drafts: ClassVar[int] = 0  # the most of a request
    comes_and_goes: ClassVar[bool] = True  # else all come at once
    one_each: ClassVar[bool] = False  # the requests of a group run one after the other
    takes_back: ClassVar[bool] = False  # tokens
    swaps: ClassVar[bool] = False  # beams take one another's places
    any_part: ClassVar[bool] = True  # a step may have some of the requests, in any order
    repeats: ClassVar[bool] = True  # a step may come again, as for chunks of a prompt
    normalizes: ClassVar[bool] = False  # rows with specs become logarithms of probabilities
    is_core: ClassVar[bool] = False
    draws: ClassVar[str] = ""  # what most texts have: a "mark", or a "chain"
    more: ClassVar[tuple[str, ...]] = ()  # events, by the names of the driver's methods
    modules: ClassVar[tuple[str, ...]] = MODULES  # whose calls may fail
    choose: ClassVar[random.Random]
    faults: ClassVar[Faults]

    def __init__(self, groups: Sequence[Sequence[Any]], patch: pytest.MonkeyPatch) -> None:
        self.groups = groups

    def program(self, life: Life) -> Program:
        """What its specs compile to, once for all requests that have them."""
        key = tuple(map(id, life.specs))
        if key not in _programs:
            _programs[key] = life.specs, compile_specs(life.specs)
        program = replace(_programs[key][1], continued=life.continued)
        return program.then(Program((Acting(life.draw),))) if life.draw else program

    def begin(self, lives: Sequence[Life]) -> None:
        """All of them come at once."""
        for life in lives:
            self.come(life)

    def come(self, life: Life) -> None:
        """A request is new, or comes back with its output."""

    def put_back(self, life: Life) -> None:
        """It does not run for a while."""

    def go(self, life: Life) -> None:
        """It is done."""

    def accept(self, life: Life, beam: int, token_ids: Sequence[int]) -> None:
        """Tokens of its output are known now."""
        life.outputs[beam] += token_ids

    def take_back(self, life: Life, tokens: int) -> None:
        for output in life.outputs:
            del output[max(len(output) - tokens, 0) :]

    def is_ended(self, life: Life, edited: torch.Tensor) -> bool:
        """Whether a request that has failed is ended, by the row as it is edited."""
        return bool(edited.argmax() == STOP)

    def has(self, life: Life) -> bool:
        """Whether something acts on a request."""
        return True

    def step(self, lives: Sequence[Life], logits: torch.Tensor) -> torch.Tensor:
        """Let the adapter edit the rows, those of a request next to each other."""
        raise NotImplementedError

    def end(self) -> None:
        """All requests have left. Nothing of them may be left."""


class Lives:
    """Leads requests through an engine; the calls in ``failing`` fail, or some by chance."""

    def __init__(
        self,
        make: type[Driver],
        seed: int,
        patch: pytest.MonkeyPatch,
        groups: Sequence[Sequence[Any]] = (),
        failing: Sequence[int] | None = None,
        faults: Faults | None = None,
    ) -> None:
        self.choose = choose = random.Random(seed)
        self.faults, self.is_script = faults or Faults(), failing is not None
        self.faults.start(failing or ())
        self.lives, self.numbers, self.ended, self.before = list[Life](), 0, 0, self.faults.total
        patch.setattr(plugins, "_plugins", lambda: {"fails": lambda: _made})
        self.make = make
        self.groups = groups or [self._specs() for _ in range(8 if make.is_core else 3)]
        make.choose, make.faults = choose, self.faults
        self.driver = make(self.groups, patch)
        self.dtype, self.columns = torch.float32, VOCABULARY
        if make.is_core:
            narrow = torch.float16, torch.bfloat16
            self.dtype = choose.choice((torch.float32, torch.float32, *narrow))
            self.columns = VOCABULARY + choose.randrange(3)
        self.lives = [self._life(group) for group in choose.choices(range(len(self.groups)), k=3)]
        if self.driver.one_each:
            self.lives = list({life.group: life for life in self.lives}.values())
        self.driver.begin(self.lives)

    def lead(self, events: int) -> None:
        """Let so much happen."""
        driver, choose = self.driver, self.choose
        others: list[Any] = [self.come, self.go, self.put_back]
        if not driver.comes_and_goes:
            others = [self.again]
        others += [self.take_back] * 2 * driver.takes_back + [self.swap] * 4 * driver.swaps
        others += [getattr(driver, name, None) or getattr(self, name) for name in driver.more]
        for _ in range(events):
            if not self.running:
                (self.put_back if self.lives else self.come)()
            elif choose.random() < 0.6:
                self.step()
            else:
                self._start(0.1 * driver.is_core, 40)
                choose.choice(others)()
        if driver.is_core:
            for _ in range(2):
                if self.running:
                    self.step()
            while self.lives:
                self._go(self.lives[0])
            driver.end()

    @property
    def raised(self) -> int:
        """How many calls have failed."""
        return self.faults.total - self.before

    def _start(self, probability: float, most: int) -> None:
        if not self.is_script:
            choose = self.choose
            self.faults.start([choose.randrange(most)] if choose.random() < probability else [])

    def _specs(self) -> Sequence[Any]:
        """Some that a payload takes together, and now and then a plugin that is going to fail."""
        choose = self.choose
        specs: list[Any] = []
        if choose.random() < 0.4 and not self.is_script:
            specs.append(PluginSpec("fails", {"after": choose.randrange(8)}))
        for spec in choose.sample(ONE_OF_EACH, choose.randint(1, 3)):
            with suppress(SpecError):  # contradicts another one
                together = (*specs, spec)
                meant = [MEANT if isinstance(each, PluginSpec) else each for each in together]
                program = compile_specs(Payload(1, tuple(meant)).specs)
                check_contradictions(meant, program, VOCABULARY)
                specs.append(spec)
        return specs

    def _life(self, group: int) -> Life:
        """One whose prompt is no other one's with its output."""
        choose, is_core = self.choose, self.driver.is_core
        self.numbers += 1
        prompt = [*divmod(self.numbers, VOCABULARY), group, self.numbers * 5 % VOCABULARY]
        specs = self.groups[group]
        if is_core:
            tokens = range(choose.randint(1, VOCABULARY))
            prompt += choose.choices(tokens, k=choose.choice((0, 3, 9, 40)))
            if choose.random() < 0.1:
                specs = []
            elif choose.random() < 0.2:
                specs = [*specs, ADDS]
        beams = choose.randint(1, self.driver.beams)
        life = Life(group, specs, prompt, [Output() for _ in range(beams)])
        if is_core and choose.random() < 0.4:
            life.continued = choose.randint(0, len(prompt))
        if self.driver.draws == "chain" and choose.random() < 0.7:
            life.draw = Chain(*choose.choice(CHAINS))
        if self.driver.draws == "mark" and choose.random() < 0.7:
            top_p, reads_prompt = choose.choice((1.0, 0.7)), choose.random() < 0.3
            life.draw = Mark(
                "a", KEY + choose.randrange(4), 0.7, 5, top_p, 0.01, 2, 9, reads_prompt
            )
        return life

    @property
    def running(self) -> list[Life]:
        return [life for life in self.lives if life.running]

    def come(self) -> None:
        if len(self.lives) == MOST:
            self.go()
        life = self._life(self.choose.randrange(len(self.groups)))
        if self.driver.one_each:
            for other in [other for other in self.lives if other.group == life.group]:
                self._go(other)
        self.lives.append(life)
        self.driver.come(life)

    def go(self) -> None:
        self._go(self.choose.choice(self.lives))

    def _go(self, life: Life) -> None:
        self.lives.remove(life)
        self.driver.go(life)

    def put_back(self) -> None:
        """A request is preempted; or one that was comes again, with its output."""
        life = self.choose.choice(self.lives)
        life.running = not life.running
        if life.running:
            life.without_specs = None
        (self.driver.come if life.running else self.driver.put_back)(life)

    def again(self) -> None:
        """The same prompts once more."""
        for life in self.lives:
            life.outputs = [[] for _ in life.outputs]
        self.driver.begin(self.lives)

    def take_back(self) -> None:
        lives = self.running
        if lives and self.driver.any_part:
            lives = [self.choose.choice(lives)]
        if not any(life.has_failed for life in lives):
            tokens = self.choose.randint(1, 3)
            for life in lives:
                self.driver.take_back(life, min(tokens, len(life.outputs[0])))
            if self.driver.is_core and lives:  # before others can be put in their place
                self.step(lives, chooses=False)

    def jump(self) -> None:
        """Several tokens come at once."""
        for life in self.running:
            if not life.has_failed:
                self.driver.accept(life, 0, self.choose.choices(range(VOCABULARY), k=2))

    def replace(self) -> None:
        """Between two steps, other tokens come in place of the last one, if that was not forced."""
        choose = self.choose
        if not self.running:
            return
        self.step(chooses=False)
        for life in self.running:
            output = life.outputs[0]
            if output and not life.has_failed and not is_forced(life):
                output[-1] = (output[-1] + choose.randrange(1, VOCABULARY)) % VOCABULARY
                output += choose.choices(range(VOCABULARY), k=choose.randrange(2))
        if self.running:
            self.step(chooses=False)

    def swap(self) -> None:
        """Beams go on from where others were."""
        life = self.choose.choice(self.running)
        if not life.has_failed:
            chosen = self.choose.choices(life.outputs, k=len(life.outputs))
            life.outputs = [[*output] for output in chosen]

    def step(self, some: Sequence[Life] = (), *, chooses: bool | None = None) -> None:
        """The engine chooses a token for some of the requests; a call of the core may fail."""
        driver, choose, lives = self.driver, self.choose, [*some] or self.running
        if driver.any_part and not some:
            choose.shuffle(lives)
            lives = lives[: choose.randint(1, len(lives))]
        for life in lives:
            life.drafts = choose.choices(range(VOCABULARY), k=choose.randint(0, driver.drafts))
        rows = [(life, history) for life in lives for history in life.histories]
        seed = choose.randrange(1 << 31)
        before = random_logits(len(rows), self.columns, seed, self.dtype)
        self._start(0.2, 100)
        raised = self.raised
        with self.faults.counting(not driver.is_core):
            after = driver.step(lives, before.clone())
        fails = self.raised > raised
        ended, first = list[Life](), 0
        for life in lives:
            last = first + len(life.histories)
            here = [(before[i], after[i], rows[i][1]) for i in range(first, last)]
            first = last
            check = self._check if driver.is_core else self._check_apart
            if not check(life, here, fails):
                ended.append(life)
        assert self.ended <= self.raised or self.faults.raised > 1, "one fault has ended several"
        if chooses is None:
            chooses = not driver.repeats or choose.random() < 0.8
        if chooses:
            self._choose_tokens(lives, after)
        for life in lives:
            life.drafts = []
        if ended and not driver.comes_and_goes:
            self.again()
            return
        for life in ended:
            if not driver.is_core or choose.random() < 0.5:
                self._go(life)

    def _choose_tokens(self, lives: Sequence[Life], after: torch.Tensor) -> None:
        driver, choose, row = self.driver, self.choose, 0
        obeys = choose.random() < 0.5
        for life in lives:
            drafts, beams = life.drafts, len(life.outputs)
            accepted = choose.randint(0, len(drafts))
            for beam in range(beams):
                likeliest = int(after[row + accepted + beam, :VOCABULARY].argmax())
                token = likeliest if obeys else choose.randrange(VOCABULARY)
                driver.accept(life, beam, [*drafts[:accepted], token])
            row += beams + len(drafts)

    def _check_apart(self, life: Life, rows: Sequence[RowOf], fails: bool) -> bool:
        """Hold each row to its edits, or its end; return whether the request goes on."""
        is_broken = False
        for before, after, output in rows:
            is_ended = self.driver.is_ended(life, after)
            if life.has_failed:  # where its end fails as well, that is in the next step
                assert is_ended or fails
                continue
            try:
                self._assert_row(life, before, after, output)
            except AssertionError:
                if not fails or not is_ended:
                    raise
                is_broken = True
        self.ended += is_broken
        return not (fails and any(self.driver.is_ended(life, after) for _, after, _ in rows))

    def _check(self, life: Life, rows: Sequence[RowOf], fails: bool) -> bool:
        """Hold a request to its edits until it is ended; return whether it has them."""
        driver, is_first = self.driver, life.without_specs is None
        if is_first and not life.has_failed:
            try:
                for before, after, output in rows:
                    self._assert_row(life, before, after, output)
                return True
            except AssertionError:
                if not self.raised:
                    raise
                self.ended += 1
        if all(driver.is_ended(life, after) for _, after, _ in rows) and (
            fails or is_first or life.draw or all(_is_end(*row) for row in rows)
        ):
            life.without_specs = 0
            return False
        assert self.raised, "it is to be ended"
        life.without_specs = (life.without_specs or 0) + 1
        is_free = all(torch.equal(before, after) for before, after, _ in rows)
        assert is_free or life.draw, "it was to end"
        assert life.without_specs <= 2 or not driver.has(life), "it goes on"
        return False

    def _assert_row(
        self, life: Life, before: torch.Tensor, after: torch.Tensor, output: Sequence[int]
    ) -> None:
        acting = life.edits(output)
        if not self.driver.normalizes:
            if isinstance(life.draw, Chain):
                _assert_shaped(life.draw, before, after, acting)
                return
            forced = _drawn(life, before, after, output) if life.draw else []
            assert_row(before, after, [*acting, *forced])
            return
        edited = torch.from_numpy(combine(before.numpy(), acting)).float()
        expected = edited.log_softmax(-1).numpy()
        likely = expected > -1e6
        np.testing.assert_array_equal(after.numpy() > -1e6, likely)
        np.testing.assert_allclose(after.numpy()[likely], expected[likely], rtol=1e-4, atol=1e-4)


def _drawn(
    life: Life, before: torch.Tensor, after: torch.Tensor, output: Sequence[int]
) -> list[Edit]:
    """What a mark forces in a row, if that is what it has to draw."""
    assert isinstance(life.draw, Mark)
    end, token = len(life.prompt) - life.continued, int(after[:VOCABULARY].argmax())
    prompt, output = life.prompt[:end], [*life.prompt[end:], *output]
    acting, highest = flat(life.edits(output[life.continued :])), forced_logit(before.dtype)
    edited = combine(before.double().numpy(), acting, forced=highest)[:VOCABULARY]
    if not np.isfinite(edited).any() or is_repeated(prompt, output, life.draw):
        return []
    if edited.max() > -highest / 2:  # of banned tokens alone, any may come
        row = after[:VOCABULARY].float().numpy().copy()
        row[token] = float(torch.tensor(edited[token]).to(before.dtype))
        assert_drawn(token, row, life.draw, output)
    return [Force(token)]


def _assert_shaped(
    chain: Chain, before: torch.Tensor, after: torch.Tensor, acting: Sequence[Edit]
) -> None:
    """A chain has taken its steps where there is a choice, and a row without one has its edits."""
    highest, rounding = forced_logit(before.dtype), 1600 * torch.finfo(before.dtype).eps
    edited = combine(before.double().numpy(), flat(acting), forced=highest)
    if not -highest / 2 < edited[:VOCABULARY].max() < highest / 2:
        assert_row(before, after, acting)
        return
    actual, row = after.double().numpy(), edited[:VOCABULARY]
    row[row < -highest / 2] = -np.inf
    expected = shaped(row, chain.steps)
    assert expected is not None
    assert np.isneginf(actual[VOCABULARY:]).all()
    (step,) = chain.steps
    border = np.sort(row)[-step.top_k] if step.top_k else row.max() + np.log(step.min_p or 1)
    actual = actual[:VOCABULARY]
    is_sure = np.abs(np.where(np.isneginf(row), 1e9, row) - border) > rounding
    np.testing.assert_array_equal((actual > -np.inf)[is_sure], expected.left[is_sure])
    kept = actual > -np.inf
    assert kept.any()
    scaled = row[kept] * chain.temperature
    np.testing.assert_allclose(actual[kept], scaled, rtol=rounding / 100, atol=rounding)


def _is_end(before: torch.Tensor, after: torch.Tensor, _: Sequence[int]) -> bool:
    expected = before.clone()
    expected[STOP] = forced_logit(before.dtype)
    return torch.equal(after, expected)


def is_forced(life: Life) -> bool:
    """Whether the last token of its output was."""
    output = life.outputs[0]
    return Force(output[-1]) in flat(life.edits(output[:-1]))


def _made(params: Any) -> HistoryRule:
    return FailsLater(params["after"])


def lead(
    driver: type[Driver], seed: int, events: int = 100, groups: Sequence[Sequence[Any]] = ()
) -> None:
    """Let requests live; none of them gets other edits than its own."""
    faults = Faults()
    logging.disable(logging.CRITICAL)
    try:
        methods = METHODS if driver.is_core else ()
        with pytest.MonkeyPatch.context() as patch, faults.installed(driver.modules, methods):
            Lives(driver, seed, patch, groups, faults=faults).lead(events)
    finally:
        logging.disable(logging.NOTSET)
        _programs.clear()
        admission.forget()  # what has been admitted with the plugin

"""What engines do with requests, in any order, and what each adapter's own bookkeeping makes of it.

The same for all adapters: requests come, wait, are shown in parts of the batch and in any order,
swap their beams, take tokens back, go; code of theirs fails, and so do calls of the core. Each
row of each step has the edits of its request, as the reference says, or is ended if the request
has failed. A ``Driver`` says it in the words of one engine.
"""

import logging
import random
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from logitport.adapters import admission
from logitport.adapters.conformance.reference import Edit, combine, edits
from logitport.adapters.core import HistoryRule, compile_specs, plugins
from logitport.adapters.core.walk import check_contradictions
from logitport.spec import LogitBiasSpec, Payload, PluginSpec, SpecError

from tests.support.requests import ONE_OF_EACH, STOP, VOCABULARY, assert_row, random_logits
from tests.tools.faults import MODULES, Faults

MOST = 5
"""Requests at a time."""


class FailsLater(HistoryRule):
    """The plugin ``fails``: adds to a token until so many tokens are out."""

    def __init__(self, after: int) -> None:
        self.after = after

    def additions(self, prompt_ids: Sequence[int], output_ids: Sequence[int]) -> dict[int, float]:
        if len(output_ids) >= self.after:
            raise RuntimeError("on purpose")
        return {3: 1.5}


MEANT = LogitBiasSpec({3: 1.5})
"""What the plugin means until it fails."""


@dataclass(eq=False)
class Life:
    """A request.

    Attributes:
        group: which specs it has.
        specs: these.
        prompt: its token ids.
        outputs: of each of its beams.
        running: whether the engine runs it; it may be one that has been put back.
        of_engine: what a driver has of it.
    """

    group: int
    specs: Sequence[Any]
    prompt: list[int]
    outputs: list[list[int]]
    running: bool = True
    of_engine: Any = None

    @property
    def has_failed(self) -> bool:
        """Whether its plugin has to."""
        out = len(self.outputs[0])
        return any(isinstance(s, PluginSpec) and out >= s.params["after"] for s in self.specs)

    def edits(self, beam: int) -> list[Edit]:
        meant = [MEANT if isinstance(spec, PluginSpec) else spec for spec in self.specs]
        return edits(meant, self.prompt, self.outputs[beam])


class Driver:
    """An engine's side of an adapter, without the engine.

    Attributes:
        beams: so many a request has at most.
        comes_and_goes: whether requests do while others run; else all come at once.
        one_each: whether the requests of a group run one after the other.
        takes_back: whether tokens may be.
        swaps: whether beams take one another's places.
        any_part: whether a step may have some of the requests, in any order.
        repeats: whether a step may be there again without a new token, as for chunks of a prompt.
        normalizes: whether rows with specs become logarithms of probabilities.
    """

    beams: ClassVar[int] = 1
    comes_and_goes: ClassVar[bool] = True
    one_each: ClassVar[bool] = False
    takes_back: ClassVar[bool] = False
    swaps: ClassVar[bool] = False
    any_part: ClassVar[bool] = True
    repeats: ClassVar[bool] = True
    normalizes: ClassVar[bool] = False

    def __init__(self, groups: Sequence[Sequence[Any]], patch: pytest.MonkeyPatch) -> None:
        self.groups = groups

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

    def is_ended(self, life: Life, edited: torch.Tensor) -> bool:
        """Whether a request that has failed is ended, by the row as it is edited."""
        return bool(edited.argmax() == STOP)

    def step(self, lives: Sequence[Life], logits: torch.Tensor) -> torch.Tensor:
        """Let the adapter edit the rows, those of a request's beams next to each other."""
        raise NotImplementedError


class Lives:
    """Leads requests through an engine.

    Args:
        make: of its driver.
        seed: of all chance.
        patch: lasts as long.
    """

    def __init__(self, make: type[Driver], seed: int, patch: pytest.MonkeyPatch) -> None:
        self.choose = choose = random.Random(seed)
        self.faults, self.lives, self.numbers = Faults(), list[Life](), 0
        patch.setattr(plugins, "_plugins", lambda: {"fails": lambda: _made})
        groups = [self._specs() for _ in range(3)]
        self.driver, self.groups = make(groups, patch), groups
        self.lives = [self._life(group) for group in choose.choices(range(3), k=3)]
        if self.driver.one_each:
            self.lives = list({life.group: life for life in self.lives}.values())
        self.driver.begin(self.lives)

    def lead(self, events: int) -> None:
        """Let so much happen."""
        others = [self.come, self.go, self.put_back] if self.driver.comes_and_goes else [self.again]
        others += [self.take_back] * 2 * self.driver.takes_back + [
            self.swap
        ] * 4 * self.driver.swaps
        with self.faults.installed(MODULES, methods=()):
            for _ in range(events):
                if not self.running:
                    (self.put_back if self.lives else self.come)()
                elif self.choose.random() < 0.6:
                    self.step()
                else:
                    self.choose.choice(others)()

    def _specs(self) -> Sequence[Any]:
        """Some that a payload takes together, and now and then a plugin that is going to fail."""
        choose = self.choose
        specs: list[Any] = []
        if choose.random() < 0.4:
            specs.append(PluginSpec("fails", {"after": choose.randrange(8)}))
        for spec in choose.sample(ONE_OF_EACH, choose.randint(1, 3)):
            with suppress(SpecError):  # contradicts another one
                together = (*specs, spec)
                meant = [MEANT if isinstance(each, PluginSpec) else each for each in together]
                check_contradictions(
                    meant, compile_specs(Payload(1, tuple(meant)).specs), VOCABULARY
                )
                specs.append(spec)
        return specs

    def _life(self, group: int) -> Life:
        """One whose prompt is no other one's with its output."""
        self.numbers += 1
        prompt = [*divmod(self.numbers, VOCABULARY), group, self.numbers * 5 % VOCABULARY]
        beams = self.choose.randint(1, self.driver.beams)
        return Life(group, self.groups[group], prompt, [[] for _ in range(beams)])

    @property
    def running(self) -> list[Life]:
        return [life for life in self.lives if life.running]

    def come(self) -> None:
        if len(self.lives) == MOST:
            self.go()
        life = self._life(self.choose.randrange(3))
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
        (self.driver.come if life.running else self.driver.put_back)(life)

    def again(self) -> None:
        """The same prompts once more."""
        for life in self.lives:
            life.outputs = [[] for _ in life.outputs]
        self.driver.begin(self.lives)

    def take_back(self) -> None:
        lives = self.running
        if self.driver.any_part:
            lives = [self.choose.choice(lives)]
        if not any(life.has_failed for life in lives):
            tokens = self.choose.randint(1, 3)
            for output in (output for life in lives for output in life.outputs):
                del output[-tokens:]

    def swap(self) -> None:
        """Beams go on from where others were."""
        life = self.choose.choice(self.running)
        if not life.has_failed:
            life.outputs = [
                [*output] for output in self.choose.choices(life.outputs, k=len(life.outputs))
            ]

    def step(self) -> None:
        """The engine chooses a token for some of the requests; a call of the core may fail."""
        driver, choose, lives = self.driver, self.choose, self.running
        if driver.any_part:
            choose.shuffle(lives)
            lives = lives[: choose.randint(1, len(lives))]
        rows = [(life, beam) for life in lives for beam in range(len(life.outputs))]
        before = random_logits(len(rows), VOCABULARY, choose.randrange(1 << 31), torch.float32)
        self.faults.start([choose.randrange(100)] if choose.random() < 0.2 else [])
        with self.faults.counting():
            after = driver.step(lives, before.clone())
        broken, ended = set[int](), list[Life]()
        for row, (life, beam) in enumerate(rows):
            if life.has_failed:  # where its end fails as well, that is in the next step
                assert driver.is_ended(life, after[row]) or self.faults.raised
                continue
            try:
                self._assert_row(before[row], after[row], life.edits(beam))
            except AssertionError:
                if not self.faults.raised or not driver.is_ended(life, after[row]):
                    raise
                broken.add(id(life))
            if self.faults.raised and life not in ended and driver.is_ended(life, after[row]):
                ended.append(life)
        assert len(broken) <= 1, "one fault has ended several requests"
        if not driver.repeats or choose.random() < 0.8:
            obeys = choose.random() < 0.5
            for row, (life, beam) in enumerate(rows):
                chosen = int(after[row].argmax()) if obeys else choose.randrange(VOCABULARY)
                life.outputs[beam].append(chosen)
        if ended and not driver.comes_and_goes:
            self.again()
            return
        for life in ended:
            self._go(life)

    def _assert_row(self, before: torch.Tensor, after: torch.Tensor, acting: list[Edit]) -> None:
        if not self.driver.normalizes:
            assert_row(before, after, acting)
            return
        edited = torch.from_numpy(combine(before.numpy(), acting)).float()
        expected = edited.log_softmax(-1).numpy()
        likely = expected > -1e6
        np.testing.assert_array_equal(after.numpy() > -1e6, likely)
        np.testing.assert_allclose(after.numpy()[likely], expected[likely], rtol=1e-4, atol=1e-4)


def _made(params: Any) -> HistoryRule:
    return FailsLater(params["after"])


def lead(driver: type[Driver], seed: int, events: int = 100) -> None:
    """Let requests live.

    Raises:
        AssertionError: if one of them got other edits than its own.
    """
    logging.disable(logging.CRITICAL)
    try:
        with pytest.MonkeyPatch.context() as patch:
            Lives(driver, seed, patch).lead(events)
    finally:
        logging.disable(logging.NOTSET)
        admission.forget()  # what has been admitted with the plugin

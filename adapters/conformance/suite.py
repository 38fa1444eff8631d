"""The cases that every backend must pass."""

import random
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
import pytest

from ...spec import (
    BannedTokensSpec,
    ForcedEndSpec,
    ForcedTokenSequenceSpec,
    LogitBiasSpec,
    LogitsProcessorSpec,
    PythonProcessorSpec,
    Stage,
    ThinkingBudgetSpec,
)
from ...spec.base import kind_of
from ..backend import Backend
from .kinds import KINDS, REALIZED
from .kinds.base import FreeRun
from .reference import combine, edit, obeys


@dataclass(frozen=True)
class Request:
    """A request of the suite to an engine.

    Attributes:
        prompt_ids: the prompt's token ids.
        specs: the specs that act on the request.
        max_tokens: the limit on the output, handed-over tokens included.
        output_ids: output tokens that another worker has already chosen.
        stage: the stage of the worker that receives the request. The specs are sent in any stage.
        shows_scores: whether the suite reads the scores.
        dtype: the type of the engine's logits, as torch names it. Only one case uses another of
            the suite's ``dtypes`` than float32. An engine with a single type ignores this field.
    """

    prompt_ids: tuple[int, ...]
    specs: tuple[LogitsProcessorSpec, ...] = ()
    max_tokens: int = 16
    output_ids: tuple[int, ...] = ()
    stage: Stage = Stage.AGGREGATED
    shows_scores: bool = False
    dtype: str = "float32"


@dataclass(frozen=True)
class Output:
    """An engine's output for a request.

    Attributes:
        token_ids: the output's token ids, the handed-over tokens first; EOS may be the last.
        scores: ``[vocabulary]``, the edited logits of the first token that was chosen; ``None``
            if the engine does not show them. They may be normalized (log-probabilities), and may
            have any numpy type.
    """

    token_ids: list[int]
    scores: Any = None


Generate = Callable[[Sequence[Request]], list[Output]]
Free = tuple[Request, list[int]]
"""A request without specs, and its output."""

DTYPES = ("float32", "float16", "bfloat16")
"""The types of engines' logits."""


class ConformanceSuite:
    """The conformance suite: subclass it as ``class TestMyBackend(ConformanceSuite)`` in a test.

    The engine may have any model. It must choose the likeliest token at each step, and the same
    token for the same history. The fixture ``generate`` runs requests concurrently, up to the
    number of slots, and returns their outputs in order. If a request is refused, the fixture
    raises the error.

    Attributes:
        backend: the adapter's declaration.
        vocab_size: the number of the engine's tokens, at least 64.
        eos_token_id: the token that ends the engine's outputs.
        slots: the number of requests that the engine runs at once.
        long_prompt: the length of a prompt that the engine prefills in several chunks.
        resumes: whether the engine can begin with output tokens that another worker chose.
        has_stages: whether ``generate`` can run a request in other stages than aggregated.
        dtypes: the ``DTYPES`` that the engine's logits can have when they reach the backend. All
            requests of one ``generate`` have the same type.
    """

    backend: ClassVar[Backend]
    vocab_size: ClassVar[int]
    eos_token_id: ClassVar[int]
    slots: ClassVar[int] = 4
    long_prompt: ClassVar[int] = 100
    resumes: ClassVar[bool] = False
    has_stages: ClassVar[bool] = False
    dtypes: ClassVar[tuple[str, ...]] = ("float32",)

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        if old := vars(cls).get("back_end"):  # the name until 0.2
            cls.backend = old

    @pytest.fixture
    def generate(self) -> Generate:
        """Run requests through the engine and the backend under test."""
        raise NotImplementedError("a subclass has the engine")

    # --- the cases ---

    def test_declaration(self):
        """No kind is both realized and lowered, and the backend supports at least one kind."""
        assert not self.backend.realizes & self.backend.lowers
        assert self.backend.realizes | self.backend.lowers

    @pytest.mark.parametrize("kind", REALIZED, ids=kind_of)
    def test_kind(self, generate: Generate, kind: type[LogitsProcessorSpec]):
        """The output obeys the spec, and the neighbour's output does not change."""
        self._outputs(generate, kind)

    def test_mixed_batch(self, generate: Generate):
        """All kinds in one batch yield the same outputs as each kind alone."""
        (free,) = self._free(generate, 1)
        requests = [
            replace(free[0], specs=(spec,))
            for kind in REALIZED
            if kind in self.backend.realizes
            for spec in self._examples(free, kind)
        ]
        alone = [generate([request])[0].token_ids for request in requests]
        together = [output.token_ids for output in generate([*requests, free[0]])]
        assert together == [*alone, free[1]]
        for request, output in zip(requests, together, strict=False):
            assert obeys(request.specs[0], list(request.prompt_ids), output)

    def test_several_specs(self, generate: Generate):
        """All specs of a request act, in either order."""
        self._needs(BannedTokensSpec)
        self._needs(ForcedEndSpec)
        free, other = self._free(generate, 2)
        first, (a, b) = free[1][0], self._others({*free[1], *free[0].prompt_ids}, 2)
        specs = BannedTokensSpec((first, self.eos_token_id)), ForcedEndSpec(2, (a, b))
        for order in (specs, specs[::-1]):
            both, neighbour = generate([replace(free[0], specs=order, max_tokens=6), other[0]])
            for spec in specs:
                assert obeys(spec, list(free[0].prompt_ids), both.token_ids), spec
            assert neighbour.token_ids == other[1]

    def test_slots_are_left_clean(self, generate: Generate):
        """The state of an earlier request does not act on the next request in its slot."""
        self._needs(ForcedTokenSequenceSpec)
        free = self._free(generate, 2 * self.slots)
        forced = ForcedTokenSequenceSpec(self._tokens(3), self.eos_token_id)
        requests = [replace(request, specs=(forced,)) for request, _ in free[: self.slots]]
        outputs = generate([*requests, *(request for request, _ in free)])
        for output in outputs[: self.slots]:
            assert obeys(forced, [], output.token_ids)
        assert [output.token_ids for output in outputs[self.slots :]] == [said for _, said in free]

    def test_long_prompt(self, generate: Generate):
        """A chunked prefill loses no forced token: the backend must not count calls."""
        self._needs(ForcedTokenSequenceSpec)
        forced = ForcedTokenSequenceSpec(self._tokens(6), self.eos_token_id)
        request = Request(self._tokens(self.long_prompt), (forced,))
        (output,) = generate([request])
        assert output.token_ids[:6] == list(forced.token_ids)

    def test_prompt_counts(self, generate: Generate):
        """The budget of a thinking block counts from the prompt if the prompt opens the block."""
        self._needs(ThinkingBudgetSpec)
        for seed in range(20):
            start, end, thought = self._tokens(3, seed)
            request = Request((start, thought), (ThinkingBudgetSpec(2, (start,), (end,)),))
            (output,) = generate([replace(request, max_tokens=3)])
            if output.token_ids[0] not in (end, self.eos_token_id):
                assert output.token_ids[1] == end
                return
        raise AssertionError("the engine ends all its outputs at once")

    @pytest.mark.parametrize("fits", [True, False])
    def test_handed_over(self, generate: Generate, fits: bool):
        """A first token that another worker chose begins the forced text, or comes before it."""
        self._needs(ForcedTokenSequenceSpec)
        if not self.resumes:
            pytest.skip(f"{self.backend.name} does not take over")
        text = self._tokens(4)
        spec = ForcedTokenSequenceSpec(text, self.eos_token_id)
        first = text[0] if fits else self._others(text, 1)[0]
        request = Request(self._tokens(5), (spec,), max_tokens=8, output_ids=(first,))
        (output,) = generate([request])
        expected = [*text] if fits else [first, *text]
        assert output.token_ids[: len(expected)] == expected

    @pytest.mark.parametrize("kind", REALIZED, ids=kind_of)
    def test_resumption(self, generate: Generate, kind: type[LogitsProcessorSpec]):
        """A request that restarts with its earlier output continues as if never interrupted."""
        self._needs(kind)
        if not self.resumes:
            pytest.skip(f"{self.backend.name} does not take over")
        (free,) = self._free(generate, 1)
        for spec in self._specs(free, kind):
            request = replace(free[0], specs=(spec,))
            (whole,) = generate([request])
            for out in range(1, len(whole.token_ids)):
                again = replace(request, output_ids=tuple(whole.token_ids[:out]))
                assert generate([again])[0].token_ids == whole.token_ids

    @pytest.mark.parametrize("kind", REALIZED, ids=kind_of)
    def test_scores(self, generate: Generate, kind: type[LogitsProcessorSpec]):
        """The logits are edited once, as the kind defines; the neighbour's are unchanged."""
        self._needs(kind)
        free, other = self._free(generate, 2)
        request, beside = (
            replace(run[0], max_tokens=1, shows_scores=True) for run in (free, other)
        )
        plain, plain_other = generate([request, beside])
        if plain.scores is None:
            pytest.skip(f"{self.backend.name} shows no scores")
        specs = self._specs(free, kind)
        if kind is LogitBiasSpec:
            specs.append(LogitBiasSpec({free[1][0]: -0.5, free[1][1]: 0.25}))
        for spec in specs:
            edited, neighbour = generate([replace(request, specs=(spec,)), beside])
            expected = combine(np.asarray(plain.scores), [edit(spec, free[0].prompt_ids, ())])
            np.testing.assert_allclose(
                _normalized(edited.scores), _normalized(expected), rtol=1e-3, atol=1e-3
            )
            np.testing.assert_array_equal(neighbour.scores, plain_other.scores)

    @pytest.mark.parametrize("kind", REALIZED, ids=kind_of)
    @pytest.mark.parametrize("dtype", DTYPES[1:])
    def test_dtype(self, generate: Generate, dtype: str, kind: type[LogitsProcessorSpec]):
        """Specs hold in narrow logits, and the highest logit stays finite, so it can be scaled."""
        if dtype not in self.dtypes:
            pytest.skip(f"the logits of {self.backend.name} are not {dtype}")
        for spec, output in self._outputs(generate, kind, dtype=dtype, shows_scores=True):
            if output.scores is not None:
                highest = np.asarray(output.scores, np.float64).max()
                assert np.isfinite(highest), f"{spec} makes a logit of {highest}"

    @pytest.mark.parametrize("stage", [Stage.AGGREGATED, Stage.PREFILL, Stage.DECODE])
    def test_stages(self, generate: Generate, stage: Stage):
        """Specs that reach a prefill worker do not act there. In other stages they act."""
        self._needs(ForcedTokenSequenceSpec)
        if not self.has_stages:
            pytest.skip(f"{self.backend.name} is run in one stage")
        (free,) = self._free(generate, 1)
        spec = ForcedTokenSequenceSpec(self._tokens(3), self.eos_token_id)
        (output,) = generate([replace(free[0], specs=(spec,), stage=stage)])
        if stage.generates:
            assert obeys(spec, [], output.token_ids)
        else:
            assert output.token_ids == free[1]

    def test_code_of_a_request(self, generate: Generate):
        """A live callable is given its request's tokens, and edits that request's logits."""
        self._needs(PythonProcessorSpec)
        free, other = self._free(generate, 2)
        first = 30 if self.eos_token_id in range(20, 24) else 20
        spec = PythonProcessorSpec(partial(_counting, first - len(free[0].prompt_ids)))
        (counting, neighbour) = generate([replace(free[0], specs=(spec,)), other[0]])
        assert counting.token_ids[:4] == [*range(first, first + 4)]
        assert neighbour.token_ids == other[1]

    def test_failure_ends_one_request(self, generate: Generate):
        """An exception in a request's code affects no other request, concurrent or later."""
        self._needs(PythonProcessorSpec)
        free, *others = self._free(generate, 3)
        failing = replace(free[0], specs=(PythonProcessorSpec(_failing),))
        outputs = generate([others[0][0], failing, others[1][0]])
        assert outputs[0].token_ids == others[0][1]
        assert outputs[1].token_ids in ([], [self.eos_token_id])
        assert outputs[2].token_ids == others[1][1]
        (again,) = generate([free[0]])
        assert again.token_ids == free[1]

    def test_refuses_what_it_cannot_do(self, generate: Generate):
        """The error for an unsupported kind names the backend and the kind."""
        able = self.backend.realizes | self.backend.lowers
        if not (others := set(KINDS) - able):
            pytest.skip(f"{self.backend.name} can do every kind")
        for kind in others:
            request = Request(self._tokens(5), (KINDS[kind].minimal,))
            pattern = rf"{re.escape(self.backend.name)}.*{kind_of(kind)}"
            with pytest.raises(Exception, match=pattern):
                generate([request])

    def test_refuses_tokens_beyond_the_vocabulary(self, generate: Generate):
        self._needs(BannedTokensSpec)
        spec = BannedTokensSpec((self.vocab_size,))
        with pytest.raises(Exception, match=f"beyond the vocabulary of {self.vocab_size}"):
            generate([Request(self._tokens(5), (spec,))])

    # --- helpers of the cases ---

    def _needs(self, kind: type[LogitsProcessorSpec]) -> None:
        if kind not in self.backend.realizes:
            pytest.skip(f"{self.backend.name} does not realize {kind_of(kind)}")

    def _tokens(self, count: int, seed: int = 0) -> tuple[int, ...]:
        """Choose tokens other than EOS. They repeat only if there are fewer than ``count``."""
        all_tokens = [token for token in range(self.vocab_size) if token != self.eos_token_id]
        random.Random(seed).shuffle(all_tokens)
        return tuple(all_tokens[i % len(all_tokens)] for i in range(count))

    def _others(self, token_ids: Collection[int], count: int) -> list[int]:
        """Choose tokens that are not in ``token_ids``."""
        candidates = self._tokens(len(token_ids) + count)
        return [token for token in candidates if token not in token_ids][:count]

    def _free(self, generate: Generate, count: int, **fields: Any) -> list[Free]:
        """Find requests without specs whose outputs have at least six tokens, with the outputs."""
        found: list[Free] = []
        for seed in range(0, 100 * count, self.slots):
            requests = [Request(self._tokens(7, seed + i), **fields) for i in range(self.slots)]
            for request, output in zip(requests, generate(requests), strict=True):
                if len(output.token_ids) >= 6:
                    found.append((request, output.token_ids))
            if len(found) >= count:
                return found[:count]
        raise AssertionError("the engine ends its outputs at once")

    def _outputs(
        self, generate: Generate, kind: type[LogitsProcessorSpec], **fields: Any
    ) -> list[tuple[LogitsProcessorSpec, Output]]:
        """Run specs of a kind, each beside a request without; check and return the outputs."""
        self._needs(kind)
        outputs: list[tuple[LogitsProcessorSpec, Output]] = []
        free, other = self._free(generate, 2, **fields)
        for spec in self._specs(free, kind):
            output, neighbour = generate([replace(free[0], specs=(spec,)), other[0]])
            assert obeys(spec, list(free[0].prompt_ids), output.token_ids), spec
            assert output.token_ids != free[1], f"{spec} changes nothing"
            assert neighbour.token_ids == other[1]
            outputs.append((spec, output))
        return outputs

    def _specs(self, free: Free, kind: type[LogitsProcessorSpec]) -> list[LogitsProcessorSpec]:
        if not (specs := self._examples(free, kind)):
            pytest.skip(f"the engine says nothing that {kind_of(kind)} would change")
        return specs

    def _examples(self, free: Free, kind: type[LogitsProcessorSpec]) -> list[LogitsProcessorSpec]:
        """Make specs of a kind that change the engine's output."""
        request, said = free
        unused = self._others({*said, *request.prompt_ids}, 3)
        run = FreeRun(request.prompt_ids, tuple(said), tuple(unused), self.eos_token_id)
        return KINDS[kind].examples(run)


def _counting(first: int) -> Callable[..., None]:
    def process(prompt_ids: Sequence[int], output_ids: Sequence[int], logits: Any) -> None:
        logits[first + len(prompt_ids) + len(output_ids)] += 1000

    return process


def _failing() -> Callable[..., None]:
    def process(output_ids: Sequence[int], logits: Any) -> None:
        raise RuntimeError("a processor that fails")

    return process


def _normalized(scores: Any) -> np.ndarray:
    """Compute log-probabilities, at least -1000: all banned tokens are equal."""
    scores = np.asarray(scores, np.float64)
    scores = scores - scores.max()
    return np.maximum(scores - np.log(np.exp(scores).sum()), -1e3)

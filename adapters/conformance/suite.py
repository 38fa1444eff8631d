"""The cases that every back end has to pass."""

import random
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
import pytest

from ...spec import (
    WIRE_KINDS,
    AllowedTokensSpec,
    BannedSequencesSpec,
    BannedTokensSpec,
    ChoiceSpec,
    ForcedEndSpec,
    ForcedTokenSequenceSpec,
    GrammarSpec,
    LogitBiasSpec,
    LogitsProcessorSpec,
    MinTokensSpec,
    NoRepeatNgramSpec,
    PluginSpec,
    PromptBiasSpec,
    PythonProcessorSpec,
    SamplingSpec,
    Stage,
    ThinkingBudgetSpec,
    TriggerSpec,
)
from ...spec.base import kind_of
from ..back_end import BackEnd
from .meaning import MEANING, combine, edit
from .obeys import obeys


@dataclass(frozen=True)
class Request:
    """What the suite asks an engine for.

    Attributes:
        prompt_ids: the prompt's token ids.
        specs: what acts on it.
        max_tokens: of the output; the handed-over ones count.
        output_ids: tokens that are out already, chosen by another worker.
        stage: what the worker does that the request reaches, with its specs in any case.
        shows_scores: whether the suite is going to look at the scores.
        dtype: what the engine's logits are to be, as torch calls it: float32, but for the case
            that asks for another of the suite's ``dtypes``. An engine with one alone ignores it.
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
    """What comes of a request.

    Attributes:
        token_ids: the output's token ids, the handed-over ones first; EOS may be the last.
        scores: ``[vocabulary]``, the edited logits of the first token that was chosen; ``None``
            if the engine does not show them. They may be normalized (log-probabilities), and of
            any type that numpy has.
    """

    token_ids: list[int]
    scores: Any = None


Generate = Callable[[Sequence[Request]], list[Output]]


DTYPES = ("float32", "float16", "bfloat16")
"""What engines' logits are."""


class ConformanceSuite:
    """Subclass it as ``class TestMyBackEnd(ConformanceSuite)`` in a test file.

    The engine may have any model, as long as it is asked for the likeliest token at each step and
    says the same for the same history. The fixture ``generate`` runs requests at the same time, as
    many at once as there are slots, and returns their outputs in order; it raises what refuses a
    request.

    Attributes:
        back_end: what the adapter declares.
        vocab_size: number of the engine's tokens, 64 at least.
        eos_token_id: the token that ends its outputs.
        slots: how many requests it takes at once.
        long_prompt: a number of tokens that it prefills in several chunks.
        resumes: whether it can begin with tokens that another worker chose.
        has_stages: whether ``generate`` can run a request in another stage than aggregated.
        dtypes: those of ``DTYPES`` that the engine's logits can be of when they reach the back
            end. All requests of one ``generate`` have the same.
    """

    back_end: ClassVar[BackEnd]
    vocab_size: ClassVar[int]
    eos_token_id: ClassVar[int]
    slots: ClassVar[int] = 4
    long_prompt: ClassVar[int] = 100
    resumes: ClassVar[bool] = False
    has_stages: ClassVar[bool] = False
    dtypes: ClassVar[tuple[str, ...]] = ("float32",)

    @pytest.fixture
    def generate(self) -> Generate:
        """Runs requests through the engine and the back end under test."""
        raise NotImplementedError("a subclass has the engine")

    # --- the cases ---

    def test_declaration(self):
        """Nothing is both realized and lowered, and something is."""
        assert not self.back_end.realizes & self.back_end.lowers
        assert self.back_end.realizes | self.back_end.lowers

    @pytest.mark.parametrize("kind", MEANING, ids=kind_of)
    def test_kind(self, generate: Generate, kind: type[LogitsProcessorSpec]):
        """The output obeys the spec, and that of its neighbour is what it always is."""
        self._needs(kind)
        free, other = self._free(generate, 2)
        for spec in self._specs(free, kind):
            with_spec, neighbour = generate([replace(free[0], specs=(spec,)), other[0]])
            assert obeys(spec, list(free[0].prompt_ids), with_spec.token_ids), spec
            assert with_spec.token_ids != free[1], f"{spec} changes nothing"
            assert neighbour.token_ids == other[1]

    def test_mixed_batch(self, generate: Generate):
        """All kinds at once say what each says by itself."""
        (free,) = self._free(generate, 1)
        requests = [
            replace(free[0], specs=(spec,))
            for kind, specs in self._all_specs(free).items()
            if kind in self.back_end.realizes
            for spec in specs
        ]
        alone = [generate([request])[0].token_ids for request in requests]
        together = [output.token_ids for output in generate([*requests, free[0]])]
        assert together == [*alone, free[1]]
        for request, output in zip(requests, together, strict=False):
            assert obeys(request.specs[0], list(request.prompt_ids), output)

    def test_several_specs(self, generate: Generate):
        """All specs of a request act, whichever comes first."""
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
        """What a request leaves behind does not act on the next one in its place."""
        self._needs(ForcedTokenSequenceSpec)
        free = self._free(generate, 2 * self.slots)
        forced = ForcedTokenSequenceSpec(self._tokens(3), self.eos_token_id)
        requests = [replace(request, specs=(forced,)) for request, _ in free[: self.slots]]
        outputs = generate([*requests, *(request for request, _ in free)])
        for output in outputs[: self.slots]:
            assert obeys(forced, [], output.token_ids)
        assert [output.token_ids for output in outputs[self.slots :]] == [said for _, said in free]

    def test_long_prompt(self, generate: Generate):
        """A prompt that is prefilled in chunks loses nothing of a text: no calls are counted."""
        self._needs(ForcedTokenSequenceSpec)
        forced = ForcedTokenSequenceSpec(self._tokens(6), self.eos_token_id)
        request = Request(self._tokens(self.long_prompt), (forced,))
        (output,) = generate([request])
        assert output.token_ids[:6] == list(forced.token_ids)

    def test_prompt_counts(self, generate: Generate):
        """A thinking block that the prompt has opened has its budget from there."""
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
        """A first token that another worker chose goes on with a text, or comes before it."""
        self._needs(ForcedTokenSequenceSpec)
        if not self.resumes:
            pytest.skip(f"{self.back_end.name} does not take over")
        text = self._tokens(4)
        spec = ForcedTokenSequenceSpec(text, self.eos_token_id)
        first = text[0] if fits else self._others(text, 1)[0]
        request = Request(self._tokens(5), (spec,), max_tokens=8, output_ids=(first,))
        (output,) = generate([request])
        expected = [*text] if fits else [first, *text]
        assert output.token_ids[: len(expected)] == expected

    @pytest.mark.parametrize("kind", MEANING, ids=kind_of)
    def test_resumption(self, generate: Generate, kind: type[LogitsProcessorSpec]):
        """A request that begins again with what it has said goes on as if nothing had been."""
        self._needs(kind)
        if not self.resumes:
            pytest.skip(f"{self.back_end.name} does not take over")
        (free,) = self._free(generate, 1)
        for spec in self._specs(free, kind):
            request = replace(free[0], specs=(spec,))
            (whole,) = generate([request])
            for out in range(1, len(whole.token_ids)):
                again = replace(request, output_ids=tuple(whole.token_ids[:out]))
                assert generate([again])[0].token_ids == whole.token_ids

    @pytest.mark.parametrize("kind", MEANING, ids=kind_of)
    def test_scores(self, generate: Generate, kind: type[LogitsProcessorSpec]):
        """The logits are edited as the kind says, once, and a neighbour's not at all."""
        self._needs(kind)
        free, other = self._free(generate, 2)
        request, beside = (
            replace(each[0], max_tokens=1, shows_scores=True) for each in (free, other)
        )
        plain, plain_other = generate([request, beside])
        if plain.scores is None:
            pytest.skip(f"{self.back_end.name} shows no scores")
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

    @pytest.mark.parametrize("kind", MEANING, ids=kind_of)
    @pytest.mark.parametrize("dtype", DTYPES[1:])
    def test_dtype(self, generate: Generate, dtype: str, kind: type[LogitsProcessorSpec]):
        """Specs hold in narrow logits, whose likeliest token keeps a logit that can be scaled."""
        self._needs(kind)
        if dtype not in self.dtypes:
            pytest.skip(f"the logits of {self.back_end.name} are not {dtype}")
        free, other = self._free(generate, 2, dtype)
        shown, beside = (replace(each[0], shows_scores=True) for each in (free, other))
        for spec in self._specs(free, kind):
            with_spec, neighbour = generate([replace(shown, specs=(spec,)), beside])
            assert obeys(spec, list(free[0].prompt_ids), with_spec.token_ids), spec
            assert with_spec.token_ids != free[1], f"{spec} changes nothing"
            assert neighbour.token_ids == other[1]
            if with_spec.scores is not None:
                highest = np.asarray(with_spec.scores, np.float64).max()
                assert np.isfinite(highest), f"{spec} makes a logit of {highest}"

    @pytest.mark.parametrize("stage", [Stage.AGGREGATED, Stage.PREFILL, Stage.DECODE])
    def test_stages(self, generate: Generate, stage: Stage):
        """Specs that reach a prefill worker do not act there, and elsewhere they do."""
        self._needs(ForcedTokenSequenceSpec)
        if not self.has_stages:
            pytest.skip(f"{self.back_end.name} is run in one stage")
        (free,) = self._free(generate, 1)
        spec = ForcedTokenSequenceSpec(self._tokens(3), self.eos_token_id)
        (output,) = generate([replace(free[0], specs=(spec,), stage=stage)])
        if stage.generates:
            assert obeys(spec, [], output.token_ids)
        else:
            assert output.token_ids == free[1]

    def test_code_of_a_request(self, generate: Generate):
        """A live callable edits the logits of its own request, knowing its tokens."""
        self._needs(PythonProcessorSpec)
        free, other = self._free(generate, 2)
        expected = list(range(20, 24))
        if self.eos_token_id in expected:
            expected = list(range(30, 34))
        spec = PythonProcessorSpec(partial(_counting, expected[0] - len(free[0].prompt_ids)))
        (counting, neighbour) = generate([replace(free[0], specs=(spec,)), other[0]])
        assert counting.token_ids[:4] == expected
        assert neighbour.token_ids == other[1]

    def test_failure_ends_one_request(self, generate: Generate):
        """Code of a request that raises does not touch the others, nor those that come later."""
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
        """By its own name and the kind's."""
        able = self.back_end.realizes | self.back_end.lowers
        if not (others := {*WIRE_KINDS, PythonProcessorSpec} - able):
            pytest.skip(f"{self.back_end.name} can do every kind")
        for kind in others:
            request = Request(self._tokens(5), (EXAMPLES[kind],))
            with pytest.raises(
                Exception, match=rf"{re.escape(self.back_end.name)}.*{kind_of(kind)}"
            ):
                generate([request])

    def test_refuses_tokens_beyond_the_vocabulary(self, generate: Generate):
        self._needs(BannedTokensSpec)
        spec = BannedTokensSpec((self.vocab_size,))
        with pytest.raises(Exception, match=f"beyond the vocabulary of {self.vocab_size}"):
            generate([Request(self._tokens(5), (spec,))])

    # --- what they are made of ---

    def _needs(self, kind: type[LogitsProcessorSpec]) -> None:
        if kind not in self.back_end.realizes:
            pytest.skip(f"{self.back_end.name} does not realize {kind_of(kind)}")

    def _tokens(self, count: int, seed: int = 0) -> tuple[int, ...]:
        """Different tokens, as far as there are as many, but not EOS."""
        all_tokens = [token for token in range(self.vocab_size) if token != self.eos_token_id]
        random.Random(seed).shuffle(all_tokens)
        return tuple(all_tokens[i % len(all_tokens)] for i in range(count))

    def _others(self, token_ids: Collection[int], count: int) -> list[int]:
        """Tokens that are not among these."""
        candidates = self._tokens(len(token_ids) + count)
        return [token for token in candidates if token not in token_ids][:count]

    def _free(
        self, generate: Generate, count: int, dtype: str = "float32"
    ) -> list[tuple[Request, list[int]]]:
        """Requests without specs, with what the engine says to them: a few tokens at least."""
        found: list[tuple[Request, list[int]]] = []
        for seed in range(0, 100 * count, self.slots):
            requests = [Request(self._tokens(7, seed + i), dtype=dtype) for i in range(self.slots)]
            for request, output in zip(requests, generate(requests), strict=True):
                if len(output.token_ids) >= 6:
                    found.append((request, output.token_ids))
            if len(found) >= count:
                return found[:count]
        raise AssertionError("the engine ends its outputs at once")

    def _specs(
        self, free: tuple[Request, list[int]], kind: type[LogitsProcessorSpec]
    ) -> list[LogitsProcessorSpec]:
        specs = self._all_specs(free)[kind]
        if not specs:
            pytest.skip(f"the engine says nothing that {kind_of(kind)} would change")
        return specs

    def _all_specs(self, free: tuple[Request, list[int]]) -> dict[Any, list[LogitsProcessorSpec]]:
        """Specs of each kind that change what the engine says by itself."""
        request, said = free
        eos = self.eos_token_id
        a, b, c = self._others({*said, *request.prompt_ids}, 3)
        first, second = said[:2]
        return {
            ForcedTokenSequenceSpec: [
                ForcedTokenSequenceSpec((a, b, c), eos),
                ForcedTokenSequenceSpec((a, b)),
            ],
            AllowedTokensSpec: [AllowedTokensSpec((a, b, c))],
            BannedTokensSpec: [BannedTokensSpec((first, second))],
            BannedSequencesSpec: [BannedSequencesSpec(((first, second), (a, b, c)))],
            LogitBiasSpec: [LogitBiasSpec({first: -1000}), LogitBiasSpec({a: 1000, b: 1000})],
            MinTokensSpec: [MinTokensSpec(4, (first, eos))],
            ForcedEndSpec: [ForcedEndSpec(2, (a, b), eos), ForcedEndSpec(3, (a, b))],
            ThinkingBudgetSpec: [ThinkingBudgetSpec(1, (first,), (a,), (b,))],
            ChoiceSpec: [ChoiceSpec(((a, b), (a, b, c), (c, a)), eos)],
            TriggerSpec: [TriggerSpec((first,), (a, b)), TriggerSpec((first, second), (a,), None)],
            NoRepeatNgramSpec: [NoRepeatNgramSpec(1)] if _repeats(request, said) else [],
            PromptBiasSpec: [_prompt_bias(request, said)],
        }


def _prompt_bias(request: Request, said: list[int]) -> PromptBiasSpec:
    if set(request.prompt_ids) <= set(said):
        return PromptBiasSpec(-1000)
    return PromptBiasSpec(1000, tuple(set(said) & set(request.prompt_ids)))


def _counting(first: int) -> Callable[..., None]:
    def process(prompt_ids: Sequence[int], output_ids: Sequence[int], logits: Any) -> None:
        logits[first + len(prompt_ids) + len(output_ids)] += 1000

    return process


def _failing() -> Callable[..., None]:
    def process(output_ids: Sequence[int], logits: Any) -> None:
        raise RuntimeError("a processor that fails")

    return process


EXAMPLES: dict[type[LogitsProcessorSpec], LogitsProcessorSpec] = {
    ForcedTokenSequenceSpec: ForcedTokenSequenceSpec((1,)),
    AllowedTokensSpec: AllowedTokensSpec((1,)),
    BannedTokensSpec: BannedTokensSpec((1,)),
    BannedSequencesSpec: BannedSequencesSpec(((1, 2),)),
    LogitBiasSpec: LogitBiasSpec({1: 1.0}),
    MinTokensSpec: MinTokensSpec(1, (1,)),
    ForcedEndSpec: ForcedEndSpec(1, (1,)),
    ThinkingBudgetSpec: ThinkingBudgetSpec(1, (1,), (2,)),
    ChoiceSpec: ChoiceSpec(((1,),), 2),
    TriggerSpec: TriggerSpec((1,), (2,)),
    NoRepeatNgramSpec: NoRepeatNgramSpec(2),
    PromptBiasSpec: PromptBiasSpec(1.0),
    GrammarSpec: GrammarSpec(regex="a"),
    SamplingSpec: SamplingSpec(temperature=0),
    PluginSpec: PluginSpec("any"),
    PythonProcessorSpec: PythonProcessorSpec(_failing),
}
"""One of each kind."""


def _repeats(request: Request, said: list[int]) -> bool:
    return any(token in (*request.prompt_ids, *said[:i]) for i, token in enumerate(said))


def _normalized(scores: Any) -> np.ndarray:
    """Log-probabilities, in which what a ban leaves of a logit is nothing."""
    scores = np.asarray(scores, np.float64)
    scores = scores - scores.max()
    return np.maximum(scores - np.log(np.exp(scores).sum()), -1e3)

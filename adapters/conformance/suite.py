"""The cases that every backend must pass."""

import gc
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn
from weakref import ref

import numpy as np
import pytest

from ...spec import (
    BannedTokensSpec,
    ForcedEndSpec,
    ForcedTokenSequenceSpec,
    GrammarSpec,
    LogitBiasSpec,
    LogitsProcessorSpec,
    MinTokensSpec,
    PromptBiasSpec,
    PythonProcessorSpec,
    Stage,
    ThinkingBudgetSpec,
    TriggerSpec,
)
from ...spec.base import kind_of
from .. import core
from ..reference import combine, edit
from ..reference.kinds import KINDS, REALIZED
from .base import CAPABILITIES, DTYPES, Generate, Output, Request, SuiteBase

__all__ = ["ConformanceSuite", "Generate", "Output", "Request"]

DATA_KINDS = tuple(kind for kind in KINDS if kind is not PythonProcessorSpec)
"""All kinds but code, which has cases of its own."""


class ConformanceSuite(SuiteBase):
    """The conformance suite: subclass it as ``class TestMyBackend(ConformanceSuite)`` in a test.

    The engine may have any model. It must choose the likeliest token at each step, and the same
    token for the same history. The fixture ``generate`` runs requests concurrently, up to the
    number of slots, and returns their outputs in order. If a request is refused, the fixture
    raises the error.

    Attributes:
        backend: the adapter's declaration.
        vocab_size: the number of the engine's tokens, at least 64.
        eos_token_id: the token that ends the engine's outputs.
        slots: see ``CAPABILITIES``, as for all that follow. They have no defaults: a case that
            needs one that is not declared fails, and the summary lists what is declared away.
        long_prompt: at least 7.
        resumes: if not, requests that come back and hand-overs are not covered.
        has_stages: if not, a backend that acts on a prefill worker is not noticed.
        attaches: if not, an ``attach`` that drops its arguments is not noticed.
        shows_scores: if not, only the chosen tokens are compared.
        dtypes: all requests of one ``generate`` have the same type.
    """

    def test_declaration(self):
        """The suite declares all capabilities, and the backend kinds, none but grammars twice."""
        for name in CAPABILITIES:
            assert self._is_declared(name), f"{self._declare(name)}; got {getattr(self, name)!r}"
        assert not self.backend.realizes & self.backend.lowers - {GrammarSpec}
        assert self.backend.realizes | self.backend.lowers

    @pytest.mark.parametrize("kind", DATA_KINDS, ids=kind_of)
    def test_kind(self, generate: Generate, kind: type[LogitsProcessorSpec]):
        """The output obeys the spec, and the neighbour's output does not change."""
        if kind not in REALIZED:
            self._leave_out(f"`{kind_of(kind)}`, of which the suite has no example")
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
        together = generate([*requests, free[0]])
        assert [output.token_ids for output in together] == [*alone, free[1]]
        for request, output in zip(requests, together, strict=False):
            self._check(request.specs[0], request.prompt_ids, output)

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
                self._check(spec, free[0].prompt_ids, both)
            assert neighbour.token_ids == other[1]

    def test_order_of_edits(self, generate: Generate):
        """A forced token comes though specs after it ban it: a request has one `Realizer`."""
        for kind in (TriggerSpec, MinTokensSpec, LogitBiasSpec):
            self._needs(kind)
        ((request, said),) = self._free(generate, 1)
        (token,) = self._others({*said, *request.prompt_ids}, 1)
        late = MinTokensSpec(9, (token,)), LogitBiasSpec({token: -100.0})
        specs = TriggerSpec((said[0],), (token,)), *late
        (output,) = generate([replace(request, specs=specs)])
        assert output.token_ids[:2] == [said[0], token]

    def test_slots_are_left_clean(self, generate: Generate):
        """The state of an earlier request does not act on the next request in its slot."""
        self._needs(ForcedTokenSequenceSpec)
        free = self._free(generate, 2 * self.slots)
        forced = ForcedTokenSequenceSpec(self._tokens(3), self.eos_token_id)
        requests = [replace(request, specs=(forced,)) for request, _ in free[: self.slots]]
        outputs = generate([*requests, *(request for request, _ in free)])
        for output in outputs[: self.slots]:
            self._check(forced, (), output)
        assert [output.token_ids for output in outputs[self.slots :]] == [said for _, said in free]

    def test_requests_that_have_left(self, generate: Generate):
        """Requests that have left act on nothing: the backend must call `remove`."""
        self._needs(ForcedTokenSequenceSpec)
        (free,) = self._free(generate, 1)
        forced = ForcedTokenSequenceSpec(self._tokens(3), self.eos_token_id)
        request = replace(free[0], specs=(forced,))
        generate([request] * self.slots)
        (alone,) = generate([request])
        self._check(forced, (), alone)

    def test_what_has_left_is_forgotten(self, generate: Generate):
        """Nothing of a request is kept when it has left: the backend must call `remove`."""
        self._needs(PythonProcessorSpec)
        if self.slots < 2:
            self._leave_out("what is kept of a request that has left, with a single slot")
        made: list[ref[Callable[..., None]]] = []

        def make() -> Callable[..., None]:
            def process(output_ids: Sequence[int], logits: Any) -> None:
                pass

            made.append(ref(process))
            return process

        free = self._free(generate, self.slots)
        generate([replace(request, specs=(PythonProcessorSpec(make),)) for request, _ in free])
        generate([free[0][0]])  # some engines remove a request at their next step
        gc.collect()
        if not made:
            self._leave_out("what is kept of a request that has left, in another process")
        assert [process for process in made if process() is not None] == []

    def test_long_prompt(self, generate: Generate):
        """A chunked prefill loses no forced token: the backend must not count calls."""
        self._needs(ForcedTokenSequenceSpec)
        forced = ForcedTokenSequenceSpec(self._tokens(6), self.eos_token_id)
        request = Request(self._tokens(self.long_prompt), (forced,))
        (output,) = generate([request])
        assert output.token_ids[:6] == list(forced.token_ids)

    @pytest.mark.parametrize("is_first", [False, True])
    def test_both_ends_of_a_prompt(self, generate: Generate, is_first: bool):
        """The tokens of a long prompt's first and last chunk reach the backend, too."""
        self._needs(PromptBiasSpec)
        other, one = self._tokens(2)
        others = (other,) * (self.long_prompt - 1)
        prompt = (one, *others) if is_first else (*others, one)
        (output,) = generate([Request(prompt, (PromptBiasSpec(1e4, (other,)),))])
        where = f"the {'first' if is_first else 'last'} token of the prompt"
        assert output.token_ids[0] == one, f"Expected {one}, {where}, got {output.token_ids[0]}"

    def test_last_token_of_the_vocabulary(self, generate: Generate):
        """The logits have a column for each token: ``vocab_size`` or more."""
        self._needs(ForcedTokenSequenceSpec)
        spec = ForcedTokenSequenceSpec((max(self._tokens(self.vocab_size - 1)),))
        (output,) = generate([Request(self._tokens(5), (spec,))])
        self._check(spec, (), output)

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
        self._declared("resumes")
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
        self._declared("resumes")
        (free,) = self._free(generate, 1)
        for spec in self._specs(free, kind):
            request = replace(free[0], specs=(spec,))
            (whole,) = generate([request])
            for out in range(1, len(whole.token_ids)):
                again = replace(request, output_ids=tuple(whole.token_ids[:out]))
                assert generate([again])[0].token_ids == whole.token_ids

    @pytest.mark.parametrize("kind", REALIZED, ids=kind_of)
    def test_continued(self, generate: Generate, kind: type[LogitsProcessorSpec]):
        """A reply that is cut anywhere goes on in another request: `continued` is passed on."""
        self._needs(kind)
        (free,) = self._free(generate, 1)
        for spec in self._specs(free, kind):
            request = replace(free[0], specs=(spec,))
            (whole,) = generate([request])
            said = whole.token_ids
            rest = [
                replace(
                    request,
                    prompt_ids=(*request.prompt_ids, *said[:out]),
                    max_tokens=request.max_tokens - out,
                    continued=out,
                )
                for out in range(1, len(said))
            ]
            for each, output in zip(rest, generate(rest), strict=True):
                begun, expected = said[: each.continued], said[each.continued :]
                what = f"After {begun}, which `continued` counts as output, expected {expected}"
                assert output.token_ids == expected, f"{what}, got {output.token_ids}: {spec}"

    @pytest.mark.parametrize("kind", REALIZED, ids=kind_of)
    def test_scores(self, generate: Generate, kind: type[LogitsProcessorSpec]):
        """The logits are edited once, as the kind defines; the neighbour's are unchanged."""
        self._needs(kind)
        self._declared("shows_scores")
        free, other = self._free(generate, 2)
        request, beside = (
            replace(run[0], max_tokens=1, shows_scores=True) for run in (free, other)
        )
        plain, plain_other = generate([request, beside])
        assert plain.scores is not None, "`shows_scores` is declared"
        specs = self._specs(free, kind)
        if kind is LogitBiasSpec:
            specs.append(LogitBiasSpec({free[1][0]: -0.5, free[1][1]: 0.25}))
        for spec in specs:
            edited, neighbour = generate([replace(request, specs=(spec,)), beside])
            expected = combine(np.asarray(plain.scores), [edit(spec, free[0].prompt_ids, ())])
            wrong = _difference(_normalized(edited.scores), _normalized(expected))
            assert not wrong, f"{wrong}: {spec}"
            wrong = _difference(np.asarray(neighbour.scores), np.asarray(plain_other.scores), 0.0)
            assert not wrong, f"In a request without specs beside it, {wrong}: {spec}"

    @pytest.mark.parametrize("kind", REALIZED, ids=kind_of)
    @pytest.mark.parametrize("dtype", DTYPES[1:])
    def test_dtype(self, generate: Generate, dtype: str, kind: type[LogitsProcessorSpec]):
        """Specs hold in narrow logits, and the highest logit stays finite, so it can be scaled."""
        if dtype not in self.dtypes:
            self._leave_out(f"{dtype}, which `dtypes` does not have")
        for spec, output in self._outputs(generate, kind, dtype=dtype, shows_scores=True):
            if self.shows_scores:
                highest = np.asarray(output.scores, np.float64).max()
                assert np.isfinite(highest), f"{spec} makes a logit of {highest}"

    @pytest.mark.parametrize("stage", [Stage.AGGREGATED, Stage.PREFILL, Stage.DECODE])
    def test_stages(self, generate: Generate, stage: Stage):
        """Specs that reach a prefill worker do not act there. In other stages they act."""
        self._needs(ForcedTokenSequenceSpec)
        self._declared("has_stages")
        (free,) = self._free(generate, 1)
        spec = ForcedTokenSequenceSpec(self._tokens(3), self.eos_token_id)
        (output,) = generate([replace(free[0], specs=(spec,), stage=stage)])
        if stage.generates:
            self._check(spec, (), output)
        else:
            assert output.token_ids == free[1]

    @pytest.mark.parametrize("generation_only", [True, False])
    def test_attach(self, generate: Generate, generation_only: bool):
        """``attach`` adds nothing for a prefill worker, unless specs act in all stages."""
        self._needs(ForcedTokenSequenceSpec)
        self._declared("attaches")
        (free,) = self._free(generate, 1)
        spec = ForcedTokenSequenceSpec(self._tokens(3), self.eos_token_id)
        request = replace(free[0], specs=(spec,), generation_only=generation_only)
        (output,) = generate([replace(request, attached_for=Stage.PREFILL)])
        if generation_only:
            assert output.token_ids == free[1], "`attach` must pass `stage` on"
        else:
            self._check(spec, (), output)

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

    def test_failed_specs_end_their_request(self, generate: Generate):
        """A request whose specs fail in the worker ends: the backend passes `stop_token_id`."""
        self._needs(LogitBiasSpec)
        free, other = self._free(generate, 2)
        (token,) = self._others(free[1], 1)
        failing, calls = replace(free[0], specs=(LogitBiasSpec({token: 1.0}),)), list[Any]()

        def fail(*args: Any) -> NoReturn:
            calls.append(args)
            raise RuntimeError("specs that fail")

        with pytest.MonkeyPatch.context() as patched:
            if (module := sys.modules.get(_STARTING)) is not None:
                patched.setattr(module, "instantiate", fail)
            output, neighbour = generate([failing, other[0]])
        if not calls:
            self._leave_out("specs that fail in the worker, in another process")
        assert output.token_ids in ([], [self.eos_token_id])
        assert neighbour.token_ids == other[1]

    def test_refuses_what_it_cannot_do(self, generate: Generate):
        """The error for an unsupported kind names the backend and the kind."""
        able = self.backend.realizes | self.backend.lowers
        if not (others := set(KINDS) - able):
            self._leave_out("refusals of kinds: the backend supports every kind")
        for kind in others:
            request = Request(self._tokens(5), (KINDS[kind].minimal,))
            pattern = rf"{re.escape(self.backend.name)}.*{kind_of(kind)}"
            with pytest.raises(Exception, match=pattern):
                generate([request])

    def test_refuses_tokens_beyond_the_vocabulary(self, generate: Generate):
        """A token id that the engine's logits have no column for is refused."""
        self._needs(BannedTokensSpec)
        spec = BannedTokensSpec((self.vocab_size,))
        with pytest.raises(Exception, match=f"beyond the vocabulary of {self.vocab_size}"):
            generate([Request(self._tokens(5), (spec,))])


_STARTING = f"{core.__name__}.layer"
"""Where a program becomes the parts of one request."""


def _counting(first: int) -> Callable[..., None]:
    def process(prompt_ids: Sequence[int], output_ids: Sequence[int], logits: Any) -> None:
        logits[first + len(prompt_ids) + len(output_ids)] += 1000

    return process


def _failing() -> Callable[..., None]:
    def process(output_ids: Sequence[int], logits: Any) -> None:
        raise RuntimeError("a processor that fails")

    return process


def _difference(scores: np.ndarray, expected: np.ndarray, tolerance: float = 1e-3) -> str:
    """Describe the token whose score differs most; return an empty text if none does."""
    if scores.shape != expected.shape:
        return f"expected scores of shape {expected.shape}, got {scores.shape}"
    wrong = ~np.isclose(scores, expected, tolerance, tolerance, equal_nan=True)
    token = int(np.argmax(np.where(wrong, np.abs(scores - expected), -1)))
    what = f"expected {expected[token]:.6g} for token {token}, got {scores[token]:.6g}"
    return f"{what} ({wrong.sum()} tokens differ)" if wrong.any() else ""


def _normalized(scores: Any) -> np.ndarray:
    """Compute log-probabilities, at least -1000: all banned tokens are equal."""
    scores = np.asarray(scores, np.float64)
    scores = scores - scores.max()
    return np.maximum(scores - np.log(np.exp(scores).sum()), -1e3)

"""The toy engine of the documentation passes the conformance suite; wrong backends do not."""

import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from logitport.adapters import Backend
from logitport.adapters.conformance import ConformanceSuite, Output, base
from logitport.adapters.core import Program, Realizer
from logitport.adapters.reference.kinds import REALIZED
from logitport.spec import (
    AutomatonSpec,
    ChoiceSpec,
    DrySpec,
    ForcedEndSpec,
    ForcedTokenSequenceSpec,
    GrammarSpec,
    LogitBiasSpec,
    LogitsProcessorSpec,
    MinTokensSpec,
    NoLoopSpec,
    PhasesSpec,
    PluginSpec,
    PromptBiasSpec,
    Stage,
    ThinkingBudgetSpec,
    TriggerSpec,
    decode,
    encode,
)

from examples.new_backend import conformance
from examples.new_backend.backend import KEY, LogitportEditor, attach
from examples.new_backend.conformance import EOS, VOCABULARY, ToySuite, generate_with, model
from examples.new_backend.engine import Engine, Running
from tests.support.pages import text
from tests.support.paths import ROOT

OF_THE_OUTPUT = (
    *(ForcedTokenSequenceSpec, ChoiceSpec, ForcedEndSpec, PhasesSpec, TriggerSpec),
    *(MinTokensSpec, ThinkingBudgetSpec, AutomatonSpec),
)
"""Kinds whose edits depend on where the output began."""


class TestToyBackend(ToySuite):
    pass


class CountsCalls(LogitportEditor):
    """Takes each call for a token."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._calls: dict[int, list[int]] = {}

    def enter(self, row: int, running: Running) -> None:
        self._calls[row] = []
        counted = Running(running.prompt_ids, self._calls[row], 0, running.extra)
        super().enter(row, counted)

    def edit(self, logits: torch.Tensor) -> None:
        super().edit(logits)
        for row, calls in self._calls.items():
            calls += [int(logits[row].argmax())] if row < len(logits) else []


class ForgetsARemovedSlot(LogitportEditor):
    """And enters no request that has no specs, which would clean the slot."""

    def enter(self, row: int, running: Running) -> None:
        if KEY in running.extra:
            super().enter(row, running)

    def leave(self, row: int) -> None:
        pass


class NeverRemoves(LogitportEditor):
    """The next request in the slot hides it, but what the slot holds stays until then."""

    def leave(self, row: int) -> None:
        pass


class NeverRemovesFromAWholeBatch(NeverRemoves):
    """A row that no request has is as any other."""

    def edit(self, logits: torch.Tensor) -> None:
        whole = torch.zeros((ToySuite.slots, VOCABULARY), dtype=logits.dtype)
        whole[: len(logits)] = logits
        super().edit(whole)
        logits.copy_(whole[: len(logits)])


class IgnoresThePrompt(LogitportEditor):
    def enter(self, row: int, running: Running) -> None:
        super().enter(row, replace(running, prompt_ids=[]))


class KeepsTheLastTokens(LogitportEditor):
    """Of a prompt, as an engine with a window does."""

    def enter(self, row: int, running: Running) -> None:
        super().enter(row, replace(running, prompt_ids=running.prompt_ids[-32:]))


class HandsOverFewerColumns(LogitportEditor):
    def edit(self, logits: torch.Tensor) -> None:
        super().edit(logits[:, : VOCABULARY - 8])


class NeverLetsAReplyEnd(LogitportEditor):
    """It takes the newest token back, time and again."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._outputs: dict[int, list[int]] = {}

    def enter(self, row: int, running: Running) -> None:
        super().enter(row, running)
        self._outputs[row] = running.output_ids

    def edit(self, logits: torch.Tensor) -> None:
        super().edit(logits)
        for output in self._outputs.values():
            output[2:] = []


class TakesTheFirstChunk(LogitportEditor):
    def enter(self, row: int, running: Running) -> None:
        super().enter(row, replace(running, prompt_ids=running.prompt_ids[:16]))


class TakesEveryReplyForANewOne(LogitportEditor):
    """Drops what the payload says of an earlier output."""

    def enter(self, row: int, running: Running) -> None:
        if payload := running.extra.get(KEY):
            payload = encode(decode(payload).specs)
        super().enter(row, replace(running, extra={KEY: payload}))


class Raises(LogitportEditor):
    def edit(self, logits: torch.Tensor) -> None:
        super().edit(logits)
        if self._realizer.failed_requests:
            raise RuntimeError("a request has failed")


class AppliesTwice(LogitportEditor):
    def edit(self, logits: torch.Tensor) -> None:
        super().edit(logits)
        super().edit(logits)


class ActsInAnyStage(LogitportEditor):
    def __init__(self, vocab_size: int, eos_token_id: int, stage: Stage = Stage.DECODE) -> None:
        super().__init__(vocab_size, eos_token_id)


class DropsCode(LogitportEditor):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._realizer = Realizer(VOCABULARY, self._without_code)

    def _without_code(self, payload: Any) -> Program | None:
        program = self._program_of(payload)
        if program is None:
            return None
        code = program.per_request
        parts = tuple(each for each in program.parts if each.part not in code)
        return replace(program, parts=parts)


class EditsACopy(LogitportEditor):
    """``float`` copies what is not float32."""

    def edit(self, logits: torch.Tensor) -> None:
        super().edit(logits.float())


class EditsInFloat32(LogitportEditor):
    """What wins in float32 is infinite in float16, and so is no probability."""

    def edit(self, logits: torch.Tensor) -> None:
        wide = logits.float()
        super().edit(wide)
        logits.copy_(wide)


class KeepsTheFirst(LogitportEditor):
    """Of a request's specs."""

    def enter(self, row: int, running: Running) -> None:
        if KEY in running.extra:
            (first, *_) = decode(running.extra[KEY]).specs
            running = replace(running, extra=attach({}, first))
        super().enter(row, running)


class HasARealizerForEachSpec(LogitportEditor):
    """Each makes its edits by itself, in the order of the specs."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._each = [LogitportEditor(*arguments) for _ in range(3)]

    def enter(self, row: int, running: Running) -> None:
        payload = running.extra.get(KEY)
        specs = decode(payload).specs if payload else ()
        for editor, spec in zip_longest(self._each, specs):
            editor.enter(row, replace(running, extra=attach({}, spec or ())))

    def leave(self, row: int) -> None:
        for editor in self._each:
            editor.leave(row)

    def move(self, source: int, destination: int) -> None:
        for editor in self._each:
            editor.move(source, destination)

    def edit(self, logits: torch.Tensor) -> None:
        for editor in self._each:
            editor.edit(logits)


class DropsTheStopToken(LogitportEditor):
    """A request that fails goes on without its specs."""

    def enter(self, row: int, running: Running) -> None:
        self._realizer.enter(row, running.extra.get(KEY), running.prompt_ids, running.output_ids)


class RealizesNothing(LogitportEditor):
    def enter(self, row: int, running: Running) -> None:
        pass


def attach_in_any_stage(*arguments: Any, stage: Any, **named: Any) -> dict[str, Any]:
    return attach(*arguments, **named)


def attach_for_generation(*arguments: Any, generation_only: Any, **named: Any) -> dict[str, Any]:
    return attach(*arguments, **named)


def attach_to_no_reply_before(*arguments: Any, continued: Any, **named: Any) -> dict[str, Any]:
    return attach(*arguments, **named)


@pytest.mark.parametrize(
    ("wrong", "case", "arguments"),
    [
        (attach_in_any_stage, "test_attach", (True,)),
        (attach_for_generation, "test_attach", (False,)),
        (attach_to_no_reply_before, "test_continued", (ForcedTokenSequenceSpec,)),
    ],
)
def test_wrong_attach_fails(wrong: Any, case: str, arguments: tuple[Any, ...]):
    run = getattr(ToySuite(), case)
    run(generate_with(LogitportEditor), *arguments)
    with pytest.raises(AssertionError):
        run(generate_with(LogitportEditor, attach=wrong), *arguments)


@pytest.mark.parametrize(
    ("wrong", "case", "arguments"),
    [
        (CountsCalls, "test_long_prompt", ()),
        (CountsCalls, "test_resumption", (ForcedTokenSequenceSpec,)),
        (ForgetsARemovedSlot, "test_slots_are_left_clean", ()),
        (NeverRemoves, "test_requests_that_have_left", ()),
        (NeverRemovesFromAWholeBatch, "test_what_has_left_is_forgotten", ()),
        (IgnoresThePrompt, "test_prompt_counts", ()),
        (IgnoresThePrompt, "test_scores", (PromptBiasSpec,)),
        (TakesTheFirstChunk, "test_both_ends_of_a_prompt", (False,)),
        (KeepsTheLastTokens, "test_both_ends_of_a_prompt", (True,)),
        (HandsOverFewerColumns, "test_last_token_of_the_vocabulary", ()),
        (NeverLetsAReplyEnd, "test_mixed_batch", ()),
        *((TakesEveryReplyForANewOne, "test_continued", (kind,)) for kind in OF_THE_OUTPUT),
        (Raises, "test_failure_ends_one_request", ()),
        (AppliesTwice, "test_scores", (LogitBiasSpec,)),
        (ActsInAnyStage, "test_stages", (Stage.PREFILL,)),
        (DropsCode, "test_code_of_a_request", ()),
        (DropsCode, "test_failure_ends_one_request", ()),
        (KeepsTheFirst, "test_several_specs", ()),
        (HasARealizerForEachSpec, "test_order_of_edits", ()),
        (DropsTheStopToken, "test_failure_ends_one_request", ()),
        (DropsTheStopToken, "test_failed_specs_end_their_request", ()),
        (RealizesNothing, "test_mixed_batch", ()),
        *((RealizesNothing, "test_kind", (kind,)) for kind in REALIZED),
        *((EditsACopy, "test_dtype", ("float16", kind)) for kind in REALIZED),
        *((EditsACopy, "test_dtype", ("bfloat16", kind)) for kind in REALIZED),
        # The scores that a suite sees are those of the first token: a kind that forces that one.
        (EditsInFloat32, "test_dtype", ("float16", ForcedTokenSequenceSpec)),
    ],
)
def test_wrong_backend_fails(wrong: type[LogitportEditor], case: str, arguments: tuple[Any, ...]):
    suite = ToySuite()
    run = getattr(suite, case)
    run(generate_with(LogitportEditor), *arguments)
    found = (
        RuntimeError
        if wrong in (Raises, NeverLetsAReplyEnd)
        else (AssertionError, pytest.fail.Exception)
    )
    with pytest.raises(found):
        run(generate_with(wrong), *arguments)


def test_a_failed_case_has_the_first_wrong_token():
    spec = ForcedTokenSequenceSpec((5, 6), EOS)
    with pytest.raises(AssertionError) as raised:
        ToySuite()._check(spec, (1,), Output([5, 7, 8]))
    asked = f"index 1 has token 7 in place of Force(token=6): {spec!r} in [5, 7, 8]"
    assert str(raised.value) == asked


@pytest.mark.parametrize(
    ("wrong", "case", "expected"),
    [
        (
            TakesEveryReplyForANewOne,
            "test_continued",
            r"After \[9\], which `continued` counts as output, expected \[8, 3, 0\], "
            r"got \[9, 8, 3, 0\]: ForcedTokenSequenceSpec\(",
        ),
        (
            RealizesNothing,
            "test_scores",
            r"expected -1000 for token \d+, got -.* \(96 tokens differ\): ForcedTokenSequenceSpec",
        ),
    ],
)
def test_a_failed_case_says_what_was_expected(
    wrong: type[LogitportEditor], case: str, expected: str
):
    with pytest.raises(AssertionError, match=expected):
        getattr(ToySuite(), case)(generate_with(wrong), ForcedTokenSequenceSpec)


@pytest.mark.parametrize("kind", [DrySpec, NoLoopSpec])
def test_the_model_must_repeat_itself(
    kind: type[LogitsProcessorSpec], monkeypatch: pytest.MonkeyPatch
):
    def chance(history: Sequence[int]) -> Any:
        return np.random.default_rng(history).standard_normal(VOCABULARY, np.float32)

    monkeypatch.setattr(conformance, "model", chance)
    with pytest.raises(pytest.skip.Exception, match="use a model that repeats itself"):
        ToySuite().test_kind(generate_with(LogitportEditor), kind)


@pytest.mark.parametrize("ids", [(1, 2), np.array([1, 2], np.int32), torch.tensor([1, 2])])
def test_outputs_of_any_kind_are_lists_of_integers(ids: Any):
    token_ids = Output(ids).token_ids
    assert token_ids == [1, 2]
    assert [*map(type, token_ids)] == [int, int]


def test_kinds_of_a_backend_are_classes():
    made = Backend("engine", realizes={ChoiceSpec}, lowers=[GrammarSpec])  # pyright: ignore
    assert (made.realizes, made.lowers) == (frozenset({ChoiceSpec}), frozenset({GrammarSpec}))
    kinds: tuple[Any, ...] = {"choice"}, ChoiceSpec, [ChoiceSpec(((1,),))], [{ChoiceSpec}]
    for wrong in kinds:
        with pytest.raises(TypeError, match=r"`realizes` of Backend 'engine': expected classes of"):
            Backend("engine", realizes=wrong)


@pytest.mark.parametrize("eos", [19, 20, 23, 24, 30, 33])
def test_any_token_may_end_an_output(eos: int):
    class Suite(ToySuite):
        eos_token_id = eos

    Suite().test_code_of_a_request(generate_with(LogitportEditor, eos))


def test_a_worker_without_the_plugin_ends_the_request():
    """Somebody else has admitted it."""
    free, other = (Running([5, 6, 7], [], 5) for _ in range(2))
    lacking = Running([1, 2], [], 5, attach({}, PluginSpec("not-here")))
    editor = LogitportEditor(VOCABULARY, EOS)
    editor.admit = lambda extra: None
    Engine(model, EOS, LogitportEditor(VOCABULARY, EOS)).run([free])
    Engine(model, EOS, editor).run([lacking, other])
    assert lacking.output_ids == [EOS]
    assert other.output_ids == free.output_ids


SUITES = """
from examples.new_backend.conformance import *

class ActsInAnyStage(LogitportEditor):
    def __init__(self, vocab_size, eos_token_id, stage):
        super().__init__(vocab_size, eos_token_id, Stage.DECODE)


class CountsCalls(LogitportEditor):
    def enter(self, row, running):
        super().enter(row, Running(running.prompt_ids, [1], 0, running.extra))


class Suite(ConformanceSuite):
    backend, vocab_size, eos_token_id, slots, long_prompt = BACKEND, VOCABULARY, EOS, 4, 100
    editor = LogitportEditor

    @pytest.fixture
    def generate(self):
        return generate_with(self.editor)


class TestUndeclared(Suite):
    editor = ActsInAnyStage


class TestDeclared(Suite):
    resumes, has_stages, attaches = False, False, False
    shows_scores, dtypes = False, ("float32",)


class TestCounting(TestDeclared):
    editor = CountsCalls
"""
SELECTED = (
    "TestUndeclared and stages or TestCounting and long_prompt"
    " or TestDeclared and (stages or handed_over or grammar or bfloat16-dry)"
)


@pytest.mark.parametrize(
    ("capability", "case"),
    [
        ("resumes", "test_resumption"),
        ("has_stages", "test_stages"),
        ("attaches", "test_attach"),
        ("shows_scores", "test_scores"),
        ("dtypes", "test_dtype"),
        ("slots", "test_slots_are_left_clean"),
        ("long_prompt", "test_long_prompt"),
        ("backend", "test_kind"),
        ("vocab_size", "test_kind"),
        ("eos_token_id", "test_kind"),
    ],
)
def test_what_is_not_declared_fails(capability: str, case: str):
    declared = {name: getattr(ToySuite, name) for name in base.CAPABILITIES.keys() - {capability}}
    suite: Any = type("Suite", (ConformanceSuite,), declared)()
    method = getattr(suite, case)
    arguments: dict[str, tuple[Any, ...]] = {
        "test_stages": (Stage.PREFILL,),
        "test_attach": (True,),
        "test_dtype": ("float16", ForcedTokenSequenceSpec),
    }
    of_kinds = "test_resumption", "test_scores", "test_kind"
    kind = (ForcedTokenSequenceSpec,) if case in of_kinds else ()
    with pytest.raises(pytest.fail.Exception, match=f"Declare `{capability}` in Suite: "):
        method(generate_with(LogitportEditor), *arguments.get(case, kind))
    with pytest.raises(pytest.fail.Exception, match=f"Declare `{capability}` in Suite: "):
        suite.test_declaration()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("backend", "toy"),
        ("vocab_size", 32),
        ("eos_token_id", None),
        ("eos_token_id", VOCABULARY),
        ("slots", 0),
        ("long_prompt", 0),
        ("long_prompt", None),
        ("resumes", "no"),
        ("dtypes", "float32"),
        ("dtypes", ()),
        ("dtypes", ("float33",)),
        ("dtypes", (np.float32,)),
    ],
)
def test_what_is_declared_wrongly_fails(name: str, value: Any):
    suite = type("Suite", (ToySuite,), {name: value})()
    expected = f"Declare `{name}` in Suite: .*; got {re.escape(repr(value))}"
    with pytest.raises(AssertionError, match=expected):
        suite.test_declaration()


@pytest.mark.parametrize("options", [(), ("-n", "1")], ids=["one process", "xdist"])
def test_what_is_printed(options: tuple[str, ...], tmp_path: Path):
    """What is not covered; and of a backend that ignores its stage, which nobody would notice."""
    file = tmp_path / "test_backend.py"
    file.write_text(SUITES)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options]
    command += ["-rs", "-k", SELECTED, str(file)]
    out = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout
    assert "4 failed" in out
    assert "Declare `has_stages` in TestUndeclared: whether `generate` can run" in out
    assert "loses no forced token: the backend must not count" in out
    skipped = re.findall(
        r"^SKIPPED (\[.)\] .*: Not covered by the conformance suite: (.*)$", out, re.M
    )
    assert sorted(skipped, key=lambda each: each[1]) == [
        ("[1", "toy: `grammar`, of which the suite has no example"),
        ("[3", "toy: `has_stages` is declared false"),
        ("[2", "toy: `resumes` is declared false"),
        ("[1", "toy: bfloat16, which `dtypes` does not have"),
    ]


def test_the_page_has_the_suite_of_the_example():
    source = (ROOT / "examples/new_backend/conformance.py").read_text(encoding="utf-8")
    page = text("docs/writing-a-backend.md")
    (suite,) = re.findall(r"^```python\n(class ToySuite.*?)^```", page, re.DOTALL | re.MULTILINE)
    code = {line.partition("  #")[0] for line in source.splitlines()}
    assert [line for line in suite.splitlines() if line not in code] == []
    for name in base.CAPABILITIES:
        assert re.search(rf"^\| .*`{name}`.* \| ", page, re.MULTILINE)
        assert f"    {name} = " in suite

"""``logitport replay``: a reply that obeys, a reply with one token changed, forms of replies."""

import copy
import json
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from logitport import spec as s
from logitport.adapters.cli.reply import Reply
from logitport.adapters.cli.steps import trace
from logitport.adapters.core import Vocabulary
from logitport.adapters.reference import combine, edit
from logitport.adapters.reference.kinds import KINDS, REALIZED
from logitport.adapters.reference.kinds.base import FreeRun
from logitport.spec.base import kind_of

from tests.support.strategies import specs

from .command import run

VOCAB = 32
STEPS = 10
REPLAYED = [kind for kind in REALIZED if kind is not s.PythonProcessorSpec]
ONE = {"prompt_ids": [1], "output_ids": [7, 8, 2]}


def row(spec: s.LogitsProcessorSpec, prompt: Sequence[int], output: Sequence[int]) -> Any:
    """The edited logits of a model that prefers tokens at random."""
    model = np.random.default_rng(len(output)).normal(size=VOCAB)
    return combine(model, [edit(spec, prompt, output)])


def greedy(spec: s.LogitsProcessorSpec, prompt: Sequence[int]) -> list[int]:
    output: list[int] = []
    while len(output) < STEPS:
        output.append(int(row(spec, prompt, output).argmax()))
    return output


def broken(spec: s.LogitsProcessorSpec, prompt: Sequence[int], output: Sequence[int]) -> list[int]:
    replayed = trace({"$": spec}, Reply(prompt, output, ()))
    steps = replayed.steps
    assert [step.token_id for step in steps] == list(output)
    assert not replayed.notes
    for step in steps:
        assert step.broken == ([] if step.obeyed else ["$"])
        assert step.obeyed or step.rule != "free"
    half = len(output) // 2
    again = trace({"$": spec}, Reply((*prompt, *output[:half]), output[half:], ()), continued=half)
    assert [step.why for step in again.steps] == [step.why for step in steps[half:]]
    return [step.index for step in steps if not step.obeyed]


def check_changed_tokens(spec: s.LogitsProcessorSpec, prompt: Sequence[int], far: float) -> int:
    """Check each change of one token; return how many of them break the spec."""
    output, count = greedy(spec, prompt), 0
    assert broken(spec, prompt, output) == []
    for i in range(STEPS):
        logits = row(spec, prompt, output[:i])
        for token in (int(logits.argmin()), (output[i] + 1) % VOCAB):
            changed = [*output[:i], token, *output[i + 1 :]]
            breaks = bool(logits[token] < logits.max() - far)
            assert (i in broken(spec, prompt, changed)) is breaks
            assert not breaks or broken(spec, prompt, changed)[0] == i
            count += breaks
    return count


@pytest.mark.parametrize("kind", REPLAYED, ids=kind_of)
def test_examples_with_one_token_changed(kind: Any):
    output = greedy(s.LogitBiasSpec({0: 0.0}), ())
    # After this prompt, the second token of the output continues a repetition.
    free = FreeRun((*output[:2], 3, *output[:1]), tuple(output), (28, 29, 30), 31)
    examples = KINDS[kind].examples(free)
    assert examples
    assert sum(check_changed_tokens(spec, free.prompt_ids, 900) for spec in examples)


@given(specs(VOCAB, kinds=REPLAYED), st.lists(st.integers(0, VOCAB - 1), max_size=4))
def test_any_spec_with_one_token_changed(spec: s.LogitsProcessorSpec, prompt: list[int]):
    check_changed_tokens(spec, prompt, 1e6)


def replay(folder: Path, specs: Any, reply: Any, *options: str | Path) -> Any:
    text = specs if isinstance(specs, str) else s.encode(specs)
    (folder / "spec.json").write_text(text)
    (folder / "reply.json").write_text(json.dumps(reply))
    return run("replay", folder / "spec.json", "--reply", folder / "reply.json", *options)


CONTENT = [{"logprob": 0}, {"logprob": -0.7}, {"logprob": -1}]
META = {
    "prompt_tokens": 1,
    "input_token_logprobs": [[None, 5, None]],
    "output_token_logprobs": [[0, 7, None], [-0.7, 8, None], [-1, 2, None]],
}
ANSWERS: list[Any] = [
    {**ONE, "logprobs": [0.0, -0.7, None]},
    {"choices": [{"token_ids": [7, 8, 2], "logprobs": {"token_logprobs": [0, -0.7, None]}}]},
    {"choices": [{"token_ids": [7, 8, 2], "logprobs": {"content": CONTENT}}]},
    [{"output_ids": [7, 8, 2], "meta_info": META}],
]

FORCED = s.ForcedTokenSequenceSpec((7, 8), 2)
BAN_TEXT = s.BannedTextSpec(("yes",))


# specs | the token that comes | the paths of the specs that it breaks
@pytest.mark.parametrize(
    ("specs", "token", "broken"),
    [
        ([s.ForcedTokenSequenceSpec((1,)), BAN_TEXT], 1, ["b"]),
        ([BAN_TEXT, s.ForcedTokenSequenceSpec((1,))], 1, ["a"]),
        ([s.ForcedTokenSequenceSpec((0,)), BAN_TEXT], 0, []),
        ([s.ForcedTokenSequenceSpec((1,)), BAN_TEXT], 0, ["a"]),
        ([s.ChoiceSpec(((1,),)), BAN_TEXT], 1, ["b"]),
        ([s.ForcedTokenSequenceSpec((1,)), s.LogitBiasSpec({0: 5000})], 1, []),
        ([s.LogitBiasSpec({1: -5000}), s.LogitBiasSpec({1: 5000})], 1, []),
        ([s.ForcedTokenSequenceSpec((1,)), s.ForcedTokenSequenceSpec((2,))], 1, ["b"]),
        ([s.ForcedTokenSequenceSpec((1,)), s.ForcedTokenSequenceSpec((2,))], 2, ["a"]),
        ([s.AllowedTokensSpec((0, 1)), s.ForcedTokenSequenceSpec((2,))], 2, ["a"]),
        ([s.AllowedTokensSpec((0, 1)), s.AllowedTokensSpec((2,))], 1, ["b"]),
        ([s.AllowedTokensSpec((0, 1)), s.BannedTokensSpec((0, 1))], 1, ["b"]),
        ([s.AllowedTokensSpec((0, 1)), s.AtEndSpec((2,), (1,))], 2, []),
        ([s.AllowedTokensSpec((0, 1)), s.AtEndSpec((2,), (3, 1))], 1, ["b"]),
        ([s.AtEndSpec((2,), (1,)), s.ForcedTokenSequenceSpec((1,))], 2, []),
        ([s.AtEndSpec((2,), (1,)), s.ForcedTokenSequenceSpec((0,))], 2, ["b"]),
    ],
)
def test_a_spec_that_another_overrides_is_broken(
    specs: list[s.LogitsProcessorSpec], token: int, broken: list[str]
):
    vocabulary = Vocabulary.of_tokens([b"no", b"yes", b"?"])
    named = dict(zip("ab", specs, strict=True))
    (step,) = trace(named, Reply(None, [token], ()), vocabulary=lambda: vocabulary).steps
    assert (step.obeyed, step.broken) == (not broken, broken)


PIECES = [b"no", b"yes", b"a", b" ", b"\xd0\x96", b"5", None]
A, B = 2, 5
END = s.AtEndSpec((A,), (B,))

# A spec, and tokens that break it: by themselves, or as far as one can see here.
BROKEN: list[tuple[s.LogitsProcessorSpec, list[int]]] = [
    (s.ForcedTokenSequenceSpec((A,)), [B]),
    (s.PromptBiasSpec(-1000), [A]),
    (s.LogitBiasSpec({A: 1000}), [B]),
    (s.SequenceBiasSpec(((A, B),), (1000,)), [A, A]),
    (s.AllowedTokensSpec((A,)), [B]),
    (s.BannedTokensSpec((A,)), [A]),
    (s.BannedSequencesSpec(((A, B),)), [A, B]),
    (s.BannedTextSpec(("yes",)), [1]),
    (s.MaxRunSpec(2, ("a",)), [A, A, A]),
    (s.AllowedScriptsSpec(("Latin",)), [4]),
    (s.BannedScriptsSpec(("Cyrillic",)), [4]),
    (s.NoRepeatNgramSpec(1, output_only=True), [A, A]),
    (s.NoLoopSpec(2, output_only=True), [A, A, A]),
    (s.DrySpec(1000.0, allowed_length=1), [A, A, A]),
    (s.MinTokensSpec(2, (B,)), [A, B]),
    (s.ForcedEndSpec(1, (A,)), [B, B]),
    (s.TriggerSpec((A,), (B,)), [A, A]),
    (s.ChoiceSpec(((A,), (0,))), [B]),
    (s.ThinkingBudgetSpec(1, (A,), (B,)), [A, 0, 0]),
    (s.AutomatonSpec((s.AutomatonState(force=A),)), [B]),
    (s.GrammarSpec(choices=("yes", "no")), [A]),
    (s.SamplingSpec(temperature=0.0), [A]),
    (s.ChainSpec((s.ChainStep(top_k=1),)), [A]),
    (s.WatermarkSpec("any"), [A]),
    (s.PluginSpec("any"), [A]),
    (s.PythonProcessorSpec(lambda: lambda output_ids, logits: None), [A]),
    (END, [B]),
    (END, [0]),  # ``max_tokens`` came before the text
    (s.AtEndSpec((A, 0), (B,)), [A]),  # and here within it
]


def test_a_broken_reply_is_never_all_well():
    """No kind says that all is well of a reply that breaks it, alone or within phases."""
    assert {type(spec) for spec, _ in BROKEN} == {*KINDS} - {s.PhasesSpec}
    vocabulary = Vocabulary.of_tokens(PIECES)
    for spec, output in BROKEN:
        reply = Reply((A,), output, ())
        assert trace({"$": spec}, reply, lambda: vocabulary).status, spec
        try:
            phases = s.PhasesSpec((s.Phase((spec,)),))
        except s.SpecError:  # it stands beside phases
            continue
        assert trace({"$": phases}, reply, lambda: vocabulary).status, phases
    assert trace({"$": END}, Reply(None, [0, A, B], ())).status == 0


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(7, 9)
    | st.floats()
    | st.sampled_from(["", "a", "\ud800", "\x1b[2J\nAll tokens obey the specs.", 10**400]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner),
    max_leaves=4,
)
GO_DEEPER = st.sampled_from([True] * 5 + [False])


@st.composite
def mutated(draw: st.DrawFn) -> Any:
    """An answer in which some values are others."""
    answer = {"": copy.deepcopy(draw(st.sampled_from(ANSWERS)))}
    for _ in range(draw(st.integers(1, 3))):
        parent: Any = answer
        key: Any = ""
        while isinstance(parent[key], dict | list) and parent[key] and draw(GO_DEEPER):
            parent = parent[key]
            key = draw(
                st.sampled_from([*(parent if isinstance(parent, dict) else range(len(parent)))])
            )
        parent[key] = draw(VALUES)
    return answer[""]


@given(mutated())
def test_a_reply_of_any_shape(reply: Any):
    with TemporaryDirectory() as folder:
        result = replay(Path(folder), [FORCED, s.PromptBiasSpec(1.0)], reply)
    assert isinstance(result.exception, SystemExit | None), result.exception
    assert result.exit_code in (0, 1, 2)
    if result.exit_code == 2:
        assert len(result.stderr.splitlines()) == 1
        assert result.stderr.rstrip("\n").isprintable()

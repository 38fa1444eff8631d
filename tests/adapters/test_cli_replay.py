"""``logitport replay``: a reply that obeys, a reply with one token changed, forms of replies."""

import copy
import json
from collections.abc import Sequence
from math import exp
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from logitport.adapters.cli.reply import Reply, read_reply
from logitport.adapters.cli.steps import trace
from logitport.adapters.core import Vocabulary
from logitport.adapters.reference import combine, edit
from logitport.adapters.reference.kinds import KINDS, REALIZED
from logitport.adapters.reference.kinds.base import FreeRun
from logitport.spec import (
    AllowedTokensSpec,
    BannedTextSpec,
    BannedTokensSpec,
    ChoiceSpec,
    ForcedTokenSequenceSpec,
    LogitBiasSpec,
    LogitsProcessorSpec,
    MinTokensSpec,
    Phase,
    PhaseEnd,
    PhasesSpec,
    PluginSpec,
    PromptBiasSpec,
    PythonProcessorSpec,
    SamplingSpec,
    encode,
)
from logitport.spec.base import kind_of
from tokenizers import Tokenizer
from tokenizers.decoders import Fuse, Replace
from tokenizers.decoders import Sequence as Sequence_
from tokenizers.models import WordLevel

from tests.support.strategies import specs

from .command import run

VOCAB = 32
STEPS = 10
REPLAYED = [kind for kind in REALIZED if kind is not PythonProcessorSpec]
ONE = {"prompt_ids": [1], "output_ids": [7, 8, 2]}


def row(spec: LogitsProcessorSpec, prompt: Sequence[int], output: Sequence[int]) -> Any:
    """The edited logits of a model that prefers tokens at random."""
    model = np.random.default_rng(len(output)).normal(size=VOCAB)
    return combine(model, [edit(spec, prompt, output)])


def greedy(spec: LogitsProcessorSpec, prompt: Sequence[int]) -> list[int]:
    output: list[int] = []
    while len(output) < STEPS:
        output.append(int(row(spec, prompt, output).argmax()))
    return output


def broken(spec: LogitsProcessorSpec, prompt: Sequence[int], output: Sequence[int]) -> list[int]:
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


def check_changed_tokens(spec: LogitsProcessorSpec, prompt: Sequence[int], far: float) -> int:
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
    output = greedy(LogitBiasSpec({0: 0.0}), ())
    # After this prompt, the second token of the output continues a repetition.
    free = FreeRun((*output[:2], 3, *output[:1]), tuple(output), (28, 29, 30), 31)
    examples = KINDS[kind].examples(free)
    assert examples
    assert sum(check_changed_tokens(spec, free.prompt_ids, 900) for spec in examples)


@given(specs(VOCAB, kinds=REPLAYED), st.lists(st.integers(0, VOCAB - 1), max_size=4))
def test_any_spec_with_one_token_changed(spec: LogitsProcessorSpec, prompt: list[int]):
    check_changed_tokens(spec, prompt, 1e6)


def replay(folder: Path, specs: Any, reply: Any, *options: str | Path) -> Any:
    text = specs if isinstance(specs, str) else encode(specs)
    (folder / "spec.json").write_text(text)
    (folder / "reply.json").write_text(json.dumps(reply))
    return run("replay", folder / "spec.json", "--reply", folder / "reply.json", *options)


FORCED, ALLOW = ForcedTokenSequenceSpec((7, 8), 2), AllowedTokensSpec((7, 8, 2))
CONTINUED = encode(FORCED, continued=2)


@pytest.mark.parametrize(
    "reply",
    [
        ONE,
        {"output_ids": [7, 8, 2]},
        {"choices": [{"token_ids": [7, 8, 2], "prompt_token_ids": [1]}]},
        {"prompt_token_ids": [1], "choices": [{"token_ids": [7, 8, 2], "logprobs": None}]},
        {"output_ids": [7, 8, 2], "meta_info": {"prompt_tokens": 1}},
        [{"output_ids": [7, 8, 2]}],
    ],
    ids=json.dumps,
)
def test_forms_of_replies(reply: Any, tmp_path: Path):
    result = replay(tmp_path, FORCED, reply)
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0] == "0: 7: $.specs[0] forced 7"
    assert lines[-1] == "All tokens obey the specs."


GREETING = Phase((ForcedTokenSequenceSpec((7, 8)),), (PhaseEnd(complete=True),))
UNTIL_9 = Phase((BannedTokensSpec((5,)), BannedTokensSpec((6,))), (PhaseEnd(token_ids=(9,)),))
FOOTER = PhasesSpec((GREETING, UNTIL_9, Phase((ForcedTokenSequenceSpec((10,)),))))
SKIPPING = PhasesSpec((Phase((), (PhaseEnd(token_ids=(9,), phase=2),)), *FOOTER.phases[1:]))
MANY = PhasesSpec((GREETING,) * 7 + (Phase((ChoiceSpec(((1,),)),)),))
NOT_SAID = "No token breaks a spec, but the reply ended before "


# a spec | a reply | the phases that it has not come to
@pytest.mark.parametrize(
    ("spec", "reply", "unreached"),
    [
        (FOOTER, [7], [1, 2]),
        (FOOTER, [7, 8], [2]),  # the model is to say more
        (FOOTER, [7, 8, 3, 2], [2]),
        (FOOTER, [7, 8, 3, 9], []),  # it is there, if with no token of it
        (FOOTER, [7, 8, 3, 9, 10, 2], []),
        (SKIPPING, [4, 4], [1, 2]),
        (SKIPPING, [4, 9], []),
        (MANY, [7, 8] * 6, [7]),
        (MANY, [7, 8] * 7, []),
        (PhasesSpec((GREETING,), eos_token_id=2), [7, 8, 2], []),
        (PhasesSpec((GREETING, UNTIL_9), repeat=True), [7, 8, 9, 7], []),
    ],
)
def test_phases_that_a_reply_has_not_come_to(
    spec: PhasesSpec, reply: list[int], unreached: list[int], tmp_path: Path
):
    result = replay(tmp_path, spec, {"output_ids": reply})
    paths = [f"$.specs[0].phases[{i}]" for i in unreached]
    verdict = NOT_SAID + ", ".join(paths) if paths else "All tokens obey the specs."
    assert verdict in result.stdout.splitlines(), result.output
    assert ("`stop_tokens` of `phases`" in result.stdout) is bool(paths)
    assert result.exit_code == bool(paths)
    assert (
        json.loads(replay(tmp_path, spec, {"output_ids": reply}, "--json").stdout)["unreached"]
        == paths
    )


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


@pytest.mark.parametrize("scored", ANSWERS, ids=json.dumps)
def test_probabilities(scored: Any, tmp_path: Path):
    result = replay(tmp_path, FORCED, scored)
    assert "1: 8: $.specs[0] forced 8, probability 0.5\n" in result.stdout


def test_the_prompt_of_sglang(tmp_path: Path):
    meta = {"prompt_tokens": 2, "input_token_logprobs": [[None, 5, None], [-1.5, 6, None]]}
    reply = {"output_ids": [5], "meta_info": meta}
    result = replay(tmp_path, PromptBiasSpec(2.0), reply)
    assert result.stdout.startswith("0: 5: $.specs[0] added +2 to this token")


BAN, BIAS = BannedTokensSpec((1, 2)), LogitBiasSpec({3: 2})
ADDED_AND_BANNED = "$.specs[0] added to 1 other token(s); $.specs[1] banned 1 token(s)"


@pytest.mark.parametrize(
    ("specs", "output", "line", "status"),
    [
        (FORCED, [7, 9], "1: 9: $.specs[0] forced 8; breaks $.specs[0]", 1),
        (ALLOW, [3], "0: 3: $.specs[0] allowed 3 token(s); breaks $.specs[0]", 1),
        (BAN, [3], "0: 3: $.specs[0] banned 2 token(s)", 0),
        (BIAS, [4], "0: 4: $.specs[0] added to 1 other token(s)", 0),
        ((LogitBiasSpec({3: 5000}), BannedTokensSpec((3,))), [4], f"0: 4: {ADDED_AND_BANNED}", 0),
    ],
)
def test_words(specs: Any, output: list[int], line: str, status: int, tmp_path: Path):
    result = replay(tmp_path, specs, {"output_ids": output})
    assert result.exit_code == status, result.output
    assert line in result.stdout.splitlines()


def test_json(tmp_path: Path):
    result = replay(tmp_path, FORCED, {"output_ids": [7, 9]}, "--json")
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert [step["rule"] for step in found["steps"]] == ["forced", "forced"]
    assert [step["obeyed"] for step in found["steps"]] == [True, False]
    assert found["steps"][1]["why"] == "$.specs[0] forced 8; breaks $.specs[0]"
    assert found["verdict"] == "1 token(s) break a spec, the first at index 1."
    assert (found["always"], found["notes"], found["unreached"]) == ({}, [], [])


@pytest.mark.parametrize(
    ("specs", "output", "shown"),
    [
        (BAN, [3, 4], ["banned 2 token(s)", "free", "free"]),
        (BAN, [3], ["banned 2 token(s)"]),
        (BIAS, [5, 6, 3], ["added to 1 other token(s)", "free", "free", "added +2 to this token"]),
        (BIAS, [5, 3], ["added to 1 other token(s)", "added +2 to this token"]),
        (MinTokensSpec(2, (2,)), [3, 4, 5], ["banned 1 token(s)"] * 2 + ["free"]),
        (ALLOW, [7, 7], ["allowed 3 token(s)"] * 2),
        (BAN, [3, 1], ["banned 2 token(s)", "free", "banned 2 token(s); breaks $.specs[0]"]),
    ],
)
def test_what_stands_at_most_tokens_is_said_once(
    specs: Any, output: list[int], shown: list[str], tmp_path: Path
):
    """A spec stands that acts at each token; what it does at most of them is said on top."""
    result = replay(tmp_path, specs, {"output_ids": output})
    lines = result.stdout.splitlines()[:-1]
    assert [line.rpartition(": ")[2].removeprefix("$.specs[0] ") for line in lines] == shown
    assert lines[0].startswith("Unless noted") == (len(shown) > len(output))
    found = json.loads(replay(tmp_path, specs, {"output_ids": output}, "--json").stdout)
    assert bool(found["always"]) == lines[0].startswith("Unless noted")
    assert [step["why"].removeprefix("$.specs[0] ") for step in found["steps"]] == shown[
        bool(found["always"]) :
    ]


@pytest.mark.parametrize("command", ["explain", "replay"])
def test_specs_of_a_configuration(command: str, tmp_path: Path):
    (tmp_path / "reply.json").write_text('{"output_ids": [5]}')
    options = ["--reply", tmp_path / "reply.json"] if command == "replay" else []
    spec = "[{kind: banned_tokens, token_ids: [5]}]"
    text = "[{kind: choice, from_text: {choices: [a]}}]"
    for content, status, named in (
        (f"default: {spec}", command == "replay", "$.default[0]"),
        (f"guard: {spec}\nown: add", command == "replay", "$.guard[0]"),
        ("own: add", 2, "expected specs in `guard` or `default`, got none"),
        ("own: ad\nx: 1", 2, "a.yaml: line 1: $.own: There is no value 'ad'; did you mean add?; "),
        (f"default: {text}", 2, "Use --tokenizer"),
    ):
        (tmp_path / "a.yaml").write_text(content)
        result = run(command, tmp_path / "a.yaml", *options)
        assert result.exit_code == status, result.output
        assert named in result.output


TOP = {"a": -1, "b": -2}
LIKELIEST = [*TOP.items()]


@pytest.mark.parametrize(
    ("part", "likeliest"),
    [
        ({"logprobs": {"token_logprobs": [-1], "top_logprobs": [TOP]}}, LIKELIEST),
        ({"logprobs": {"top_logprobs": [TOP | {"none": None}]}}, LIKELIEST),
        ({"meta_info": {"output_top_logprobs": [[[-1, 7, "a"], [-2, 8, "b"]]]}}, LIKELIEST),
        ({"meta_info": {"output_top_logprobs": [[[-1, 7, None]]]}}, [("token_id:7", -1)]),
        ({"logprobs": {"content": [{"logprob": -1, "top_logprobs": None}]}}, []),
    ],
    ids=["completion", "completion with a null", "SGLang", "SGLang, ids", "chat without"],
)
def test_the_likeliest_tokens(part: Any, likeliest: Any, tmp_path: Path):
    (tmp_path / "reply.json").write_text(json.dumps({"output_ids": [7], **part}))
    assert read_reply(str(tmp_path / "reply.json")).likeliest == [likeliest]


WORDS = {"no": 0, " Paris": 1, " Rome": 2, "\n": 3, "<a>": 4, "<b>": 5}
BY_ID = {"token_id:1": -0.05, "token_id:2": -3.0}


# specs | tokens | what each top_logprobs has | the line of the last token
@pytest.mark.parametrize(
    ("specs", "output", "likeliest", "line"),
    [
        (BAN, [0, 0], {" Rome": -3, " Paris": -0.05}, 'banned 2 token(s), displacing " Paris"'),
        (BAN, [0, 0], {"?": -0.05}, "free"),
        (BAN, [0, 0], {" Paris": -7}, "free"),
        (BAN, [0, 0], BY_ID, 'banned 2 token(s), displacing "token_id:1"'),
        (ChoiceSpec(((0, 2),)), [0, 2], {" Paris": -0.05}, 'forced 2, displacing " Paris"'),
        (AllowedTokensSpec((0, 2)), [2], {" Paris": -1}, 'allowed 2 token(s), displacing " Paris"'),
        (AllowedTokensSpec((0, 1)), [0], {" Paris": -1}, "allowed 2 token(s)"),
        (ForcedTokenSequenceSpec((2,)), [0], {" Paris": -1}, "forced 2; breaks $.specs[0]"),
        (BannedTokensSpec((4,)), [0, 0], {"<?>": -1}, "free"),
        (BannedTokensSpec((4, 5)), [0], {"<?>": -1}, 'banned 2 token(s), displacing "<?>"'),
    ],
)
def test_what_was_displaced(
    specs: Any, output: list[int], likeliest: dict[str, float], line: str, tmp_path: Path
):
    """A likelier token is named where a spec refuses each token with its text."""
    file = tmp_path / "tokenizer.json"
    tokenizer = Tokenizer(WordLevel(WORDS, unk_token="no"))
    tokenizer.decoder = Sequence_([Replace("<a>", "<?>"), Replace("<b>", "<?>"), Fuse()])
    tokenizer.save(str(file))
    top = [{"token": text, "logprob": each} for text, each in likeliest.items()]
    scored = {"content": [{"logprob": -4.7, "top_logprobs": top}] * len(output)}
    reply = {"output_ids": output, "logprobs": scored}
    done = replay(tmp_path, specs, reply, "--tokenizer", file)
    first = max(likeliest, key=lambda text: likeliest[text])
    tail = f", likeliest {json.dumps(first)} {exp(likeliest[first]):.2g}"
    tail = tail if likeliest[first] > -4.7 else ""
    last = done.stdout.splitlines()[-2]
    assert (
        last.partition('": ')[2].removeprefix("$.specs[0] ") == f"{line}, probability 0.0091{tail}"
    )


BAN_TEXT = BannedTextSpec(("yes",))
NO_TOKENIZER = "needs the vocabulary of the engine's tokenizer"
LATER = PhasesSpec((Phase((BAN_TEXT,), (PhaseEnd(n=3),)), Phase((FORCED,))))


ONE_OF_ONE = "1 of 1 spec(s) are not replayed; none is checked."
ONE_OF_TWO = "1 of 2 spec(s) are not replayed; all tokens obey the other 1."
ENGINES = "$.specs[0] `sampling` is not replayed: the engine realizes it. To replay the other"
NOT_HERE = "$.specs[1] `plugin` is not replayed: No plugin 'not-here' is installed"


# specs | output | status | the last line of the output | what is named on standard error
@pytest.mark.parametrize(
    ("specs", "output", "status", "verdict", "named"),
    [
        ([BAN_TEXT], [7], 2, ONE_OF_ONE, NO_TOKENIZER),
        ([SamplingSpec(temperature=0), FORCED], [7], 2, ONE_OF_TWO, ENGINES),
        ([ALLOW, PluginSpec("not-here")], [7], 2, ONE_OF_TWO, NOT_HERE),
        (
            *([LATER], [7], 2, ONE_OF_ONE),
            f"$.specs[0] `phases` is not replayed: `banned_text` {NO_TOKENIZER}, which is not "
            "known here - at `$.specs[0].phases[0].specs[0]`. Use --tokenizer to name the served "
            "model",
        ),
        (
            *([FORCED, BAN_TEXT], [9], 1, "1 token(s) break a spec, the first at index 0."),
            "$.specs[1] `banned_text` is not replayed",
        ),
    ],
    ids=lambda each: each[:20] if isinstance(each, str) else "",
)
def test_what_is_not_replayed_is_not_obeyed(
    specs: Any, output: list[int], status: int, verdict: str, named: str, tmp_path: Path
):
    result = replay(tmp_path, specs, {"output_ids": output})
    assert result.exit_code == status, result.output
    assert result.stdout.splitlines()[-1] == verdict
    assert named in result.stderr
    result = replay(tmp_path, specs, {"output_ids": output}, "--json")
    assert result.exit_code == status
    assert named in json.loads(result.stdout)["notes"][0]


# specs | the token that comes | the paths of the specs that it breaks
@pytest.mark.parametrize(
    ("specs", "token", "broken"),
    [
        ([ForcedTokenSequenceSpec((1,)), BAN_TEXT], 1, ["b"]),
        ([BAN_TEXT, ForcedTokenSequenceSpec((1,))], 1, ["a"]),
        ([ForcedTokenSequenceSpec((0,)), BAN_TEXT], 0, []),
        ([ForcedTokenSequenceSpec((1,)), BAN_TEXT], 0, ["a"]),
        ([ChoiceSpec(((1,),)), BAN_TEXT], 1, ["b"]),
        ([ForcedTokenSequenceSpec((1,)), LogitBiasSpec({0: 5000})], 1, []),
        ([LogitBiasSpec({1: -5000}), LogitBiasSpec({1: 5000})], 1, []),
        ([ForcedTokenSequenceSpec((1,)), ForcedTokenSequenceSpec((2,))], 1, ["b"]),
        ([ForcedTokenSequenceSpec((1,)), ForcedTokenSequenceSpec((2,))], 2, ["a"]),
        ([AllowedTokensSpec((0, 1)), ForcedTokenSequenceSpec((2,))], 2, ["a"]),
        ([AllowedTokensSpec((0, 1)), AllowedTokensSpec((2,))], 1, ["b"]),
        ([AllowedTokensSpec((0, 1)), BannedTokensSpec((0, 1))], 1, ["b"]),
    ],
)
def test_a_spec_that_another_overrides_is_broken(
    specs: list[LogitsProcessorSpec], token: int, broken: list[str]
):
    vocabulary = Vocabulary.of_tokens([b"no", b"yes", b"?"])
    named = dict(zip("ab", specs, strict=True))
    (step,) = trace(named, Reply(None, [token], ()), vocabulary=lambda: vocabulary).steps
    assert (step.obeyed, step.broken) == (not broken, broken)


@pytest.mark.parametrize(
    ("spec", "line", "status"),
    [
        (BannedTextSpec(("banana",)), '1: 1 "nana": $.specs[0] banned 1 token(s); breaks', 1),
        (BannedTextSpec(("banane",)), '1: 1 "nana": free', 0),
        (PhasesSpec((Phase((), (PhaseEnd(text="ba"),)), Phase((BAN,)))), "", 1),
    ],
)
def test_texts_are_those_of_the_tokenizer(spec: Any, line: str, status: int, tmp_path: Path):
    words = {"ba": 0, "nana": 1, "anana": 2, "xnana": 3}
    file = tmp_path / "tokenizer.json"
    tokenizer = Tokenizer(WordLevel(words, unk_token="ba"))
    tokenizer.decoder = Fuse()
    tokenizer.save(str(file))
    result = replay(tmp_path, spec, {"output_ids": [0, 1]}, "--tokenizer", file)
    assert result.exit_code == status, result.output
    assert line in result.stdout
    result = replay(tmp_path, spec, {"output_ids": [0, 1]})
    assert "is not replayed: `" in result.stderr
    assert "needs the vocabulary of the engine's tokenizer" in result.stderr


def test_a_reply_that_goes_on(tmp_path: Path):
    reply = {"prompt_ids": [1, 7, 8], "output_ids": [2]}
    assert replay(tmp_path, CONTINUED, reply).exit_code == 0
    assert replay(tmp_path, FORCED, reply).exit_code == 1


@pytest.mark.parametrize(
    ("specs", "reply", "message"),
    [
        (FORCED, {"choices": [{"text": "yes"}]}, '"return_token_ids": true'),
        (PromptBiasSpec(1.0), {"output_ids": [1]}, "reads the prompt"),
        (CONTINUED, {"output_ids": [1]}, "reads the prompt"),
        (CONTINUED, {"prompt_ids": [7], "output_ids": [1]}, "Expected at most 1, the prompt's"),
        (FORCED, [], "Expected a choice below 0"),
        (FORCED, 7, "Expected `object`, got `int`"),
        (FORCED, {"output_ids": ["7"]}, "Expected `int`, got `str` - at `$.output_ids[0]`"),
        (FORCED, {"output_ids": [1 << 64]}, "$.output_ids[0]"),
        (FORCED, {"output_ids": 7}, "Expected `array | null`, got `int` - at `$.output_ids`"),
        (FORCED, {"choices": [7]}, "Expected `object`, got `int` - at `$.choices[0]`"),
        (FORCED, {"output_ids": [7], "logprobs": ["a"]}, "got `str` - at `$.logprobs[0]`"),
        (FORCED, {"output_ids": [7], "logprobs": "a"}, "got `str` - at `$.logprobs`"),
    ],
)
def test_wrong_usage(specs: Any, reply: Any, message: str, tmp_path: Path):
    result = replay(tmp_path, specs, reply)
    assert result.exit_code == 2
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1


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
        result = replay(Path(folder), [FORCED, PromptBiasSpec(1.0)], reply)
    assert isinstance(result.exception, SystemExit | None), result.exception
    assert result.exit_code in (0, 1, 2)
    if result.exit_code == 2:
        assert len(result.stderr.splitlines()) == 1
        assert result.stderr.rstrip("\n").isprintable()

"""The operator's file: what becomes of it.

``tests/golden/commands/check_configuration.txt`` has what can be wrong with it.
"""

import json
import os
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml
from logitport import spec as s
from logitport.adapters import Policy, policy_of
from logitport.adapters.content import parse_yaml
from logitport.hooks import configuration
from logitport.hooks.configuration import VARIABLE, ConfigurationError, policy

from tests.hooks.test_hello_world import Characters, unwanted
from tests.support.paths import GOLDEN, ROOT


def ids(text: str) -> tuple[int, ...]:
    return tuple(map(ord, text))


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv(VARIABLE, raising=False)


def made(content: Any) -> Policy:
    found = policy(Characters, content)
    assert found is not None
    return found


def fields_of(found: Policy) -> dict[str, Any]:
    return {each.name: getattr(found, each.name) for each in fields(Policy)}


TAGGED = {"kind": "thinking_budget", "budget": 3, "tags": "model"}


@pytest.mark.parametrize(
    ("tags", "texts"),
    [
        ("hunyuan-a13b", ("<think>", "</think>", "\n<answer>\n")),
        ({"start": "[", "end": "]"}, ("[", "]", "")),
        ({"end": ["]", "}"], "start": "[", "then": "So"}, ("[", "]", "So")),
    ],
)
def test_tags_that_a_file_states(tags: Any, texts: tuple[str, ...]):
    """Wherever they stand in the file, its own specs have them, and its requests."""
    policy = made({"default": [TAGGED], "presets": {"a": [TAGGED]}, "tags": tags})
    for (spec,) in (policy.default, policy.presets["a"]):
        assert isinstance(spec, s.ThinkingBudgetSpec)
        found = spec.start_token_ids, spec.end_token_ids, spec.then_token_ids
        assert found == tuple(map(ids, texts))
    assert policy.describe()["tags"]["start"] == texts[:1]
    assert policy.digest != made({"default": [TAGGED], "tags": {"start": "(", "end": ")"}}).digest


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ({"tags": "olmo"}, r"\$.tags: There is no family 'olmo'; did you mean olmo-3\?"),
        ({"tags": "magistral"}, r"\$.tags: The tokenizer has no token '\[THINK\]'"),
        ({"tags": {"start": "a"}}, r"\$.tags: Object missing required field `end`"),
        ({"tags": 5}, r"\$.tags: Expected `object`, got `int`"),
        ({"default": [TAGGED]}, r"\$.default\[0\].tags: The model's thinking tags are not known"),
    ],
)
def test_tags_that_a_file_cannot_state(content: Any, problem: str):
    with pytest.raises(ConfigurationError, match=problem):
        made(content)


YAML = """
# The bot of the help desk.
default:
  - kind: banned_tokens
    token_ids: [5]
own: add
presets:
  yes-no:
    - kind: choice
      from_text: {texts: ["yes", "no"]}
forbid: [prompt_bias, continued]
"""
TOML = """
own = "add"
forbid = ["prompt_bias", "continued"]
default = [{kind = "banned_tokens", token_ids = [5]}]
[[presets.yes-no]]
kind = "choice"
from_text = {texts = ["yes", "no"]}
"""
JSON = json.dumps(yaml.safe_load(YAML))


@pytest.mark.parametrize(
    ("name", "text"), [("a.yaml", YAML), ("a.yml", YAML), ("a.toml", TOML), ("a.json", JSON)]
)
def test_each_format(name: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file = tmp_path / name
    file.write_text(text)
    monkeypatch.setenv(VARIABLE, str(file))
    found = policy_of(Characters)  # through the entry point
    assert found is not None
    assert fields_of(found) == fields_of(
        Policy(
            default=(s.BannedTokensSpec((5,)),),
            own="add",
            presets={"yes-no": (s.ChoiceSpec((ids("yes"), ids("no")), 0),)},
            forbid=frozenset({"prompt_bias", "continued"}),
        )
    )


def test_a_file_of_an_earlier_release(monkeypatch: pytest.MonkeyPatch):
    """Change the file only by adding what a release adds."""
    monkeypatch.setenv("NEWS_KEY", "5")
    found = fields_of(made(parse_yaml((GOLDEN / "configuration_v1.yaml").read_text())[0]))
    assert found.pop("profiles").keys() == {"news"}
    assert found.pop("mark_bounds")["top_k"] == 3
    choice = (s.ChoiceSpec((ids("yes"), ids("no")), 0),)
    expected = Policy(
        default=(s.ThinkingBudgetSpec(512, (6,), (7,)), s.BannedSequencesSpec((ids("cat"),))),
        own="add",
        guard=(s.BannedTokensSpec((5,)),),
        presets={"yes-no": choice, "old": choice},
        forbid=frozenset({"prompt_bias", "continued"}),
        efforts={name: i for i, name in enumerate(configuration.EFFORTS)},
        required="news",
        unmarked=frozenset({"json", "grammar"}),
    )
    assert found.items() <= fields_of(expected).items()


def test_nothing_is_configured(monkeypatch: pytest.MonkeyPatch):
    assert policy(unwanted) is None
    assert policy_of(unwanted) is None
    monkeypatch.setenv(VARIABLE, "")
    assert policy(unwanted) is None


def test_the_engines_own_settings(tmp_path: Path):
    file = tmp_path / "a.yaml"
    file.write_text("own: refuse")
    assert made(str(file)).own == made({"own": "refuse"}).own == "refuse"


# a spec of the file | the spec
@pytest.mark.parametrize(
    ("fields", "spec"),
    [
        (
            "{kind: forced_sequence, from_text: {text: Hi, eos_token_id: null}}",
            s.ForcedTokenSequenceSpec(ids("Hi")),
        ),
        (
            "{kind: banned_sequences, from_words: {words: [ab], leading_space: with}}",
            s.BannedSequencesSpec((ids(" ab"),)),
        ),
        ("{kind: logit_bias, bias: {'5': 2.5}}", s.LogitBiasSpec({5: 2.5})),
        ("{kind: logit_bias, bias: {5: 2.5}}", s.LogitBiasSpec({5: 2.5})),
        ("{kind: min_tokens, from_tokenizer: {n: 3}}", s.MinTokensSpec(3, (0,))),
        ("{kind: banned_text, texts: [ab]}", s.BannedTextSpec(("ab",))),
        ("{kind: choice, texts: [a]}", s.ChoiceSpec((ids("a"),), 0)),
        ("{kind: choice, from_text: {texts: [a]}}", s.ChoiceSpec((ids("a"),), 0)),
        (
            "{kind: trigger, from_text: {trigger_text: a, text: b}}",
            s.TriggerSpec(ids("a"), ids("b")),
        ),
        ("{kind: plugin, name: a, params: {from_text: 1}}", s.PluginSpec("a", {"from_text": 1})),
        (
            "{kind: phases, phases: [{specs: [{kind: choice, from_text: {texts: [a]}}], "
            "ends: [{n: 1}]}, {ends: [{text: b}]}]}",
            s.PhasesSpec(
                (
                    s.Phase((s.ChoiceSpec((ids("a"),), 0),), (s.PhaseEnd(n=1),)),
                    s.Phase((), (s.PhaseEnd(text="b"),)),
                )
            ),
        ),
    ],
)
def test_specs(fields: str, spec: s.LogitsProcessorSpec):
    assert made(parse_yaml(f"default: [{fields}]")[0]).default == (spec,)


def test_fields_of_the_engine():
    assert made({"effort": {"low": 5, "high": 50}}).efforts == {"low": 5, "high": 50}


def test_the_tokenizer_is_for_texts():
    found = policy(unwanted, {"default": [{"kind": "banned_tokens", "token_ids": [5]}]})
    assert found is not None


BAN = {"kind": "banned_tokens", "token_ids": [5]}


@pytest.mark.parametrize(
    ("token_ids", "count", "path"),
    [([5] * 40_000, 1, "$.default[0]"), ([*range(9_000)], 2, "$.default[1]")],
)
def test_more_than_a_payload(token_ids: list[int], count: int, path: str):
    with pytest.raises(ConfigurationError) as raised:
        made({"default": [{**BAN, "token_ids": token_ids}] * count})
    (problem,) = raised.value.problems
    assert problem.startswith(f"{path}: Expected ")
    assert str(raised.value).splitlines()[0].endswith(" has a problem:")


def test_all_problems_with_their_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file = tmp_path / "wrong.yaml"
    file.write_text(
        "default:\n- kind: banned_tokens\n  token_ids: [-5]\n"
        "own: ad\nforbid:\n- plugin\n- plugins\n"
    )
    monkeypatch.setenv(VARIABLE, str(file))
    with pytest.raises(ConfigurationError) as raised:
        policy_of(Characters)
    assert str(raised.value) == (
        f"{file} has 3 problems:\n"
        "  line 3: $.default[0].token_ids[0]: Expected `int` >= 0\n"
        "  line 4: $.own: There is no value 'ad'; did you mean add?\n"
        "  line 7: $.forbid[1]: There is no kind 'plugins'; did you mean plugin?"
    )


def test_without_a_tokenizer_a_configuration_is_only_checked():
    made = {"kind": "choice", "from_text": {"texts": ["a"]}}
    texts = {"kind": "choice", "texts": ["a"]}
    checked = policy(None, {"default": [made, BAN], "presets": {"a": [texts]}})
    assert checked is not None
    assert checked.presets == {"a": ()}
    with pytest.raises(ConfigurationError, match="Expected `array`"):
        policy(None, {"presets": {"a": [{"kind": "choice", "texts": 1}]}})


def test_the_start_up_line(caplog: pytest.LogCaptureFixture):
    caplog.set_level("INFO", logger="logitport")  # an engine of an earlier test may ask for less
    policy(unwanted, {"effort": {"low": 5, "high": 50}, "forbid": ["dry"]})
    (line,) = caplog.messages
    start, rules = line.split(": {", 1)
    made = r"logitport: logitport in the engine's configuration: policy [0-9a-f]{16}"
    assert re.fullmatch(made, start)
    assert json.loads("{" + rules) == {
        **{"guard": [], "default": [], "own": "replace", "presets": [], "forbid": ["dry"]},
        "effort": {"low": 5, "high": 50},
    }


BOMB = "b0: &b0 [x]\n" + "".join(
    f"b{i}: &b{i} [{', '.join([f'*b{i - 1}'] * 9)}]\n" for i in range(1, 9)
)
"""Eight lines of nine aliases each: 43 million values."""


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("a.yaml", "own: [", "line 1: column 7: while parsing"),
        ("a.yaml", "own: add\nown: add\n", "line 2: $.own is there twice"),
        ("a.yaml", "", "$: Expected an object"),
        ("a.json", '{"own" "add"}', "line 1"),
        ("a.toml", "own = add", "line 1, column 7"),
        ("a.json", '{"own": "add",\n "own": "add"}', "line 2: $.own is there twice"),
        ("a.json", '{"presets": {},\n\t"own": "ad"}', "line 2: $.own: There is no value 'ad'"),
        ("a.yaml", "own: \a", "unacceptable character"),
        ("a.yaml", "default: &a [*a]", "$.default[0] is an alias of the value in line 1: write"),
        ("a.yaml", "own: &a add\npresets: {m: {own: *a}}", "$.presets.m.own is an alias"),
        ("a.yaml", "own: &a {x: 1}\npresets: {<<: *a}", "$.presets.<< is an alias"),
        ("a.yaml", BOMB, "$.b1[0] is an alias of the value in line 1"),
        ("a.yaml", "own: " + "1:" * 60 + "1", "$.own: expected a number of 100 characters or less"),
        ("a.yaml", "own: " + "1:" * 60 + "1.5", "$.own: expected a number of 100 characters"),
        ("a.yaml", "#" * (1 << 20) + "\nown: add", "expected at most 1,048,576 bytes"),
        ("a.yaml", "own: " + 3000 * "[" + 3000 * "]", "nested too deeply"),
        ("a.json", '{"own": ' + 3000 * "[" + 3000 * "]" + "}", "nested too deeply"),
        ("a.toml", "own = " + 3000 * "[" + 3000 * "]", "nested too deeply"),
        ("a.yaml", 'own: !!int ""', "does not fit its tag"),
        ("a.yaml", "own: !!bool x", "does not fit its tag"),
        ("a.yaml", "own: !!timestamp x", "does not fit its tag"),
        ("a.yaml", "own: \udcff", "expected UTF-8, got the byte 0xff at 5"),
    ],
)
def test_what_cannot_be_parsed(
    name: str, text: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    # Importing lm-format-enforcer, as vLLM does, makes every PyYAML loader read times as text.
    of_text = yaml.SafeLoader.construct_yaml_str
    monkeypatch.setitem(yaml.SafeLoader.yaml_constructors, "tag:yaml.org,2002:timestamp", of_text)
    file = tmp_path / name
    file.write_text(text, encoding="utf-8", errors="surrogateescape")
    monkeypatch.setenv(VARIABLE, str(file))
    with pytest.raises(ConfigurationError, match="has a problem") as raised:
        policy(unwanted)
    assert problem in str(raised.value)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.json", '{\n\t"default": [{"kind": "banned_text", "texts": ["\\ud83d\\ude00"]}]}'),
        ("a.json", '\ufeff{"default": [{"kind": "logit_bias", "bias": {"5": 1e-5}}]}'),
        ("a.toml", '\ufeffdefault = [{kind = "logit_bias", bias = {5 = 1e-5}}]'),
        ("a.yaml", '\ufeffdefault: [{kind: banned_text, texts: ["\\U0001F600"]}]\r\n'),
        (
            "a.yaml",
            "default: [{kind: logit_bias, bias: {5: 0.00001}}]\n"
            "presets: {a: [{kind: dry, multiplier: 1}], a.b: [{kind: dry, multiplier: 1}]}",
        ),
        ("a.yaml", "default: [{kind: logit_bias, bias: {5: 1.0e-5}}]\n"),
    ],
)
def test_odd_files(name: str, text: str, tmp_path: Path):
    file = tmp_path / name
    file.write_bytes(text.encode())
    assert made(str(file)).default in [(s.BannedTextSpec(("😀",)),), (s.LogitBiasSpec({5: 1e-5}),)]


def test_a_file_that_is_not_there(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(VARIABLE, "/nowhere.yaml")
    with pytest.raises(FileNotFoundError):
        policy(unwanted)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", ["pipe", "/dev/zero", "/dev/null"])
def test_what_is_no_regular_file(name: str, tmp_path: Path):
    """A pipe would be waited for, and a device has no end."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigurationError, match="expected a regular file, got a pipe or"):
        made(str(tmp_path / name))


HOSTILE = "a\x1b[2J\nlogitport: all is well\u202e\x9b"


@pytest.mark.parametrize(
    "content",
    [
        {HOSTILE: 1},
        {"presets": {HOSTILE: [BAN]}},
        {"presets": {HOSTILE: [{"kind": HOSTILE}]}},
        {"default": [{"kind": HOSTILE}]},
        {"default": [{**BAN, HOSTILE: 1}]},
        {"default": [{"kind": "choice", "from_text": {}, HOSTILE: 1}]},
        {"default": [{"kind": "choice", "from_text": {HOSTILE: 1}}]},
        {"forbid": [HOSTILE]},
        {"effort": {HOSTILE: 1}},
        {"own": HOSTILE},
    ],
    ids=lambda content: next(iter(content)) if HOSTILE not in content else "field",
)
@pytest.mark.parametrize("as_file", [False, True])
def test_names_cannot_steer_a_terminal(content: Any, as_file: bool, tmp_path: Path):
    if as_file:
        (tmp_path / f"{HOSTILE[:6]}.json").write_text(json.dumps(content))
    with pytest.raises(ConfigurationError) as raised:
        made(str(tmp_path / f"{HOSTILE[:6]}.json") if as_file else content)
    first, *problems = str(raised.value).split("\n")
    assert problems == [f"  {each}" for each in raised.value.problems]
    assert all(line.isprintable() for line in (first, *problems))


def test_two_configurations(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(VARIABLE, "/nowhere.yaml")
    with pytest.raises(ConfigurationError, match="drop one"):
        policy(unwanted, {"own": "add"})


def test_the_examples_of_the_documentation():
    page = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    every = re.findall(r"^```yaml\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    # One is a line for editors, and one a configuration of pre-commit.
    first, guarded, second, chosen = [
        each for each in every if not each.startswith(("repos:", "# yaml"))
    ]
    assert set(made(parse_yaml(first)[0]).presets) == {"yes-no", "brief"}
    assert made(parse_yaml(guarded)[0]).guard
    found = policy(None, parse_yaml(second)[0])  # its tags need a whole tokenizer
    assert found is not None
    assert not found.default
    stated = {**parse_yaml(chosen)[0], "tags": {"start": "[", "end": "]"}}
    payload = s.decode([{"kind": "plugin", "name": "brief", "params": {"budget": 256}}])
    assert made(stated).resolve(payload).specs == (s.ThinkingBudgetSpec(256, ids("["), ids("]")),)


def test_the_example_of_the_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("NEWS_KEY", "1")
    assert configuration.__doc__ is not None
    text = configuration.__doc__.split("::\n\n")[1].split("\n\nA spec")[0]
    content, _ = parse_yaml(text)
    del content["default"]  # its tags need a whole tokenizer
    file = tmp_path / "a.yaml"
    file.write_text(yaml.safe_dump(content))
    found = made(str(file))
    assert (found.own, found.source and found.source[0]) == ("add", str(file))

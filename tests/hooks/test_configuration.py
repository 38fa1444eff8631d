"""The operator's file: what becomes of it, and all that can be wrong with it."""

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from logitport.adapters import Policy, policy_of
from logitport.hooks import configuration
from logitport.hooks.configuration import VARIABLE, ConfigurationError, policy
from logitport.hooks.content import parse_yaml
from logitport.spec import (
    BannedSequencesSpec,
    BannedTextSpec,
    BannedTokensSpec,
    ChoiceSpec,
    ForcedTokenSequenceSpec,
    LogitBiasSpec,
    MinTokensSpec,
    Phase,
    PhaseEnd,
    PhasesSpec,
    PluginSpec,
)

from tests.hooks.test_hello_world import Characters, unwanted
from tests.support.paths import ROOT


def ids(text: str) -> tuple[int, ...]:
    return tuple(map(ord, text))


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv(VARIABLE, raising=False)


def made(content: Any) -> Policy:
    found = policy(Characters, (), content)
    assert found is not None
    return found


YAML = """
# The bot of the help desk.
default:
  - kind: banned_tokens
    token_ids: [5]
own: add
presets:
  yes-no:
    - kind: choice
      from_text: {choices: ["yes", "no"]}
forbid: [prompt_bias, continued]
"""
TOML = """
own = "add"
forbid = ["prompt_bias", "continued"]
default = [{kind = "banned_tokens", token_ids = [5]}]
[[presets.yes-no]]
kind = "choice"
from_text = {choices = ["yes", "no"]}
"""
JSON = json.dumps(
    {
        "default": [{"kind": "banned_tokens", "token_ids": [5]}],
        "own": "add",
        "presets": {"yes-no": [{"kind": "choice", "from_text": {"choices": ["yes", "no"]}}]},
        "forbid": ["prompt_bias", "continued"],
    }
)


@pytest.mark.parametrize(
    ("name", "text"), [("a.yaml", YAML), ("a.yml", YAML), ("a.toml", TOML), ("a.json", JSON)]
)
def test_each_format(name: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file = tmp_path / name
    file.write_text(text)
    monkeypatch.setenv(VARIABLE, str(file))
    found = policy_of(Characters)  # through the entry point
    assert found is not None
    assert vars(found) == vars(
        Policy(
            default=(BannedTokensSpec((5,)),),
            own="add",
            presets={"yes-no": (ChoiceSpec((ids("yes"), ids("no")), 0),)},
            forbid=frozenset({"prompt_bias", "continued"}),
        )
    )


def test_nothing_is_configured(monkeypatch: pytest.MonkeyPatch):
    assert policy(unwanted) is None
    assert policy_of(unwanted) is None
    monkeypatch.setenv(VARIABLE, "")
    assert policy(unwanted) is None


def test_the_engines_own_settings(tmp_path: Path):
    file = tmp_path / "a.yaml"
    file.write_text("own: refuse")
    assert made(str(file)).own == made({"own": "refuse"}).own == "refuse"


# fields of the file | the spec
@pytest.mark.parametrize(
    ("fields", "spec"),
    [
        (
            {"kind": "forced_sequence", "from_text": {"text": "Hi", "eos_token_id": None}},
            ForcedTokenSequenceSpec(ids("Hi")),
        ),
        (
            {"kind": "banned_sequences", "from_words": {"words": ["ab"], "leading_space": "with"}},
            BannedSequencesSpec((ids(" ab"),)),
        ),
        ({"kind": "logit_bias", "bias": {"5": 2.5}}, LogitBiasSpec({5: 2.5})),
        ({"kind": "logit_bias", "bias": {5: 2.5}}, LogitBiasSpec({5: 2.5})),
        ({"kind": "min_tokens", "from_tokenizer": {"n": 3}}, MinTokensSpec(3, (0,))),
        ({"kind": "banned_text", "texts": ["ab"]}, BannedTextSpec(("ab",))),
        ({"kind": "choice", "texts": ["a"]}, ChoiceSpec((ids("a"),), 0)),
        (
            {"kind": "plugin", "name": "ours", "params": {"from_text": 1}},
            PluginSpec("ours", {"from_text": 1}),
        ),
        (
            {
                "kind": "phases",
                "phases": [
                    {
                        "specs": [{"kind": "choice", "from_text": {"choices": ["a"]}}],
                        "ends": [{"n": 1}],
                    },
                    {"ends": [{"text": "b"}]},
                ],
            },
            PhasesSpec(
                (
                    Phase((ChoiceSpec((ids("a"),), 0),), (PhaseEnd(n=1),)),
                    Phase((), (PhaseEnd(text="b"),)),
                )
            ),
        ),
    ],
    ids=lambda each: each["kind"] if isinstance(each, dict) else "",
)
def test_specs(fields: dict[str, Any], spec: Any):
    assert made({"default": [fields]}).default == (spec,)


def test_fields_of_the_engine():
    assert made({"effort": {"low": 5, "high": 50}}).efforts == {"low": 5, "high": 50}


def test_the_tokenizer_is_for_texts():
    found = policy(unwanted, (), {"default": [{"kind": "banned_tokens", "token_ids": [5]}]})
    assert found is not None


BAN = {"kind": "banned_tokens", "token_ids": [5]}
FORCE = {"kind": "forced_sequence", "token_ids": [5]}


# content | where | what is wrong
@pytest.mark.parametrize(
    ("content", "path", "message"),
    [
        ([], "$", "Expected an object with default, own, guard, presets, forbid, "),
        ({"defaults": []}, "$.defaults", "no field 'defaults'; did you mean default?"),
        (
            {"x": []},
            "$.x",
            "no field 'x'; there are default, effort, forbid, ",
        ),
        ({"own": 1}, "$.own", "no value 1; there are add,"),
        ({"ceiling": {"specs": 1}}, "$.ceiling", "LOGITPORT_LIMITS"),
        ({"models": {"m": {}}}, "$.models", "a file of its own"),
        ({7: {"own": "add"}}, "$.7", "There is no field 7; there are default"),
        ({"effort": 5}, "$.effort", "Expected `object`, got `int`"),
        ({"forbid_fields": ["seed"]}, "$.forbid_fields", "This is a gateway's business"),
        ({"default_fields": {}}, "$.default_fields", "in SGLang the model's `generation_config"),
        ({"forbid": "plugin"}, "$.forbid", "Expected `array`, got `str`"),
        ({"forbid": ["grammar"]}, "$.forbid[0]", "`grammar` travels in fields of the engine"),
        ({"default": BAN}, "$.default", "Expected a list of specs"),
        ({"default": [5]}, "$.default[0]", "Expected `object`, got `int`"),
        ({"default": [BAN, None]}, "$.default[1]: Expected a spec, got null", ""),
        (
            {"default": [{"kind": "phases", "phases": [{"specs": [BAN, None]}]}]},
            "$.default[0].phases[0].specs[1]: Expected a spec, got null",
            "",
        ),
        ({"default": [{"kind": []}]}, "$.default[0].kind", "Expected `str`"),
        (
            {"default": [{"kind": "choice", "from_text": {}, 5: 1, "n": 1}]},
            "$.default[0]",
            "Expected nothing beside from_text, got 5, n",
        ),
        ({"default": [{**BAN, "token_ids": [5] * 40_000}]}, "$.default[0]: Expected a payload", ""),
        ({"default": [{**BAN, "token_ids": [*range(9_000)]}] * 2}, "$.default[1]: Expected", ""),
        ({"default": [BAN] * 17}, "$.default: Expected 1 to 16 specs, got 17", ""),
        ({"default": [{"kind": "x"}]}, "$.default[0].kind", "Invalid value 'x'; "),
        ({"default": [{**BAN, "n": 1}]}, "$.default[0]", "unknown field `n`"),
        ({"default": [BAN, {"kind": "grammar", "regex": "a"}]}, "$.default[1]", "cannot fill in"),
        ({"default": [BAN, FORCE]}, "$.default[1].token_ids[0]: Conflicts with `$.default[0]`", ""),
        ({"guard": [FORCE]}, "$.guard[0]", "`forced_sequence` forces tokens into a reply"),
        ({"presets": {"a b": [BAN]}}, "$.presets.a b", "No name for a preset: "),
        ({"presets": {"a": []}}, "$.presets.a", "Expected a list of specs for the preset 'a'"),
        ({"presets": {"a": [{}]}}, "$.presets.a[0]", "missing required field `kind`"),
        (
            {"default": [{**FORCE, "from_text": {"text": "a"}}]},
            "$.default[0]",
            "Expected nothing beside from_text, got token_ids",
        ),
        (
            {"default": [{"kind": "choice", "from_words": {"words": ["a"]}}]},
            "$.default[0].from_words",
            "ChoiceSpec has no from_words; it has from_text",
        ),
        (
            {"default": [{"kind": "choice", "from_text": {"choices": [""]}}]},
            "$.default[0].from_text",
            "The tokenizer makes no tokens of ''",
        ),
        (
            {
                "default": [
                    {"kind": "phases", "phases": [{"specs": [{"kind": "choice", "from_text": {}}]}]}
                ]
            },
            "$.default[0].phases[0].specs[0].from_text",
            "Expected the argument '",
        ),
    ],
)
def test_wrong(content: Any, path: str, message: str):
    with pytest.raises(ConfigurationError) as raised:
        made(content)
    (problem,) = raised.value.problems
    assert problem.startswith(path), problem
    assert message in problem
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


@pytest.mark.parametrize(
    ("content", "problems"),
    [
        (
            {"effort": {"low": -1, "high": "x", "hi": 1}},
            [
                "$.effort.low: Expected `int` >= 0",
                "$.effort.high: Expected `int`, got `str`",
                "$.effort.hi: There is no effort 'hi'; did you mean high?",
            ],
        ),
    ],
)
def test_all_problems_of_a_section(content: Any, problems: list[str]):
    with pytest.raises(ConfigurationError) as raised:
        policy(unwanted, (), content)
    assert sorted(raised.value.problems) == sorted(problems)


@pytest.mark.parametrize("tokenizer", [Characters, None])
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"wrds": ["a"]}, "There is no argument 'wrds'; did you mean words?"),
        ({"x": 1}, "There is no argument 'x'; there are leading_space, "),
        ({}, "Expected the argument 'words'"),
        (["a"], "Expected an object with words, leading_space"),
    ],
)
def test_arguments_of_constructors(tokenizer: Any, arguments: Any, message: str):
    content = {"default": [{"kind": "banned_sequences", "from_words": arguments}]}
    with pytest.raises(ConfigurationError) as raised:
        policy(tokenizer, (), content)
    (problem,) = raised.value.problems
    assert problem.startswith(f"$.default[0].from_words: {message}")


@pytest.mark.parametrize(
    "fields",
    [
        {"kind": "choice", "from_text": {"choices": [True]}},
        {"kind": "banned_sequences", "from_words": {"words": [True]}},
    ],
)
def test_a_text_without_quotes(fields: dict[str, Any]):
    """YAML takes ``yes`` for a boolean."""
    with pytest.raises(ConfigurationError, match="Expected a text, in quotes, got True"):
        policy(Characters, (), {"default": [fields]})


def test_without_a_tokenizer_a_configuration_is_only_checked():
    made = {"kind": "choice", "from_text": {"choices": ["a"]}}
    texts = {"kind": "choice", "texts": ["a"]}
    checked = policy(None, (), {"default": [made, BAN], "presets": {"a": [texts]}})
    assert checked is not None
    assert checked.presets == {"a": ()}
    with pytest.raises(ConfigurationError, match="Expected `array`"):
        policy(None, (), {"presets": {"a": [{"kind": "choice", "texts": 1}]}})


def test_the_start_up_line(caplog: pytest.LogCaptureFixture):
    caplog.set_level("INFO", logger="logitport")  # an engine of an earlier test may ask for less
    policy(None, (), {"effort": {"low": 5, "high": 50}, "forbid": ["dry"]})
    (line,) = caplog.messages
    assert line.startswith("logitport: logitport in the engine's configuration: ")
    assert json.loads(line.partition("configuration: ")[2]) == {
        **{"guards": 0, "default": [], "own": "replace", "presets": [], "forbid": ["dry"]},
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
        ("a.yaml", "own: [", "line 1, column 7"),
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
    timestamp = yaml.SafeLoader.construct_yaml_timestamp
    monkeypatch.setitem(yaml.SafeLoader.yaml_constructors, "tag:yaml.org,2002:timestamp", timestamp)
    file = tmp_path / name
    file.write_text(text, encoding="utf-8", errors="surrogateescape")
    monkeypatch.setenv(VARIABLE, str(file))
    with pytest.raises(ConfigurationError, match="has a problem") as raised:
        policy(unwanted)
    assert problem in str(raised.value)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "a.json",
            '{\n\t"default": [{"kind": "banned_text", "texts": ["\\ud83d\\ude00"]}]}',
        ),
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
    assert made(str(file)).default in [(BannedTextSpec(("😀",)),), (LogitBiasSpec({5: 1e-5}),)]


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
        policy(unwanted, (), {"own": "add"})


def test_the_examples_of_the_documentation():
    page = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    first, guarded, second = re.findall(r"^```yaml\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    assert set(made(parse_yaml(first)[0]).presets) == {"yes-no", "brief"}
    assert made(parse_yaml(guarded)[0]).guard
    found = policy(None, (), parse_yaml(second)[0])  # its tags need a whole tokenizer
    assert found is not None
    assert not found.default


def test_the_example_of_the_module():
    assert configuration.__doc__ is not None
    text = configuration.__doc__.split("::\n\n")[1].split("\n\nA spec")[0]
    content, _ = parse_yaml(text)
    del content["default"]  # its tags need a whole tokenizer
    assert made(content).own == "add"

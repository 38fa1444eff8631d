"""The profiles of marks in the operator's file, and which mark each text has."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import yaml
from logitport import spec as s
from logitport.adapters import Backend, Policy, admit, bind_draw, check_policy
from logitport.adapters.admission import forget
from logitport.adapters.backend import REALIZABLE
from logitport.adapters.draws import REQUIRED_BOUNDS
from logitport.adapters.environment import CONFIGURATION_VARIABLE as VARIABLE
from logitport.hooks.configuration import ConfigurationError, policy

from tests.adapters import command
from tests.hooks.test_hello_world import Characters

KEY, DIGITS = "0x1234567890abcdef", str(0x1234567890ABCDEF)
NEWS = {"scheme": "vllm-gumbel", "key": {"env": "NEWS_KEY"}}
REQUIRE = {"watermark": {"profile": "news"}}
ASKED = {"kind": "watermark", "profile": "news"}


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setenv("NEWS_KEY", KEY)
    monkeypatch.setenv("LONG_KEY", "1" + "0" * 30)
    forget()


def made(**content: Any) -> Policy:
    found = policy(Characters, content)
    assert found is not None
    return found


def test_profiles_and_what_is_required(tmp_path: Path):
    (tmp_path / "key").write_text("42\n")
    file = NEWS | {"key": {"file": str(tmp_path / "key")}, "width": 5, "deduplicate": "all"}
    found = made(profiles={"news": NEWS, "file.1": file}, require=REQUIRE)
    assert {name: mark.key for name, mark in found.profiles.items()} == {
        "news": int(KEY, 16),
        "file.1": 42,
    }
    assert (found.required, found.unmarked) == ("news", frozenset())
    assert found.mark_bounds == REQUIRED_BOUNDS
    assert found.forbids_beams
    assert found.acts_always
    assert not made(profiles={"news": NEWS}).forbids_beams
    bounds = {"temperature": 0.1, "top_k": 4, "top_p": 0.2, "min_p": 0.5}
    require = {"watermark": {"profile": "news", "unless": ["grammar", "json"], "bounds": bounds}}
    found = made(profiles={"news": NEWS}, require=require)
    assert (found.unmarked, found.mark_bounds) == ({"grammar", "json"}, bounds)


# the file | each problem: its path, and a part of the message
WRONG: list[tuple[dict[str, Any], list[tuple[str, str]]]] = [
    ({"profiles": []}, [("$.profiles", "Expected profiles by name")]),
    ({"profiles": {}}, [("$.profiles", "Expected profiles by name")]),
    ({"profiles": {"news": {}}}, [("$.profiles.news", "missing required field `scheme`")]),
    ({"profiles": {"news": NEWS | {"key": "42"}}}, [("$.profiles.news.key", "Expected `object`")]),
    ({"profiles": {"news": NEWS | {"width": 65}}}, [("$.profiles.news.width", "<= 64")]),
    ({"profiles": {"a b": NEWS}}, [("$.profiles.a b", "No name for a profile")]),
    (
        {"profiles": {"news": NEWS | {"scheme": "sglang-gumbel"}}},
        [("$.profiles.news.scheme", "Expected the scheme vllm-gumbel, with which texts are")],
    ),
    (
        {"profiles": {"news": NEWS | {"key": {"env": "NO"}}, "b": NEWS | {"key": {"env": "NOT"}}}},
        [
            ("$.profiles.b.key", "No key in the variable NOT"),
            ("$.profiles.news.key", "No key in the variable NO"),
        ],
    ),
    (
        {"profiles": {"news": NEWS | {"key": {"env": "LONG_KEY"}}}},
        [("$.profiles.news.key", "Expected a key of at most 64 bits")],
    ),
    (
        {"profiles": {"news": NEWS | {"key": {"file": "/no/such/key"}}}},
        [("$.profiles.news.key", "No key in the file /no/such/key: No such file")],
    ),
    ({"require": {}}, [("$.require", "missing required field `watermark`")]),
    (
        {"require": REQUIRE},
        [("$.require.watermark.profile", "There is no profile 'news' in `profiles`")],
    ),
    (
        {"profiles": {"other": NEWS}, "require": REQUIRE},
        [("$.require.watermark.profile", "There is no profile 'news' in `profiles`")],
    ),
    (
        {
            "profiles": {"news": NEWS},
            "require": {"watermark": {"profile": "news", "unless": ["x"]}},
        },
        [("$.require.watermark.unless[0]", "Invalid enum value 'x'")],
    ),
    (
        {"profiles": {"news": NEWS}, "require": {"watermark": {"profile": "news", "key": "1"}}},
        [("$.require.watermark", "unknown field `key`")],
    ),
    *(
        (
            {
                "profiles": {"news": NEWS},
                "require": {"watermark": {"profile": "news", "bounds": bounds}},
            },
            [(f"$.require.watermark.bounds{path}", what)],
        )
        for bounds, path, what in (
            ({"temperature": 0}, ".temperature", "Expected `float` >= 0.01"),
            ({"top_k": 1}, ".top_k", "Expected `int` >= 2"),
            ({"top_p": 1.5}, ".top_p", "Expected `float` <= 1.0"),
            ({"min_p": 1}, ".min_p", "Expected `float` <= 0.99"),
            ({"seed": 1}, "", "unknown field `seed`"),
        )
    ),
    (
        {"profiles": {"news": NEWS}, "guard": [ASKED]},
        [("$.guard[0]", "`require: {watermark: {profile: news}}` marks every text")],
    ),
]


@pytest.mark.parametrize(("content", "problems"), WRONG)
def test_what_is_wrong(content: dict[str, Any], problems: list[tuple[str, str]]):
    with pytest.raises(ConfigurationError) as error:
        made(**content)
    found = error.value.problems
    assert [each.split(": ")[0] for each in sorted(found)] == [path for path, _ in problems]
    for problem, (_, message) in zip(sorted(found), problems, strict=True):
        assert message in problem
    assert "1000000" not in str(error.value)


def program_of(found: Policy, payload: Any, **request: Any) -> Any:
    backend = Backend("test", REALIZABLE, policy=found)
    return bind_draw(admit(backend, payload, 64)[1], found, request)


def profile_of(program: Any) -> str | None:
    while program.guard is not None:
        program = program.guard
    return program.marks[0].profile if program.marks else None


BIAS = s.encode(s.LogitBiasSpec({1: 1.0}))


def test_marks_of_default_specs_and_presets():
    profiles = {"news": NEWS, "other": NEWS | {"width": 5}}
    found = made(profiles=profiles, default=[ASKED], own="add", presets={"marked": [ASKED]})
    check_policy(Backend("test", REALIZABLE, policy=found), 64)
    assert profile_of(program_of(found, BIAS)) == "news"
    preset = s.encode(s.PluginSpec("marked"))
    assert profile_of(program_of(made(profiles=profiles, presets={"a": [ASKED]}), BIAS)) is None
    assert profile_of(program_of(found, preset)) == "news"
    other = s.encode(s.WatermarkSpec("other"))
    with pytest.raises(s.SpecError, match="A text has one mark") as error:
        program_of(found, other)
    assert error.value.path == "$.specs[0]"
    assert profile_of(program_of(made(profiles=profiles, default=[ASKED]), other)) == "other"


def test_a_mark_may_be_required_and_forbidden_to_ask_for():
    found = made(profiles={"news": NEWS}, require=REQUIRE, forbid=["watermark"])
    with pytest.raises(s.SpecError, match="does not admit `watermark`"):
        program_of(found, s.encode(s.WatermarkSpec("news")))
    assert profile_of(program_of(found, BIAS)) == "news"


# fields of a request | the bound that it breaks
@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"temperature": REQUIRED_BOUNDS["temperature"] - 0.01}, "temperature"),
        ({"top_k": 2}, "top_k"),
        ({"top_p": REQUIRED_BOUNDS["top_p"] - 0.01}, "top_p"),
        ({"min_p": REQUIRED_BOUNDS["min_p"] + 0.01}, "min_p"),
    ],
)
def test_a_required_mark_has_room(fields: Any, path: str):
    """A request that asks for a mark by itself may leave it little room."""
    asked = s.encode(s.WatermarkSpec("news"))
    assert profile_of(program_of(made(profiles={"news": NEWS}), asked, **fields)) == "news"
    found = made(profiles={"news": NEWS}, require=REQUIRE)
    for payload in (asked, BIAS):
        with pytest.raises(s.SpecError) as error:
            program_of(found, payload, **fields)
        assert error.value.path == path
    bounds = {"temperature": 0.01, "top_k": 2, "top_p": 0.01, "min_p": 0.99}
    require = {"watermark": {"profile": "news", "bounds": bounds}}
    assert profile_of(program_of(made(profiles={"news": NEWS}, require=require), BIAS, **fields))


def test_an_engine_without_marks_does_not_start():
    backend = Backend("test", REALIZABLE - {s.WatermarkSpec})
    found = made(profiles={"news": NEWS}, require=REQUIRE)
    with pytest.raises(s.SpecError, match="watermark") as error:
        check_policy(Backend("test", backend.realizes, policy=found), 64)
    assert error.value.location[0] == "require"


def test_the_key_is_in_no_log(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.DEBUG)
    caplog.set_level("INFO", logger="logitport")  # an engine of an earlier test may ask for less
    found = made(profiles={"news": NEWS}, require=REQUIRE)
    assert '"profiles":["news"],"required":"news"' in caplog.text
    shown = caplog.text + repr(found) + json.dumps(found.describe()) + repr(found.profiles)
    assert not [key for key in (KEY, KEY[2:], DIGITS) if key in shown]


def test_the_command_checks_it(tmp_path: Path):
    file = tmp_path / "bot.yaml"
    file.write_text(yaml.safe_dump({"profiles": {"news": NEWS}, "require": REQUIRE}))
    done = command.run("check", "--config", str(file), NEWS_KEY=KEY)
    assert not done.exit_code
    assert KEY[2:] not in done.output
    done = command.run("check", "--config", str(file), NEWS_KEY="")
    assert done.exit_code == 1
    assert "line 3: $.profiles.news.key: No key in the variable NEWS_KEY" in done.output

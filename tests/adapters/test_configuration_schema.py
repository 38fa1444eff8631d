"""``logitport schema --config``: what it says, and what the reader of configurations says."""

import json
from typing import Any

import jsonschema
import pytest
from logitport.adapters.cli.app import app
from logitport.adapters.content import read_content
from logitport.hooks import configuration
from logitport.hooks.constructors import CONSTRUCTORS
from typer.testing import CliRunner

from tests.hooks.test_hello_world import Characters
from tests.support.paths import ROOT

SCHEMA = json.loads(CliRunner().invoke(app, ["schema", "--config"]).stdout)
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
TAGGED = {"kind": "thinking_budget", "budget": 3, "tags": "model"}
BANNED = {"kind": "banned_text", "texts": ["cat"]}
WORDS = {"kind": "banned_sequences", "from_words": {"words": ["cat"]}}
PROFILE = {"scheme": "vllm-gumbel", "key": {"env": "NEWS_KEY"}}


@pytest.mark.parametrize(
    ("content", "path"),
    [
        ({}, None),
        ({"default": [BANNED, WORDS], "own": "add"}, None),
        ({"guard": [BANNED], "forbid": ["plugin", "continued"]}, None),
        ({"presets": {"a": [{"kind": "phases", "phases": [{"specs": [WORDS]}]}]}}, None),
        ({"effort": {"low": 5}, "profiles": {"news": PROFILE}}, None),
        ({"version": 1, "own": "add"}, None),
        ({"version": 2}, "$.version"),
        ({"version": "1"}, "$.version"),
        ({"version": True}, "$.version"),
        ({"efort": {"low": 5}}, "$"),
        ({"own": "sum"}, "$.own"),
        ({"default": BANNED}, "$.default"),
        ({"default": [None]}, "$.default[0]"),
        ({"default": [{**BANNED, "kind": "banned_texts"}]}, "$.default[0].kind"),
        ({"guard": [{**BANNED, "text": "cat"}]}, "$.guard[0]"),
        ({"guard": [{**WORDS, "sequences": [[5]]}]}, "$.guard[0]"),
        ({"presets": {"a": []}}, "$.presets.a"),
        ({"effort": {"low": -1}}, "$.effort.low"),
        ({"profiles": {"news": {**PROFILE, "scheme": "vllm"}}}, "$.profiles.news.scheme"),
        ({"require": {"watermark": {}}}, "$.require.watermark"),
        ({"tags": "olmo-3", "default": [TAGGED]}, None),
        ({"tags": {"start": ["<think>", " "], "end": "</think>", "then": "5"}}, None),
        ({"tags": "thinks"}, "$.tags"),
        ({"tags": {"start": "5"}}, "$.tags"),
        ({"tags": {"start": "5", "end": []}}, "$.tags"),
    ],
)
def test_both_find_the_same(content: Any, path: str | None, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("NEWS_KEY", "5")
    found = [error.json_path for error in VALIDATOR.iter_errors(content)]
    assert found[:1] == ([] if path is None else [path])
    if path is None:
        configuration.policy(lambda: Characters(), settings=content)
    else:
        with pytest.raises(configuration.ConfigurationError):
            configuration.policy(lambda: Characters(), settings=content)


def test_all_fields_and_constructors():
    assert [*SCHEMA["properties"]] == [*configuration._FIELDS]
    assert {*CONSTRUCTORS} == SCHEMA["$defs"]["Entry"]["then"]["properties"].keys() - {"kind"}


@pytest.mark.parametrize("name", ["guard.yaml", "kubernetes/logitport.yaml"])
def test_examples(name: str):
    content, _ = read_content(str(ROOT / "examples" / name))
    VALIDATOR.validate(content)
    assert configuration.policy(lambda: Characters(), settings=content)

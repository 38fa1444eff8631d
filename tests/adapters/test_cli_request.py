"""``logitport check CONFIGURATION --request BODY``: what a server would do with a request."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.adapters.command import run

CONFIGURATION = """
default: [{kind: no_loop, times: 3}]
guard: [{kind: banned_tokens, token_ids: [9]}]
presets:
  calm: [{kind: no_repeat_ngram, n: 3}]
"""
CALM = {"kind": "plugin", "name": "calm"}
COLD = {"kind": "chain", "steps": [{"temperature": 0.7}]}

# fields of the request | specs | what is printed, or the beginning of the refusal
CASES: list[tuple[dict[str, Any], list[Any] | None, Any]] = [
    ({"prompt": "a"}, None, {"kinds": ["banned_tokens", "no_loop"], "default": True}),
    ({"prompt": "a"}, [CALM], {"kinds": ["banned_tokens", "no_repeat_ngram"]}),
    ({"messages": []}, [{"kind": "banned_text", "texts": ["b"]}], {}),
    ({"temperature": 0.7}, [COLD], {"kinds": ["banned_tokens", "chain"]}),
    ({"temperature": 0.5}, [COLD], "Expected a temperature of 1, or of 0.7"),
    ({}, [{"kind": "plugin", "name": "clam"}], "No plugin 'clam'"),
    ({}, [{"kind": "forced_sequence", "token_ids": [9]}], "Conflicts with the server's guard[0]"),
    ({}, [{"kind": "mind_reader"}], "Invalid value 'mind_reader'"),
]


@pytest.mark.parametrize(("fields", "specs", "expected"), CASES)
def test_requests(fields: dict[str, Any], specs: Any, expected: Any, model: Path, tmp_path: Path):
    body, config = tmp_path / "body.json", tmp_path / "server.yaml"
    own = {} if specs is None else {"vllm_xargs": {"logitport": specs}}
    body.write_text(json.dumps(fields | own))
    config.write_text(CONFIGURATION)
    done = run("check", config, "--tokenizer", model, "--request", body)
    if isinstance(expected, str):
        assert done.exit_code == 1
        assert done.stdout.startswith(f"{body}: HTTP 400: {expected}")
    else:
        assert done.exit_code == 0, done.output
        found = json.loads(done.stdout)
        assert {**found, **expected} == found


def test_a_body_that_is_no_json(model: Path, tmp_path: Path):
    body, config = tmp_path / "body.json", tmp_path / "server.yaml"
    body.write_text('{"model":"m"\n')
    config.write_text(CONFIGURATION)
    done = run("check", config, "--tokenizer", model, "--request", body)
    assert done.exit_code == 1
    assert done.stdout == f"{body}: HTTP 400: Not JSON, line 2, column 1: Expecting ',' delimiter\n"


def test_one_policy_has_one_digest(model: Path, tmp_path: Path):
    """Each receipt has the digest that is printed of the file."""
    config, digests = tmp_path / "server.yaml", set[str]()
    config.write_text(CONFIGURATION)
    for specs in ({}, {"vllm_xargs": {"logitport": [CALM]}}):
        (body := tmp_path / "body.json").write_text(json.dumps({"prompt": "a", **specs}))
        done = run("check", config, "--tokenizer", model, "--request", body)
        digests.add(json.loads(done.stdout)["policy"])
    (digest,) = digests
    assert run("check", config, "--tokenizer", model).stderr == f"{config}: policy {digest}\n"


@pytest.mark.parametrize(
    ("content", "is_right"),
    [
        ({"default": [{"kind": "banned_text", "texts": ["x"]}], "own": "add"}, True),
        ({"own": "ad"}, False),
        ([{"kind": "banned_text", "texts": ["x"]}], True),
        ({"version": 1, "specs": [{"kind": "banned_text", "texts": ["x"]}]}, True),
        ({"version": 1, "specs": [], "own": "add"}, False),
    ],
)
def test_a_configuration_in_json(content: Any, is_right: bool, tmp_path: Path):
    """It needs no option, and so a hook may take all files of a name."""
    (file := tmp_path / "logitport.json").write_text(json.dumps(content))
    assert (run("check", file).exit_code == 0) is is_right


def test_a_configuration_that_is_wrong(model: Path, tmp_path: Path):
    """Each problem has a line, as without the request."""
    body, config = tmp_path / "body.json", tmp_path / "server.yaml"
    body.write_text('{"prompt": "a"}')
    config.write_text("own: ad\nforbid: [plugins]\n")
    done = run("check", config, "--tokenizer", model, "--request", body)
    assert done.exit_code == 1
    assert done.stdout == run("check", config, "--tokenizer", model).stdout
    assert len(done.stdout.splitlines()) == 2


def test_what_it_takes(tmp_path: Path):
    body = tmp_path / "body.json"
    for arguments in (["a.yaml"], ["a.yaml", "b.yaml", "--tokenizer", "m"]):
        done = run("check", *arguments, "--request", body)
        assert done.exit_code == 2
        assert "one configuration" in done.stderr.replace("\n", " ")

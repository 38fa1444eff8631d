"""``logitport tags``: the tags of tokenizers that are made here, and templates that open blocks."""

import json
import sys
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from logitport.spec import THINKING_FAMILIES, ThinkingBudgetSpec

from tests.support.families import FAMILIES, filled, spec_of, tokenizer_of

from .command import run

ASKED = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
OPENING = ASKED + "{% if add_generation_prompt %}<a><think>\n{% endif %}"


def model(folder: Path, family: str = "think", template: Any = None, **config: Any) -> Path:
    """Write the files of a model that ``tags`` reads."""
    tokenizer_of(family).save(str(folder / "tokenizer.json"))
    config |= {"chat_template": template} if template else {}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family(name: str, tmp_path: Path):
    by_name = [] if FAMILIES[name].tokens else ["--family", name]
    result = run("tags", model(tmp_path, name), *by_name, "--json")
    assert result.exit_code == 0, result.output
    found, family = json.loads(result.stdout), filled(FAMILIES[name])
    ids = {part: [tuple(tag["token_ids"]) for tag in found[part]] for part in ("start", "end")}
    then = tuple(token for tag in found["then"] for token in tag["token_ids"])
    assert (found["family"], found["models"]) == (family.name, family.models)
    assert spec_of(name, 7) == ThinkingBudgetSpec(
        7,
        ids["start"][0],
        ids["end"][0],
        other_start_token_ids=tuple(ids["start"][1:]),
        other_end_token_ids=tuple(ids["end"][1:]),
        then_token_ids=then,
    )
    texts = {part: [tag["text"] for tag in found[part]] for part in ("start", "end")}
    assert all(any(text in each for each in texts["start"]) for text in family.start)
    assert all(any(text in each for each in texts["end"]) for text in family.end)


def test_words(tmp_path: Path):
    result = run("tags", model(tmp_path, "think", OPENING))
    start, end = map(tokenizer_of("think").token_to_id, ("<think>", "</think>"))
    assert result.stdout.splitlines() == [
        f"family: think ({FAMILIES['think'].models})",
        f'start "<think>": {start}',
        f'end "</think>": {end}',
        "the chat template opens a block: yes",
    ]


@pytest.mark.parametrize(
    ("template", "opens"),
    [
        (OPENING, True),
        (ASKED, False),
        (ASKED + "<think>\n\n</think>\n\n", False),
        ("Think in <think>. " + ASKED, False),
        ("Write </think> at last. " + OPENING, True),
        ([{"name": "tools", "template": ASKED}, {"name": "default", "template": OPENING}], True),
        ("{% if bos_token == 'hello' and eos_token == '<s>' %}<think>{% endif %}", True),
        ("{% for each in messages %}<think>{% continue %}</think>{% endfor %}", True),
        ("{% generation %}{{ messages[0].content }}<think>{% endgeneration %}", True),
        ("{{ messages | tojson(indent=2) }}{{ strftime_now('%Y') }}<think>", True),
        (None, None),
        ([{"name": "tools", "template": ASKED}], None),
        ("{% if %}", None),
        ("{{ raise_exception('no system message') }}", None),
        ("{{ messages[0].append(1) }}", None),
        ("{{ 1 // 0 }}", None),
    ],
)
def test_templates(template: Any, opens: bool | None, tmp_path: Path):
    tokens = {"bos_token": {"content": "hello"}, "eos_token": "<s>", "pad_token": None}
    result = run("tags", model(tmp_path, template=template, **tokens), "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["template_opens"] is opens
    assert bool(result.stderr) is (opens is None)
    assert ("opens a block: unknown" in run("tags", tmp_path).stdout) is (opens is None)


def test_a_file_replaces_the_template_in_the_configuration(tmp_path: Path):
    (tmp_path / "chat_template.jinja").write_text(ASKED)
    result = run("tags", model(tmp_path, template=OPENING))
    assert "opens a block: no" in result.stdout


def test_model_on_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = model(tmp_path, template=OPENING)

    def download(name: str, file: str) -> str:
        assert name == "some/model"
        if not (folder / file).exists():
            raise huggingface_hub.errors.LocalEntryNotFoundError(file)
        return str(folder / file)

    loaded = tokenizer_of("think")
    monkeypatch.setattr("logitport.adapters.cli.tags.load_tokenizer", lambda name: loaded)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    assert "opens a block: yes" in run("tags", "some/model").stdout


def test_without_jinja2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delitem(sys.modules, "logitport.adapters.cli.template", raising=False)
    monkeypatch.setitem(sys.modules, "jinja2", None)
    result = run("tags", model(tmp_path, template=OPENING))
    assert "opens a block: unknown" in result.stdout
    assert "pip install 'logitport[tokenizer]'" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        ([], 1, "no known thinking tags"),
        (["--family", "magistral"], 1, "no token '[THINK]'"),
        (["--family", "nope"], 2, f"tags: {THINKING_FAMILIES[0].name}, "),
    ],
)
def test_no_tags(arguments: list[str], status: int, message: str, tmp_path: Path):
    result = run("tags", model(tmp_path, "olmo-3"), *arguments)
    assert (result.exit_code, result.stdout) == (status, "")
    assert message in result.stderr


def test_no_tokenizer(tmp_path: Path):
    result = run("tags", tmp_path)
    assert result.exit_code == 2
    assert "No tokenizer at" in result.stderr

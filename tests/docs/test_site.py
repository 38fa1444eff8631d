"""The documentation's site and a replayed reply's page, opened in headless Chromium.

``SCREENSHOTS=1`` writes what Chromium shows into docs/images.
"""

import json
import os
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

import logitport
import logitport.adapters
import logitport.adapters.core
import logitport.spec
import pytest
from logitport.adapters.cli.app import app
from logitport.spec import ChoiceSpec, ForcedTokenSequenceSpec, Phase, PhaseEnd, PhasesSpec, encode
from typer.testing import CliRunner

from examples import replay_page
from tests.support.paths import ROOT

pytestmark = pytest.mark.slow

MKDOCS = ROOT / ".venv-docs" / "bin" / "mkdocs"
CHROMIUM = shutil.which("chromium")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--hide-scrollbars", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"),
)
MOST_BYTES = 150_000
NODE = shutil.which("node")
SITE, REPOSITORY = "https://logitport.example/", "https://git.example/logitport"
FOUND = {
    "ban a word": "recipes.html#ban-words-never-a-competitors-name",
    "bad words": "recipes.html#ban-words-never-a-competitors-name",
    "competitor": "recipes.html#ban-words-never-a-competitors-name",
    "accents": "recipes.html#ban-words-never-a-competitors-name",
    "footer": "recipes.html#a-greeting-free-text-a-footer",
    "greeting": "recipes.html#a-greeting-free-text-a-footer",
    "disclaimer": "recipes.html#a-greeting-free-text-a-footer",
    "streaming": "recipes.html#streaming",
    "stop a loop": "recipes.html#stop-a-loop",
    "yes or no": "recipes.html#yes-or-no-with-probabilities",
    "logprobs": "recipes.html#yes-or-no-with-probabilities",
    "labels": "recipes.html#yes-or-no-or-one-of-five-labels",
    "classify": "recipes.html#yes-or-no-or-one-of-five-labels",
    "think": "recipes.html#think-then-one-of-five-labels",
    "json": "recipes.html#json-without-white-space-and-without-a-word",
    "white space": "recipes.html#json-without-white-space-and-without-a-word",
    "one language": "recipes.html#one-language",
    "chinese": "recipes.html#one-language",
    "why this token": "recipes.html#why-this-token",
    "debug": "recipes.html#why-this-token",
    "repetition": "loops.html",
    "thinking budget": "thinking.html",
    "ChoiceSpec": "api.html#logitport.spec.kinds.choice.ChoiceSpec",
}
"""What people type into the search, and what comes first."""

needs_mkdocs = pytest.mark.needs(".venv-docs/bin/mkdocs")  # `make docs` brings it
needs_chromium = pytest.mark.needs("chromium")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = MKDOCS, "build", "--quiet", "--strict", "--site-dir", folder
    env = os.environ | {"NO_MKDOCS_2_WARNING": "1", "SITE_URL": SITE, "REPOSITORY_URL": REPOSITORY}
    built = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    return folder


def shown(url: str, folder: Path, name: str, size: str) -> str:
    """Return the page's DOM after its scripts have run, and take the screenshot if it is asked."""
    browser = CHROMIUM, *FLAGS, f"--user-data-dir={folder / 'profile'}", f"--window-size={size}"
    picture = folder / f"{name}.png"
    subprocess.run([*browser, f"--screenshot={picture}", url], check=True, capture_output=True)
    assert picture.stat().st_size < MOST_BYTES
    if os.environ.get("SCREENSHOTS"):
        shutil.copy(picture, ROOT / "docs" / "images")
    dom = subprocess.run([*browser, "--dump-dom", url], check=True, capture_output=True, text=True)
    return dom.stdout


@needs_mkdocs
@needs_chromium
def test_home(site: Path, tmp_path: Path):
    dom = shown((site / "index.html").as_uri(), tmp_path, "home", "1280,960")
    text = " ".join(unescape(re.sub(r"<[^>]*>", "", dom)).split())
    assert "# -> I would rather not say." in text
    for reader in ("operate", "gateway", "application", "backend"):
        assert f"<strong>{reader}</strong>" in dom
    assert "md-search__input" in dom
    loaded = re.findall(r'<(?:script|link|img|iframe)[^>]* (?:src|href)="(\w+:[^"]*)"', dom)
    assert [each for each in loaded if not each.startswith(("data:", "file:"))] == []


@needs_mkdocs
def test_version_repository_and_card(site: Path):
    page = (site / "recipes.html").read_text()
    assert f"logitport {logitport.__version__}, Apache-2.0" in page
    assert f'<a href="{REPOSITORY}" title="Go to repository"' in page
    (card,) = re.findall(r'<meta property="og:image" content="(.*?)">', page)
    assert (site / card.removeprefix(SITE)).is_file()


@needs_mkdocs
@pytest.mark.needs("node")
def test_search(site: Path):
    (worker,) = (site / "assets" / "javascripts" / "workers").glob("search.*.js")
    index = site / "search" / "search_index.json"
    script = ROOT / "tests" / "support" / "search.js"
    run = [NODE, script, worker, index, *FOUND]
    found = subprocess.run(run, check=True, capture_output=True, text=True).stdout.splitlines()
    assert dict(zip(FOUND, found, strict=True)) == FOUND


@needs_mkdocs
def test_code_in_tables_has_no_escapes(site: Path):
    """GitHub needs a backslash before a bar in a table's code; the site would show it."""
    cells = re.findall(r"<td>(.*?)</td>", (site / "thinking.html").read_text())
    assert "<code>&lt;|channel|&gt;analysis&lt;|message|&gt;</code>" in cells
    assert [cell for cell in cells if "\\|" in cell] == []


@needs_mkdocs
def test_every_public_name_is_in_the_reference(site: Path):
    anchors = set(re.findall(r'id="logitport\.[\w.]*?(\w+)"', (site / "api.html").read_text()))
    modules = logitport.spec, logitport.adapters, logitport.adapters.core
    for module in modules:
        assert {*module.__all__} - anchors <= {"lazy", "limits"}, module.__name__  # are modules


@needs_chromium
def test_replay(model: Path, tokenizer: Any, tmp_path: Path):
    def ids(text: str) -> tuple[int, ...]:
        return tuple(tokenizer.encode(text, add_special_tokens=False))

    eos = tokenizer.eos_token_id
    choices = tuple(map(ids, (" Paris", " Rome", " Not sure")))
    spec = PhasesSpec(
        (
            Phase((ForcedTokenSequenceSpec(ids("Let me think.")),), (PhaseEnd(complete=True),)),
            Phase((), (PhaseEnd(text="Answer:"),)),
            Phase((ChoiceSpec(choices, eos),)),
        )
    )
    thoughts = " France is a country in Europe, and its capital lies on the Seine.\nAnswer:"
    reply = [*ids("Let me think."), *ids(thoughts), *ids(" Not bad"), eos]
    (tmp_path / "spec.json").write_text(encode(spec))
    (tmp_path / "reply.json").write_text(json.dumps({"output_ids": reply}))
    page = tmp_path / "replay.html"
    paths = "--reply", tmp_path / "reply.json", "--tokenizer", model
    run = ["replay", tmp_path / "spec.json", *paths, "--json"]
    result = CliRunner().invoke(app, [*map(str, run)])
    assert result.exit_code == 1
    page.write_text(replay_page.page(json.loads(result.stdout)))
    dom = shown(page.as_uri(), tmp_path, "replay", "900,210")
    spans = re.findall(r'<span class="(\w+)" style="[^"]*" title="([^"]+)">([^<]*)</span>', dom)
    said = [unescape(token).replace("\u21b5", "") for _, _, token in spans]
    assert said == [tokenizer.decode([t]) for t in reply]
    forced = [token for rule, _, token in spans if rule == "forced"][:4]
    assert forced == [tokenizer.decode([t]) for t in ids("Let me think.")]
    assert [token for rule, _, token in spans if rule == "broken"][:1] == [" bad"]
    assert all(title.startswith(f"{i}: ") for i, (_, title, _) in enumerate(spans))

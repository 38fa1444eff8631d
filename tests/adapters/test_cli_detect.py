"""``logitport detect``: texts, pages, keys and the server's process. tests/golden has the rest."""

import hashlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
from functools import partial
from html import unescape
from math import ceil, log
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from jsonschema import Draft202012Validator
from logitport.adapters.detection import Detection, detect, read_profiles
from logitport.spec import SpecError
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

from tests.support.marked import VOCAB, marked, unmarked
from tests.support.markup import Parsed

from .command import run

KEY = "4815162342"
MARKS: dict[str, Any] = {"news": {"scheme": "vllm-gumbel", "key": {"env": "NEWS_KEY"}}}
HOSTILE = "</pre><script>alert(1)</script>\x1b[2J\u202e"
ARGUMENTS = "detect", "--profiles", "marks.json"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with profiles, a tokenizer whose first word is hostile, and a key."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NEWS_KEY", KEY)
    (tmp_path / "marks.json").write_text(json.dumps(MARKS))
    tokenizer = Tokenizer(WordLevel({word(i): i for i in range(VOCAB)}, unk_token=word(0)))
    tokenizer.pre_tokenizer = WhitespaceSplit()  # pyright: ignore
    tokenizer.enable_truncation(8)
    tokenizer.save("tokenizer.json")
    with open("tokenizer.json", "a") as file:
        file.write("\n")
    return tmp_path


def digest() -> str:
    return f"sha256:{hashlib.sha256(Path('tokenizer.json').read_bytes()).hexdigest()}"


def word(token_id: int) -> str:
    return f"w{token_id}" if token_id else HOSTILE


def text_of(token_ids: list[int]) -> str:
    return " ".join(map(word, token_ids))


MARKED = marked(int(KEY), 60)


@pytest.mark.parametrize("tokenizer", ["tokenizer.json", "."])
def test_a_text(tokenizer: str):
    """It has the tokens of the tokenizer, however many, and none of special ones."""
    result = run(*ARGUMENTS, "--tokenizer", tokenizer, "--json", text=text_of(MARKED))
    assert result.exit_code == 0, result.output
    answer = json.loads(result.output)
    assert answer.pop("tokenizer") == digest()
    found = detect(MARKED, read_profiles(MARKS))
    assert msgspec.convert(answer, Detection) == found
    assert found.num_tokens == len(MARKED)
    assert found.is_watermarked


def test_the_beginnings_of_marked_parts():
    text = text_of([*unmarked(40), *MARKED])
    printed = run(*ARGUMENTS, "--tokenizer", ".", text=text).output
    found = re.fullmatch(r'news .*; tokens (\d+) to 99 "(.*)"\n', printed)
    assert found
    assert int(found[1]) in range(38, 43)
    assert text.split(" ", int(found[1]))[-1].startswith(found[2])
    assert len(found[2]) == 40


def test_a_p_value_that_no_float_has():
    tokens = marked(int(KEY), 300)
    printed = run(*ARGUMENTS, "--tokens", text=json.dumps(tokens)).output
    (finding,) = detect(tokens, read_profiles(MARKS)).findings
    assert finding.p_value == 0
    assert f"e-{ceil(-finding.log10_p)}, score" in printed


# the profile's tokenizer | options | input | the exit status
@pytest.mark.parametrize(
    ("wanted", "options", "text", "status"),
    [
        (None, ("--tokenizer", "."), text_of(MARKED), 0),
        ("here", ("--tokenizer", "."), text_of(MARKED), 0),
        ("other", ("--tokenizer", "."), text_of(MARKED), 2),
        ("other", ("--tokenizer", ".", "--tokens"), json.dumps(MARKED), 0),
        ("other", ("--tokens",), json.dumps(MARKED), 0),
    ],
)
def test_the_tokenizer_of_a_profile(
    wanted: str | None, options: tuple[str, ...], text: str, status: int
):
    digests = {"here": digest(), "other": "sha256:" + "0" * 64, None: None}
    profile = {**MARKS["news"], "tokenizer": digests[wanted]}
    Path("marks.json").write_text(json.dumps({"news": profile}))
    result = run(*ARGUMENTS, *options, text=text)
    assert result.exit_code == status, result.output
    if status == 2:
        assert f"news needs the tokenizer {digests['other']}" in result.stderr
        assert digest() in result.stderr


@pytest.mark.parametrize(
    ("text", "is_answer"),
    [
        ('{"id": "1", "choices": [{"message": {"content": "1 2"}}]}', True),
        ('{"text": "1 2", "meta_info": {}}', True),
        ('[{"text": "1 2", "output_ids": [1]}]', True),
        ('data: {"choices": []}', True),
        (text_of(MARKED), False),
    ],
)
def test_a_servers_answer_is_no_prose(text: str, is_answer: bool):
    result = run(*ARGUMENTS, "--tokenizer", ".", text=text)
    assert result.exit_code == 2 * is_answer
    assert ("INPUT is a server's answer: examine its tokens with --tokens" in result.stderr) == (
        is_answer
    )


def test_the_prompt_of_a_text():
    profile = {"scheme": "sglang-gumbel", "key": {"env": "NEWS_KEY"}}
    Path("marks.json").write_text(json.dumps({"news": profile}))
    Path("prompt.txt").write_text(text_of([1, 2, 3]))
    options = "--tokenizer", ".", "--json", "--prompt", "prompt.txt"
    answer = json.loads(run(*ARGUMENTS, *options, text=text_of([4, 5])).output)
    profiles = read_profiles({"news": profile})
    assert answer["findings"][0]["scored"] == 2
    assert answer["findings"][0]["score"] == pytest.approx(
        detect([4, 5], profiles, prompt_token_ids=[1, 2, 3]).findings[0].score
    )


class TestPage:
    def test_tokens(self):
        """Each token has its score, marked parts are outlined, and a text is no markup."""
        tokens = [*[0] * 6, *unmarked(40), *MARKED, *unmarked(40, 1)]
        named = ("--tokenizer", ".", "--tokens", "--html", "page.html")
        result = run(*ARGUMENTS, *named, text=json.dumps(tokens))
        assert result.exit_code == 0, result.output
        page = Path("page.html").read_text(encoding="utf-8")
        assert page.startswith("<!doctype html>")
        assert not re.search("http|//|url|@import|src=|href=", page)
        parsed = Parsed(page)
        assert not {"script", "link", "img"} & parsed.tags
        assert parsed.attributes <= {"lang", "charset", "name", "content", "style", "title"}
        assert parsed.text.count("<script>") == tokens.count(0)
        profiles = read_profiles(MARKS)
        (finding,) = detect(tokens, profiles).findings
        assert result.output.split(";")[0] in unescape(page)
        spans = re.findall(r'/ ([\d.]+)\)" title="(.*?)">(.*?)</span>', page)
        assert [unescape(text) for _, _, text in spans] == [*map(word, tokens)]
        profile = profiles["news"]
        positions, values = profile.scores(profile.keys(), _array(tokens), _array([]))
        scores = dict(zip(positions.tolist(), values.tolist(), strict=True))
        assert len(scores) == len(tokens) - 2  # two more have four hostile words before
        for i, (share, title, _) in enumerate(spans):
            said = f"score {scores[i]:.2f}" if i in scores else "not scored"
            assert title == f"{i}: {tokens[i]}: {said}"
            evidence = 0.4 * scores.get(i, 0) + log(0.6)  # of Gumbel's marks
            assert float(share) == pytest.approx(min(max(evidence, 0), 1), abs=0.005)
        marks = re.findall("<mark>(.*?)</mark>", page)
        assert [mark.count("<span") for mark in marks] == [
            span.end - span.start for span in finding.spans
        ]
        assert f'title="{finding.spans[0].start}: ' in marks[0].split(">")[0]

    def test_without_a_tokenizer(self):
        run(*ARGUMENTS, "--tokens", "--html", "page.html", text="[7, 8]")
        assert "7 8 " in Parsed(Path("page.html").read_text()).text

    def test_of_several_profiles(self):
        Path("marks.json").write_text(json.dumps(MARKS | {"<b>": MARKS["news"]}))
        run(*ARGUMENTS, "--tokens", "--html", "page.html", text=json.dumps(MARKED))
        page = Path("page.html").read_text()
        assert page.count("<h2>") == page.count("<mark>") == 2
        assert "b" not in Parsed(page).tags


def _array(token_ids: list[int]) -> Any:
    import numpy as np

    return np.array(token_ids, np.int64)


def test_tokens_cannot_steer_a_terminal():
    tokens = json.dumps([MARKED[0], 0, *MARKED[1:]])
    result = run(*ARGUMENTS, "--tokenizer", ".", "--tokens", text=tokens)
    assert "</script>\\u001b[2J" in result.output
    assert result.output.replace("\n", "").isprintable()


# what the file has | the key
@pytest.mark.parametrize(
    ("profile", "key"),
    [
        (MARKS["news"], KEY),
        (MARKS["news"], f"{KEY}0123456789012345"),
        (MARKS["news"], f"{KEY}-x"),
        ({"scheme": "sglang-dual", "key": {"env": "NEWS_KEY"}}, KEY),
        ({"scheme": "sglang-gumbel", "key": {"env": "NEWS_KEY"}}, f"x{KEY}"),
        ({"scheme": "synthid", "key": {"env": "NEWS_KEY"}}, f"1 {KEY} x"),
        ({"scheme": "vllm-gumbel", "key": KEY}, "1"),
        ({"scheme": "vllm-gumbel", "key": int(KEY)}, "1"),
        ({"scheme": "vllm-gumbel", "key": [KEY]}, "1"),
        ({"scheme": "vllm-gumbel", "key": {"value": KEY}}, "1"),
        ({"scheme": "vllm-gumbel", "key": {"env": int(KEY)}}, "1"),
    ],
)
@pytest.mark.parametrize("more", [(), ("--json",), ("--html", "/dev/stdout"), ("--serve",)])
def test_no_key_is_printed(
    profile: Any, key: str, more: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("uvicorn.Server.run", lambda *_, **__: None)
    Path("marks.json").write_text(json.dumps({"news": profile}))
    options = (*more, "--port", "0") if "--serve" in more else ("--tokens", *more)
    result = run(*ARGUMENTS, *options, text="[1, 2, 3]", NEWS_KEY=key)
    assert isinstance(result.exception, SystemExit | None), result.exception
    assert KEY not in result.output
    assert KEY not in result.stderr


class TestServer:
    def test_a_process(self, folder: Path):
        """It says where it listens, answers, and ends with what it has begun."""
        command = [sys.executable, "-m", "logitport", *ARGUMENTS, "--serve", "--port", "0"]
        heed = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # a shell's jobs may not
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        with subprocess.Popen(command, **pipes, text=True, preexec_fn=heed) as process:
            assert process.stdout
            line = process.stdout.readline()
            port = re.fullmatch(r"Listening at port (\d+) of 127.0.0.1\n", line)
            assert port, line
            url = f"http://127.0.0.1:{port[1]}"
            answer = httpx.post(f"{url}/detect", json={"token_ids": MARKED}, timeout=60)
            assert answer.json()["is_watermarked"]
            os.kill(process.pid, signal.SIGINT)
            output = process.stdout.read()
        assert process.returncode == 130
        assert "Traceback" not in output
        assert KEY not in output

    @pytest.mark.parametrize(
        "options",
        ["a.txt", "--tokens", "--choice 1", "--prompt a.txt", "--json", "--html a.html"],
    )
    def test_options_of_a_text(self, options: str, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr("uvicorn.Server.run", lambda *_, **__: None)
        result = run(*ARGUMENTS, "--serve", *options.split())
        assert (result.exit_code, result.output) == (
            2,
            "A server reads no INPUT: use --serve without the options for one\n",
        )

    def test_a_port_that_is_taken(self):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = str(taken.getsockname()[1])
            result = run(*ARGUMENTS, "--serve", "--port", port)
        assert result.exit_code == 2
        assert result.output.startswith("Address already in use")

    @pytest.mark.parametrize("module", ["starlette.applications", "uvicorn", "anyio"])
    def test_without_its_packages(self, module: str, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.delitem(sys.modules, "logitport.adapters.detection.server", raising=False)
        monkeypatch.setitem(sys.modules, module, None)
        result = run(*ARGUMENTS, "--serve", "--port", "0")
        package = module.partition(".")[0]
        missing = f"{package} is missing: pip install 'logitport[detect]'\n"
        assert (result.exit_code, result.output) == (2, missing)


SCHEMES = [
    {"scheme": "vllm-gumbel", "width": 64, "deduplicate": "all", "hash": "philox4x32-10-v1"},
    {"scheme": "vllm-dual-gumbel", "alpha": 1},
    {"scheme": "sglang-gumbel", "max_contexts": 10},
    {"scheme": "sglang-dual", "mix": 0.2},
    {"scheme": "kgw", "vocab_size": 100},
    {"scheme": "synthid", "ngram": 4, "tokenizer": "sha256:" + "0" * 64},
    {"scheme": "vllm"},
    {"scheme": "kgw"},
    {"scheme": "vllm-gumbel", "width": 0},
    {"scheme": "vllm-gumbel", "alpha": 0.1},
    {"scheme": "synthid", "tokenizer": "sha256:0"},
    {"scheme": "sglang-dual", "mix": "half"},
]


@pytest.mark.parametrize("fields", SCHEMES, ids=str)
def test_the_schema_is_of_what_is_read(fields: Any):
    schema = json.loads(run("schema", "--profiles").output)
    Draft202012Validator.check_schema(schema)
    content = {"news": {"key": {"file": "a"}, **fields}}
    try:
        is_read = bool(read_profiles(content))
    except SpecError:
        is_read = False
    assert Draft202012Validator(schema).is_valid(content) is is_read is (fields in SCHEMES[:6])

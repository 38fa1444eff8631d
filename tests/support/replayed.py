"""A catalogue of requests, whose replies are replayed and compared with what a realizer did."""

import json
import re
from collections.abc import Callable, Sequence
from itertools import chain, product
from pathlib import Path
from typing import Any

from logitport.adapters.cli.app import app
from logitport.adapters.cli.reply import Reply
from logitport.adapters.cli.steps import trace
from logitport.adapters.core import Vocabulary
from logitport.spec import encode
from typer.testing import CliRunner

from examples.portable.requests import Request, requests, whole

Ask = Callable[[Request], list[int]]
"""Sends a request to an engine, alone, and returns the output's token ids."""


def check_replays(ask: Ask, record: Path, model: Path, tokenizer: Any, folder: Path) -> None:
    """Ask for each request of the catalogue, and compare each step of the reply."""
    vocabulary = Vocabulary.of_tokenizer(tokenizer)
    for request in requests(tokenizer, tokenizer.eos_token_id):
        record.write_text("")
        output = whole(ask(request), tokenizer.eos_token_id)
        lines = [json.loads(line) for line in record.read_text().splitlines()]
        # Some engines have begun a step more by the time that the output ends.
        done = {line["index"]: line for line in lines}
        status, steps = replay(request, output, model, folder)
        assert status == 0, (request.name, steps)
        for step in steps:
            did = done[step["index"]]
            assert step["rule"] == did["rule"], (request.name, step, did)
            assert says(step, did), (request.name, step, did)
        check_changed(request, output, vocabulary, model, folder)


def says(step: Any, did: Any) -> bool:
    """Whether a step of the replay is about the same token, or as many, as the realizer's edit."""
    words = " ".join(step["acting"].values())
    numbers = re.findall(rf"{did['rule']} (\d+)", words)
    if did["rule"] in ("free", "added"):
        return bool(words) is (did["rule"] == "added")
    # Several specs may ban some tokens in common, and shorten each other's lists.
    return str(did["about"]) in numbers or (len(numbers) > 1 and did["rule"] != "forced")


def check_changed(
    request: Request, output: Sequence[int], vocabulary: Vocabulary, model: Path, folder: Path
) -> None:
    """Change one token so that it breaks a spec, and have the replay report it there."""
    specs = {str(i): spec for i, spec in enumerate(request.specs)}
    own = chain(*(ids for spec in request.specs for _, ids in spec.token_fields()))
    candidates = dict.fromkeys([*request.prompt_ids, *own, *output, 0])
    for at, token in product(range(len(output)), candidates):
        changed = Reply(request.prompt_ids, [*output[:at], token], ())
        if not trace(specs, changed, vocabulary=lambda: vocabulary).steps[at].obeyed:
            status, steps = replay(request, changed.output_ids, model, folder)
            assert status == 1
            assert [step["index"] for step in steps if not step["obeyed"]] == [at]
            return
    raise AssertionError(f"{request.name}: no other token breaks it")


def replay(
    request: Request, output: Sequence[int], model: Path, folder: Path
) -> tuple[int, list[Any]]:
    """The exit status and the steps of ``logitport replay``."""
    spec, reply = folder / "spec.json", folder / "reply.json"
    spec.write_text(encode(request.specs))
    reply.write_text(json.dumps({"prompt_ids": request.prompt_ids, "output_ids": list(output)}))
    tokenizer = (
        ("--tokenizer", str(model)) if any(s.needs_vocabulary for s in request.specs) else ()
    )
    arguments = ["replay", str(spec), "--reply", str(reply), "--json", *tokenizer]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code in (0, 1), result.output
    return result.exit_code, json.loads(result.stdout)["steps"]

"""What ``logitport replay`` finds in a reply, compared with what the realizer did to its logits.

The realizer is that of all engines but vLLM's V2 runner, whose own is compared with it elsewhere.
"""

import json
import re
from collections.abc import Sequence
from itertools import chain, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from logitport.adapters.cli.app import app
from logitport.adapters.cli.reply import Reply
from logitport.adapters.cli.steps import trace
from logitport.adapters.conformance.reference import DECISIVE
from logitport.adapters.core import Realizer, Vocabulary
from logitport.adapters.core.logits import FORCED_LOGIT
from logitport.spec import encode
from typer.testing import CliRunner

from examples.portable.requests import Request, requests, whole

pytestmark = pytest.mark.engine

LENGTH = 14


def test_replays(model: Path, tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    import torch
    from logitport.adapters.transformers import LogitportProcessor
    from transformers import AutoModelForCausalLM

    done: dict[int, dict[str, Any]] = {}
    apply = Realizer.apply

    def recorded(self: Any, logits: Any) -> None:
        (row,), (output_ids,) = self.rows, self.outputs
        before = logits[row].numpy().copy()
        apply(self, logits)
        done[len(output_ids)] = seen(before, logits[row].numpy())

    monkeypatch.setattr(Realizer, "apply", recorded)
    loaded: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    vocabulary = Vocabulary.of_tokenizer(tokenizer)
    for request in requests(tokenizer, tokenizer.eos_token_id):
        done.clear()
        inputs = tokenizer.pad([{"input_ids": request.prompt_ids}], return_tensors="pt")
        processor = LogitportProcessor(loaded, [request.specs], tokenizer=tokenizer, **inputs)
        rows = loaded.generate(
            **inputs, logits_processor=[processor], do_sample=False, max_new_tokens=LENGTH
        )
        output = whole(rows[0, len(request.prompt_ids) :].tolist(), tokenizer.eos_token_id)
        status, steps = replay(request, output, model, tmp_path)
        assert status == 0, (request.name, steps)
        for step in steps:
            did = done[step["index"]]
            assert step["rule"] == did["rule"], (request.name, step, did)
            assert says(step, did), (request.name, step, did)
        check_changed(request, output, vocabulary, model, tmp_path)


def seen(before: Any, after: Any) -> dict[str, Any]:
    """The strongest edit of a row, and the number of tokens that it is about, or the token."""
    difference = np.round(after.astype(np.float64) - before, 2)
    if after.max() == FORCED_LOGIT > before.max():
        return {"rule": "forced", "about": int(after.argmax())}
    if np.isneginf(after).any():
        return {"rule": "allowed", "about": int(np.isfinite(after).sum())}
    if banned := int((difference <= -DECISIVE).sum()):
        return {"rule": "banned", "about": banned}
    return {"rule": "added" if difference.any() else "free", "about": int((difference != 0).sum())}


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

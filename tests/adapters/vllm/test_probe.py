"""What ``probe`` and ``doctor`` find at a real server with logitport, and at one without."""

import json
import sysconfig
import venv
from pathlib import Path
from typing import Any

import openai
import pytest
from logitport.adapters import Support, extra_body, probe
from logitport.spec import ForcedTokenSequenceSpec

from examples._support.vllm_server import VllmServer
from tests.support.doctor import examined, findings

from .in_process import lookup

pytestmark = [
    pytest.mark.engine,
    pytest.mark.only("v1", reason="the front end answers, whatever the runner"),
]


def without_logitport(folder: Path) -> Path:
    """Make an environment with the packages of this one, except logitport; its Python."""
    venv.create(folder, symlinks=True)
    (there,) = folder.glob("lib/python*/site-packages")
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if "logitport" not in path.name:
            (there / path.name).symlink_to(path)
    return folder / "bin" / "python"


@pytest.mark.parametrize("expected", [Support.ACTS, Support.IGNORED])
def test_vllm(model: Path, tokenizer: Any, tmp_path: Path, expected: Support):
    arguments = ("--middleware", "logitport.adapters.vllm.SpecMiddleware")
    there: dict[str, Any] = {}
    if expected is Support.IGNORED:
        # Neither the folder of the tests nor what leads to logitport may be on the path.
        arguments, env = (), {"PYTHONPATH": "", "PYTHONSAFEPATH": "1"}
        there = {"python": without_logitport(tmp_path / "venv"), "env": env}
    spec = ForcedTokenSequenceSpec.from_text("Exactly this.", tokenizer)
    with VllmServer(model, *arguments, **there) as server:
        client = openai.OpenAI(base_url=server.base_url, api_key="-", max_retries=0)
        assert probe(client, model.name) is expected
        reply = client.completions.create(
            model=model.name, prompt="Hello", max_tokens=8, extra_body=extra_body("vllm", spec)
        )
        obeys = reply.choices[0].text == "Exactly this."
        assert obeys is (expected is Support.ACTS)
        refused = "refused" if obeys else "not refused"
        assert findings(server.base_url) == ["obeyed" if obeys else "ignored", refused, refused]
        if expected is Support.IGNORED:  # the middleware answers first
            with pytest.raises(openai.NotFoundError):
                probe(client, "another model")


def test_drafts_under_v1(model: Path):
    arguments = "--speculative-config", json.dumps(lookup(3))
    with VllmServer(model, *arguments, env={"VLLM_USE_V2_MODEL_RUNNER": "0"}) as server:
        forced, *_ = examined(server.base_url)
    assert forced["status"] == "error"
    assert "V1 model runner loads no logits processors" in forced["found"]
    assert "VLLM_USE_V2_MODEL_RUNNER=1" in forced["found"]

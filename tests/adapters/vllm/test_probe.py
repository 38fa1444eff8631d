"""What ``probe`` and ``doctor`` find at a real server without logitport."""

import sysconfig
import venv
from pathlib import Path
from typing import Any

import openai
import pytest
from logitport.adapters import Support, extra_body, probe
from logitport.spec import ForcedTokenSequenceSpec

from examples._support.vllm_server import VllmServer
from tests.support.doctor import findings

pytestmark = [
    pytest.mark.slow,
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


def test_without_logitport(model: Path, tokenizer: Any, tmp_path: Path):
    # Neither the folder of the tests nor what leads to logitport may be on the path.
    env = {"PYTHONPATH": "", "PYTHONSAFEPATH": "1"}
    python = without_logitport(tmp_path / "venv")
    spec = ForcedTokenSequenceSpec.from_text("Exactly this.", tokenizer)
    with VllmServer(model, python=python, env=env) as server:
        client = openai.OpenAI(base_url=server.base_url, api_key="-", max_retries=0)
        assert probe(client, model.name) is Support.IGNORED
        reply = client.completions.create(
            model=model.name, prompt="Hello", max_tokens=8, extra_body=extra_body("vllm", spec)
        )
        assert reply.choices[0].text != "Exactly this."
        assert findings(server.base_url) == ["ignored", "not refused", "not refused"]
        with pytest.raises(openai.NotFoundError):
            probe(client, "another model")

"""A policy that changes while SGLang serves."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from examples._support.sglang_server import SglangServer
from tests.adapters import reloaded

pytestmark = pytest.mark.slow


def test_a_change_under_load(model: Path, tokenizer: Any, tmp_path: Path):
    """64 clients stream; each reply obeys one policy, that of its receipt, and none fails."""
    file = tmp_path / "logitport.json"
    file.write_text(json.dumps(reloaded.content("first", tokenizer)))
    arguments = "--max-running-requests", "64", "--max-total-tokens", "8192"
    arguments += "--enable-metrics", "--tokenizer-worker-num", "2"
    env = {"LOGITPORT_CONFIG": str(file), "LOGITPORT_RECEIPT": "all"}
    with SglangServer(model, *arguments, env=env) as server:
        load = reloaded.Load(server, file, tokenizer, front_ends=2)
        load.check(asyncio.run(load.run()))

"""The operator's configuration on the real engine."""

import json
from pathlib import Path
from typing import Any

import pytest
from logitport import spec as lp
from logitport.adapters.sglang import attach

from examples._support.ending import CannotRunError
from examples._support.sglang_server import SglangServer
from tests.adapters import configured

from .in_process import engine, request

pytestmark = pytest.mark.slow


def test_configuration(model: Path, tmp_path: Path):
    file = tmp_path / "bot.json"
    file.write_text(json.dumps(configured.CONFIGURATION))
    with engine(model, {"LOGITPORT_CONFIG": str(file)}) as running:

        def say(specs: Any) -> str:
            asked = attach(request(8), specs)
            return running.generate("The capital of Italy is", **asked)["text"]

        assert [say(specs) for specs, _ in configured.ACTS] == [text for _, text in configured.ACTS]
        for specs, message in configured.REFUSED:
            with pytest.raises(ValueError, match=message):
                say(specs)
        for specs in ((), configured.BAN):
            asked = attach(request(8), specs)
            asked["sampling_params"]["regex"] = configured.BANNED
            assert configured.SEEN.strip() not in running.generate("Norway:", **asked)["text"]
        # A grammar comes before a default that forces; what only reads logits is left alone.
        grammar = attach(request(8), lp.GrammarSpec(choices=(" Rome",)))
        assert running.generate("The capital of Italy is", **grammar)["text"] == " Rome"
        default, rome = running.score("The capital of Italy is", [""], [411, 7268]).scores[0]
        assert default < rome < 1


def test_a_wrong_file_stops_the_start(model: Path, tmp_path: Path):
    file = tmp_path / "wrong.yaml"
    file.write_text(configured.WRONG)
    server = SglangServer(model, env={"LOGITPORT_CONFIG": str(file)})
    with pytest.raises(CannotRunError, match="SGLang ended"), server:
        pass
    log = server.log.read_text(encoding="utf-8")
    assert [problem for problem in configured.PROBLEMS if problem not in log] == []

"""The operator's configuration on the real engine."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from logitport import spec as lp
from logitport.adapters.sglang import attach

from examples._support.sglang_server import OPTIONS
from tests.adapters.configured import (
    ACTS,
    BAN,
    BANNED,
    CONFIGURATION,
    PROBLEMS,
    REFUSED,
    SEEN,
    WRONG,
)

from .in_process import engine, request

pytestmark = pytest.mark.engine


def test_configuration(model: Path, tmp_path: Path):
    file = tmp_path / "bot.json"
    file.write_text(json.dumps(CONFIGURATION))
    with engine(model, {"LOGITPORT_CONFIG": str(file)}) as running:

        def say(specs: Any) -> str:
            asked = attach(request(8), specs)
            return running.generate("The capital of Italy is", **asked)["text"]

        assert [say(specs) for specs, _ in ACTS] == [text for _, text in ACTS]
        for specs, message in REFUSED:
            with pytest.raises(ValueError, match=message):
                say(specs)
        for specs in ((), BAN):
            asked = attach(request(8), specs)
            asked["sampling_params"]["regex"] = BANNED
            assert SEEN.strip() not in running.generate("Norway:", **asked)["text"]
        # A grammar comes before a default that forces; what only reads logits is left alone.
        grammar = attach(request(8), lp.GrammarSpec(choices=(" Rome",)))
        assert running.generate("The capital of Italy is", **grammar)["text"] == " Rome"
        default, rome = running.score("The capital of Italy is", [""], [411, 7268]).scores[0]
        assert default < rome < 1


def test_a_wrong_file_stops_the_start(model: Path, tmp_path: Path):
    """In a process of its own: the schedulers that it has started by then end it."""
    file = tmp_path / "wrong.yaml"
    file.write_text(WRONG)
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\nfrom sglang import Engine\n\nif __name__ == '__main__':\n"
        f"    Engine(model_path=sys.argv[1], **{OPTIONS!r})\n"
    )
    started = subprocess.run(
        [sys.executable, script, model],
        env=os.environ | {"LOGITPORT_CONFIG": str(file)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert started.returncode != 0
    for problem in PROBLEMS:
        assert problem in started.stderr

"""The wiring check: a variable, and any model says "Hello world!"."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from logitport.adapters.sglang import attach
from logitport.adapters.sglang.admission import Admission
from logitport.spec import (
    BannedTokensSpec,
    ChoiceSpec,
    ForcedTokenSequenceSpec,
    GrammarSpec,
    encode,
)

from examples.sglang_server import OPTIONS

from .in_process import engine

pytestmark = pytest.mark.engine

ON = {"LOGITPORT_ENABLE_TEST_LOGITS_PROCESSOR": "1"}


def test_any_model_says_hello_world(model: Path):
    greedy = {"temperature": 0, "max_new_tokens": 16}
    with engine(model, ON) as running:
        prompt = "The capital of France is"
        assert running.generate(prompt, greedy)["text"] == "Hello world!"

        own = attach({"sampling_params": greedy}, ChoiceSpec(((7042,),), 2))
        assert running.generate(prompt, **own)["text"] == " Paris"
        grammar = attach({"sampling_params": greedy}, GrammarSpec(choices=(" Rome",)))
        assert running.generate(prompt, **grammar)["text"] == " Rome"


def test_an_engine_that_calls_no_processors_does_not_start(model: Path, tmp_path: Path):
    """In a process of its own: the schedulers that it has started by then end it."""
    script = tmp_path / "script.py"
    options = OPTIONS | {"enable_custom_logit_processor": False}
    script.write_text(
        "import sys\nfrom sglang import Engine\n\nif __name__ == '__main__':\n"
        f"    Engine(model_path=sys.argv[1], **{options!r})\n"
    )
    started = subprocess.run(
        [sys.executable, script, model],
        env=os.environ | ON,
        capture_output=True,
        text=True,
        check=False,
    )
    assert started.returncode != 0
    assert "start the engine with --enable-custom-logit-processor" in started.stderr


@pytest.mark.parametrize("grammar", [{}, {"regex": "a+"}])
@pytest.mark.parametrize("default", [BannedTokensSpec((5,)), ForcedTokenSequenceSpec((5,))])
def test_only_what_forces_gives_way_to_a_grammar(grammar: dict[str, str], default: Any):
    admission = Admission.__new__(Admission)
    admission._default_specs, admission._default = [default], encode(default)
    gives_way = bool(grammar) and isinstance(default, ForcedTokenSequenceSpec)
    assert admission._takes_default(grammar) is not gives_way
    assert not admission._takes_default({"beam_width": 2})

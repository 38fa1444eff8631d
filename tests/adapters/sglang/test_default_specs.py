"""The wiring check: a variable, and any model says "Hello world!"."""

import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from logitport import spec as lp
from logitport.adapters.sglang import attach
from logitport.adapters.sglang.admission import Admission

from examples._support.sglang_server import OPTIONS

from .in_process import engine

pytestmark = pytest.mark.engine

ON = {"LOGITPORT_ENABLE_TEST_LOGITS_PROCESSOR": "1"}


def test_any_model_says_hello_world(model: Path):
    greedy = {"temperature": 0, "max_new_tokens": 16}
    with engine(model, ON) as running:
        prompt = "The capital of France is"
        assert running.generate(prompt, greedy)["text"] == "Hello world!"

        own = attach({"sampling_params": greedy}, lp.ChoiceSpec(((7042,),), 2))
        assert running.generate(prompt, **own)["text"] == " Paris"
        grammar = attach({"sampling_params": greedy}, lp.GrammarSpec(choices=(" Rome",)))
        assert running.generate(prompt, **grammar)["text"] == " Rome"

        # What reads the logits of labels generates nothing, and is left alone.
        hello, paris = running.score(prompt, [""], label_token_ids=[19556, 7042]).scores[0]
        assert hello < paris < 1


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


FORCED = lp.ForcedTokenSequenceSpec((5,), 2)


# default spec | the request's own fields | whether it acts beside them
@pytest.mark.parametrize(
    ("default", "own", "acts"),
    [
        (lp.BannedTokensSpec((5,)), {}, True),
        (lp.BannedTokensSpec((5,)), {"regex": "a+"}, True),
        (FORCED, {}, True),
        (FORCED, {"regex": "a+"}, False),
        (FORCED, {"min_new_tokens": 2}, False),
        (FORCED, {"min_new_tokens": 1}, True),
        (FORCED, {"min_new_tokens": 1, "stop_token_ids": [5]}, False),
        (FORCED, {"logit_bias": {"5": -math.inf}}, False),
        (FORCED, {"logit_bias": {"5": -100.0}}, True),
        (FORCED, {"beam_width": 2}, False),
        (FORCED, {"max_new_tokens": 0}, False),
    ],
)
def test_the_request_comes_first(default: lp.LogitsProcessorSpec, own: dict[str, Any], acts: bool):
    admission = Admission.__new__(Admission)
    admission._default_specs, admission._default = [default], lp.encode(default)
    admission._eos_token_ids = frozenset({2})
    assert admission._takes_default(own) is acts

"""The wiring check: a variable, and any model says "Hello world!"."""

from pathlib import Path

import pytest
from logitport.adapters.sglang import attach
from logitport.spec import ChoiceSpec, GrammarSpec, SpecError

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


def test_an_engine_that_calls_no_processors_does_not_start(model: Path):
    with pytest.raises(SpecError, match="--enable-custom-logit-processor"):
        with engine(model, ON, enable_custom_logit_processor=False):
            pass

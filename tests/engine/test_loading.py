"""How the processor comes into an engine, and what it does there before the first request."""

from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from logitport.adapters.core import defaults
from logitport.hooks.test_text import VARIABLES
from logitport.spec import ForcedTokenSequenceSpec, forced_sequence

from .in_process import FLAG, engine, params

pytestmark = pytest.mark.engine


@pytest.mark.parametrize(
    ("entry_point", "flag", "instances"),
    [(False, FLAG, 1), (True, FLAG, 2), (True, FLAG * 2, 3)],
    ids=["flag", "entry point and flag", "entry point and flag twice"],
)
def test_several_instances_act_once(
    model: Path, tokenizer: Any, entry_point: bool, flag: list[str] | None, instances: int
):
    spec = ForcedTokenSequenceSpec.from_text("Only once.", tokenizer)
    with engine(model, entry_point=entry_point, logits_processors=flag) as running:
        realizers = [processor._realizer for processor in running.processors]
        acting: list[int] = []
        for i, realizer in enumerate(realizers):
            patch.object(
                realizer,
                "add",
                side_effect=lambda *args, i=i, add=realizer.add: (acting.append(i), add(*args))[1],
            ).start()
        (output,) = running.generate(["Hello"], [params(spec, max_tokens=20)])

    assert len(realizers) == instances
    assert len(acting) == 1
    assert output.text == "Only once."


@pytest.mark.parametrize(
    ("variable", "loading"),
    [(VARIABLES[0], {}), (VARIABLES[1], {"logits_processors": FLAG}), (None, {})],
    ids=["ours", "Dynamo's, with two instances", "unset"],
)
def test_environment_variable(
    model: Path,
    tokenizer: Any,
    monkeypatch: pytest.MonkeyPatch,
    variable: str | None,
    loading: dict[str, Any],
):
    from logitport.adapters.vllm import processor

    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    if variable:
        monkeypatch.setenv(variable, "1")
    mine = ForcedTokenSequenceSpec.from_text("My own words.", tokenizer)
    prompts = ["Who are you?", "What is two plus two?", "Sing!"]
    requests = [
        params(max_tokens=20),
        params(mine, max_tokens=20),
        params(max_tokens=20, temperature=1.5),
    ]

    with (
        patch.object(processor, "load_tokenizer", wraps=processor.load_tokenizer) as load,
        patch.object(
            forced_sequence, "token_ids_of", wraps=forced_sequence.token_ids_of
        ) as tokenize,
        patch.object(defaults, "entry_points", wraps=defaults.entry_points) as look_up,
        engine(model, **loading) as running,
    ):
        running.generate(prompts, requests)
        outputs = running.generate(prompts, requests)

    texts = [output.text for output in outputs]
    assert texts[1] == "My own words."
    assert look_up.call_count == 1
    if variable:
        assert texts[0] == texts[2] == "Hello world!"
        assert [outputs[i].finish_reason for i in (0, 2)] == ["stop", "stop"]
        assert load.call_count == tokenize.call_count == 1
    else:
        assert "Hello world!" not in (texts[0], texts[2])
        assert load.call_count == tokenize.call_count == 0

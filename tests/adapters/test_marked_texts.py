"""Marked texts of the engines that run in the caller's process, with one key and detector."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from logitport.adapters.detection import Profile
from logitport.spec import SamplingSpec, SpecError

from tests.adapters.marked import KEY, MARK, PROFILES, p_values, prompts

pytestmark = pytest.mark.engine

SAMPLING = SamplingSpec(temperature=0.9, top_k=500, min_p=0.001)
LENGTH = 64

Say = Callable[[Sequence[str], dict[str, Any]], list[list[int]]]
"""Generates a text for each prompt, with the arguments that a processor takes beside specs."""


def with_transformers(model: Path) -> Say:
    import transformers
    from logitport.adapters.transformers import LogitportProcessor

    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    running = transformers.AutoModelForCausalLM.from_pretrained(model)

    def say(asked: Sequence[str], arguments: dict[str, Any]) -> list[list[int]]:
        inputs = tokenizer(list(asked), return_tensors="pt", padding=True, padding_side="left")
        processor = LogitportProcessor(running, [MARK] * len(asked), **inputs, **arguments)
        how: Any = {"max_new_tokens": LENGTH, "min_new_tokens": LENGTH, "do_sample": True}
        tokens = running.generate(**inputs, logits_processor=[processor], **how)
        return tokens[:, inputs["input_ids"].shape[1] :].tolist()

    return say


def with_mlx(model: Path) -> Say:
    import mlx_lm
    from logitport.adapters.mlx import LogitportProcessor
    from mlx_lm.sample_utils import make_sampler

    running, tokenizer = mlx_lm.load(str(model))[:2]

    def say(asked: Sequence[str], arguments: dict[str, Any]) -> list[list[int]]:
        texts = []
        for prompt in asked:
            processor = LogitportProcessor(running, tokenizer, [MARK], **arguments)
            how: Any = {"logits_processors": [processor], "sampler": make_sampler(temp=0.9)}
            stream = mlx_lm.stream_generate(running, tokenizer, prompt, LENGTH, **how)
            texts.append([each.token for each in stream])
        return texts

    return say


def with_llama_cpp(model: Path) -> Say:
    import llama_cpp
    from logitport.adapters.llama_cpp import arguments as arguments_of

    running = llama_cpp.Llama(str(model.with_suffix(".gguf")), n_ctx=512, verbose=False)

    def say(asked: Sequence[str], arguments: dict[str, Any]) -> list[list[int]]:
        sampling = arguments.get("sampling")
        specs = [MARK, *([sampling] if sampling else [])]
        how: Any = arguments_of(running, specs, arguments.get("profiles"))
        texts = []
        for prompt in asked:
            running.create_completion(prompt, max_tokens=LENGTH, **how)
            begun = len(running.tokenize(prompt.encode(), special=True))
            texts.append(running._input_ids.tolist()[begun:])
        return texts

    return say


@pytest.fixture(scope="module", params=["transformers", "mlx_lm", "llama_cpp"])
def say(request: pytest.FixtureRequest, model: Path) -> Say:
    pytest.importorskip(request.param)
    make: dict[str, Callable[[Path], Say]] = {
        "transformers": with_transformers,
        "mlx_lm": with_mlx,
        "llama_cpp": with_llama_cpp,
    }
    return make[request.param](model)


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, key in KEY.items():
        monkeypatch.setenv(name, key)


def test_texts_are_found(say: Say):
    tokens = say(prompts(3), {"profiles": PROFILES, "sampling": SAMPLING})
    assert max(p_values(tokens)) < 1e-6 < 1e-3 < min(p_values(tokens, "other"))


@pytest.mark.parametrize(
    ("profiles", "sampling", "message"),
    [
        (PROFILES, None, "needs `sampling` with the temperature"),
        (PROFILES, SamplingSpec(top_p=0.9), "needs `sampling` with the temperature"),
        (PROFILES, SamplingSpec(temperature=0), "because the text is marked; got 0.0"),
        (PROFILES, SamplingSpec(temperature=1, presence_penalty=1), "`presence_penalty`"),
        ({}, SAMPLING, "no profile 'news' of marks; profiles: it has none"),
    ],
    ids=["no sampling", "no temperature", "greedy", "a penalty", "no profile"],
)
def test_refused(say: Say, profiles: dict[str, Profile], sampling: Any, message: str):
    with pytest.raises(SpecError, match=message):
        say(["x"], {"profiles": profiles, "sampling": sampling})


def test_a_profile_without_a_key_is_refused(say: Say, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("NEWS_KEY")
    with pytest.raises(SpecError, match="NEWS_KEY"):
        say(["x"], {"profiles": PROFILES, "sampling": SAMPLING})

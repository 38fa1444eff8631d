"""Texts of the engines that run in the caller's process: marked, with one key, and with chains."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from logitport.adapters.detection import Profile
from logitport.spec import ChainSpec, ChainStep, SamplingSpec, SpecError, Xtc

from tests.adapters.marked import KEY, MARK, PROFILES, p_values, prompts

pytestmark = pytest.mark.slow

SAMPLING = SamplingSpec(temperature=0.9, top_k=500, min_p=0.001)
LENGTH = 64

Say = Callable[..., list[list[int]]]
"""Generates a text for each prompt, with the arguments that a processor takes beside specs.

It marks them, or has the specs of each. Without any specs, the likeliest tokens come.
"""


def with_transformers(model: Path) -> Say:
    import transformers
    from logitport.adapters.transformers import LogitportProcessor

    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    running: Any = transformers.AutoModelForCausalLM.from_pretrained(model, dtype="float32")

    def say(
        asked: Sequence[str], arguments: dict[str, Any], specs: Any = None, length: int = LENGTH
    ) -> list[list[int]]:
        specs = specs or [MARK] * len(asked)
        inputs = tokenizer(list(asked), return_tensors="pt", padding=True, padding_side="left")
        processor = LogitportProcessor(running, specs, **inputs, **arguments)
        how: Any = {"max_new_tokens": length, "min_new_tokens": length, "do_sample": any(specs)}
        tokens = running.generate(**inputs, logits_processor=[processor], **how)
        return tokens[:, inputs["input_ids"].shape[1] :].tolist()

    return say


def with_mlx(model: Path) -> Say:
    import mlx_lm
    from logitport.adapters.mlx import LogitportProcessor
    from mlx_lm.sample_utils import make_sampler

    running, tokenizer = mlx_lm.load(str(model))[:2]

    def say(
        asked: Sequence[str], arguments: dict[str, Any], specs: Any = None, length: int = LENGTH
    ) -> list[list[int]]:
        texts, temperature = [], getattr(arguments.get("sampling"), "temperature", 0) or 0
        for prompt, each in zip(asked, specs or [[MARK]] * len(asked), strict=True):
            processors = [LogitportProcessor(running, tokenizer, each, **arguments)] if each else []
            sampler = make_sampler(temp=temperature)
            how: Any = {"logits_processors": processors, "sampler": sampler}
            stream = mlx_lm.stream_generate(running, tokenizer, prompt, length, **how)
            texts.append([each.token for each in stream])
        return texts

    return say


def with_llama_cpp(model: Path) -> Say:
    import llama_cpp
    from logitport.adapters.llama_cpp import arguments as arguments_of

    running = llama_cpp.Llama(str(model.with_suffix(".gguf")), n_ctx=512, verbose=False)

    def say(
        asked: Sequence[str], arguments: dict[str, Any], specs: Any = None, length: int = LENGTH
    ) -> list[list[int]]:
        sampling = arguments.get("sampling", SamplingSpec(temperature=0) if specs else None)
        texts = []
        for prompt, each in zip(asked, specs or [[MARK]] * len(asked), strict=True):
            given = [*each, *([sampling] if sampling else [])]
            how: Any = arguments_of(running, given, arguments.get("profiles"))
            running.create_completion(prompt, max_tokens=length, **how)
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


def test_no_token_comes_that_a_chain_does_not_leave(say: Say):
    """With one token left, its temperature makes no difference; beside it, others draw freely."""
    asked, sampling = prompts(2), {"sampling": SamplingSpec(temperature=1)}
    likeliest = say(asked, {}, [[], []], 12)
    for steps in (
        (ChainStep(top_k=1), ChainStep(temperature=100)),
        (ChainStep(temperature=100), ChainStep(top_n_sigma=1e-3)),
    ):
        chained, free = say(asked, sampling, [[ChainSpec(steps)], []], 12)
        assert chained == likeliest[0]
        assert free != likeliest[1]
    hot = say(asked[:1], sampling, [[ChainSpec((ChainStep(temperature=100),))]], 12)
    assert hot[0] != likeliest[0]


def test_xtc_leaves_out_the_likeliest(say: Say):
    """Where another token is likely enough, too: with so low a threshold, almost everywhere."""
    (likeliest,) = say(prompts(1), {}, [[]], 8)
    steps = ChainStep(top_k=2), ChainStep(xtc=Xtc(1e-30, 1))
    (text,) = say(prompts(1), {"sampling": SamplingSpec(temperature=1)}, [[ChainSpec(steps)]], 8)
    assert text[0] != likeliest[0]
    again = say(prompts(1), {"sampling": SamplingSpec(temperature=0.5)}, [[ChainSpec(steps)]], 8)
    assert again == [text]  # of two tokens, the less likely one is left each time


@pytest.mark.parametrize(
    ("sampling", "message"),
    [
        (None, "A chain needs `sampling` with the temperature"),
        (SamplingSpec(temperature=0.5), "a temperature of 1, or of 0.8 as in its steps"),
        (SamplingSpec(temperature=1, top_k=5), "no top_k, which can be a step before xtc"),
        (SamplingSpec(temperature=1, presence_penalty=1), "`presence_penalty`"),
    ],
)
def test_chains_that_are_refused(say: Say, sampling: Any, message: str):
    chain = ChainSpec((ChainStep(xtc=Xtc(0.1, 1)), ChainStep(temperature=0.8)))
    with pytest.raises(SpecError, match=message):
        say(["x"], {"sampling": sampling}, [[chain]])

"""Marked texts of the real engine, under either runner."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from logitport import spec as lp
from logitport.adapters.detection import detect
from vllm.sampling_params import StructuredOutputsParams

from tests.adapters.marked import CONFIGURATION, KEY, MARK, PROFILES, REQUIRED, UNMARKED, p_values
from tests.adapters.marked import prompts as prompts_of

from .in_process import Engine, engine, lookup, params, refused

pytestmark = pytest.mark.slow

BOTH = CONFIGURATION | {"guard": [{"kind": "banned_text", "texts": ["the"]}]}


@pytest.fixture(scope="module", autouse=True)
def keys() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, key in KEY.items():
            patch.setenv(name, key)
        yield


@pytest.fixture(scope="module")
def running(model: Path, runner: str, keys: None) -> Iterator[Engine]:
    settings: dict[str, Any] = {"additional_config": {"logitport": BOTH}}
    if runner == "v1":
        settings["logprobs_mode"] = "processed_logprobs"
    else:  # V1 loads no processors beside drafts
        settings["speculative_config"] = lookup(2)
    with engine(model, max_num_seqs=64, **settings) as running:
        yield running


def sampling(count: int, specs: Any = MARK, **fields: Any) -> list[Any]:
    return [params(specs, **{"temperature": 1.0, **fields}) for _ in range(count)]


def test_replies_are_found(running: Engine, runner: str):
    """Of 100 replies of 200 tokens, V1 marked 100 so. V2 is interpreted here, and slow."""
    count, length, least = (12, 100, 11) if runner == "v1" else (3, 40, 3)
    prompts = prompts_of(count)
    asked = sampling(count, max_tokens=length, ignore_eos=True)
    tokens = [output.token_ids for output in running.generate(prompts, asked)]
    assert sum(p < 1e-6 for p in p_values(tokens)) >= least
    assert sum(p < 1e-3 for p in p_values(tokens, "other")) == 0
    asked = sampling(count, None, max_tokens=length, ignore_eos=True)
    if runner == "v1":
        plain = [output.token_ids for output in running.generate(prompts, asked)]
        assert sum(p < 1e-3 for p in p_values(plain)) == 0


def test_a_chain_decides_what_is_drawn(running: Engine):
    """At a temperature beyond vLLM's own, the likeliest comes, beside requests without a chain."""
    prompts, one = prompts_of(3), lp.ChainStep(top_k=1)
    hot = lp.ChainStep(temperature=50)
    greedy = [None, lp.ChainSpec((one, hot)), lp.ChainSpec((lp.ChainStep(p_less=True), hot, one))]
    exact = lp.ChainSpec((lp.ChainStep(top_n_sigma=0.001), lp.ChainStep(xtc=lp.Xtc(0.01, 0.5))))
    asked = [params(specs, temperature=float(bool(specs)), max_tokens=20) for specs in greedy]
    asked += [params(exact, temperature=0.8, max_tokens=20)]
    several = [prompts[0]] * len(asked) + prompts[1:]
    free = [params(None, temperature=0, max_tokens=20) for _ in prompts[1:]]
    texts = [tuple(each.token_ids) for each in running.generate(several, [*asked, *free])]
    assert len({*texts[: len(asked)]}) == 1
    assert [texts[-2:]] == [[tuple(e.token_ids) for e in running.generate(prompts[1:], free)]]


def test_a_chain_is_refused_beside_what_changes_it(running: Engine):
    excludes = lp.ChainSpec((lp.ChainStep(xtc=lp.Xtc(0.1, 0.5)),))
    tempered = lp.ChainSpec((lp.ChainStep(temperature=0.5),))
    for specs, field, value in (
        *((excludes, "top_p", 0.9), (excludes, "min_p", 0.1), (excludes, "top_k", 5)),
        *((excludes, "temperature", 0), (tempered, "temperature", 0.7)),
        *((tempered, "repetition_penalty", 1.1), (excludes, "presence_penalty", 0.5)),
    ):
        with refused(field):
            running.generate(["a"], [params(specs, **{"temperature": 1.0, field: value})])


def test_a_mark_comes_last(running: Engine):
    """What other specs force stays; what they and the guard ban does not come."""
    phases = lp.PhasesSpec(
        (
            lp.Phase((lp.ForcedTokenSequenceSpec((5, 6, 7)),), (lp.PhaseEnd(complete=True),)),
            lp.Phase((lp.BannedTokensSpec((8, 9)),)),
        )
    )
    prompts = prompts_of(2)
    for output in running.generate(prompts, sampling(2, (phases, MARK), max_tokens=40)):
        assert output.token_ids[:3] == [5, 6, 7]
        assert {8, 9}.isdisjoint(output.token_ids)
        assert "the" not in output.text
        assert detect(output.token_ids, {"news": PROFILES["news"]}).is_watermarked


def test_a_reply_that_another_worker_goes_on_with(running: Engine):
    """With what has been said counted as output, the rest is what it would have been."""
    prompt = running.llm.get_tokenizer().encode(prompts_of(1)[0])
    (whole,) = running.generate([{"prompt_token_ids": prompt}], sampling(1, max_tokens=24))
    said = list(whole.token_ids[:10])
    asked = params(MARK, temperature=1.0, max_tokens=14)
    asked.extra_args = {"logitport": lp.encode([MARK], continued=len(said))}
    (rest,) = running.generate([{"prompt_token_ids": prompt + said}], [asked])
    assert [*said, *rest.token_ids] == list(whole.token_ids)


@pytest.mark.parametrize(("fields", "path"), UNMARKED)
def test_refused(running: Engine, fields: dict[str, Any], path: str):
    with refused(f"because the text is marked; got .* - at `{path}`"):
        running.generate(["x"], [params(MARK, **{"temperature": 1.0, **fields})])
    with refused("This server has no profile 'mine' of marks; profiles: news, other"):
        running.generate(["x"], [params(lp.WatermarkSpec("mine"), temperature=1.0)])


@pytest.mark.only("v1", reason="under V2, chains are tested with drafts")
def test_no_token_comes_that_a_chain_does_not_leave(running: Engine, runner: str):
    """In one batch with requests that have none. What is left is what the engine shows, too."""
    prompts, how = prompts_of(4), {"max_tokens": 16, "ignore_eos": True, "logprobs": 8}
    likeliest = running.generate(prompts, sampling(4, None, **how | {"temperature": 0}))
    hot = lp.ChainStep(temperature=100)
    asked = [
        *sampling(1, lp.ChainSpec((lp.ChainStep(top_k=1), hot)), **how),
        *sampling(1, lp.ChainSpec((hot, lp.ChainStep(top_n_sigma=1e-3))), **how),
        *sampling(1, lp.ChainSpec((lp.ChainStep(top_k=3), hot)), **how),
        *sampling(1, None, **how | {"temperature": 2}),
    ]
    outputs = running.generate(prompts, asked)
    texts = [list(each.token_ids) for each in outputs]
    assert texts[:2] == [list(each.token_ids) for each in likeliest[:2]]
    assert texts[2] != list(likeliest[2].token_ids)
    for output, left in zip(outputs, (1, 1, 3, 8), strict=True):
        rows: Any = output.logprobs
        for token, row in zip(output.token_ids, rows, strict=True):
            shown = [each.logprob for each in row.values() if each.logprob > -1e9]
            assert len(shown) in (left, left + 1)  # the drawn token is shown besides
            assert row[token].logprob > -1e9
    xtc = lp.ChainSpec((lp.ChainStep(top_k=2), lp.ChainStep(xtc=lp.Xtc(1e-30, 1))))
    (second,) = running.generate(prompts[:1], sampling(1, xtc, **how))
    assert second.token_ids[0] != likeliest[0].token_ids[0]
    with refused("no top_k, which can be a step before xtc, .* - at `top_k`"):
        running.generate(["x"], sampling(1, xtc, top_k=5))
    with refused("Expected 0, because the request has a `chain`; got 0.5 - at `presence_penalty`"):
        running.generate(["x"], sampling(1, xtc, presence_penalty=0.5))


@pytest.mark.only("v1", reason="both runners have the same front end")
def test_required(model: Path, runner: str):
    settings = {"additional_config": {"logitport": CONFIGURATION | REQUIRED}}
    with engine(model, **settings) as running:
        prompts = prompts_of(4)
        for specs in (None, lp.BannedTokensSpec((5,))):
            asked = sampling(4, specs, max_tokens=60, ignore_eos=True)
            tokens = [output.token_ids for output in running.generate(prompts, asked)]
            assert max(p_values(tokens)) < 1e-6
            for fields, path in UNMARKED:
                with refused(f"because the text is marked; got .* - at `{path}`"):
                    running.generate(["x"], [params(specs, **{"temperature": 1.0, **fields})])
        with refused("marks its texts with the profile 'news' - at .*profile"):
            running.generate(["x"], [params(lp.WatermarkSpec("other"), temperature=1.0)])
        grammar = StructuredOutputsParams(choice=["yes", "no"])
        asked = params(temperature=0, max_tokens=4, structured_outputs=grammar)
        assert running.generate(["x"], [asked])[0].text in ("yes", "no")


@pytest.mark.only("v2", reason="V1 has no mark of its own")
def test_the_same_texts_as_the_engines_own_mark(model: Path, runner: str):
    """The engine marks by itself where it has the same key: token for token what we would say."""
    prompts, fields = prompts_of(2), {"max_tokens": 24, "ignore_eos": True}
    logitport, texts = {"additional_config": {"logitport": CONFIGURATION | REQUIRED}}, []
    key = int(KEY["NEWS_KEY"], 16)
    for settings in ({}, {"watermark_config": {"key": key}}):
        with engine(model, **logitport, **settings) as running:
            asked = sampling(2, None, temperature=0.8, top_k=50, **fields)
            texts.append([list(each.token_ids) for each in running.generate(prompts, asked)])
            assert (running.acting._realizer._guards is None) is bool(settings)
            if settings:
                with refused("This server marks its texts - at `watermarking`"):
                    running.generate(["x"], sampling(1, None, watermarking=False))
    assert texts[0] == texts[1]

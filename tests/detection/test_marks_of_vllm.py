"""vLLM's own watermarks and detectors against ours, and the golden file for other environments."""

from typing import Any

import numpy as np
import pytest
from logitport.adapters.detection import philox
from logitport.adapters.detection.schemes import derived

from tests.support.marks import assert_close, find, golden, natural, profile

watermarking: Any = pytest.importorskip("vllm.v1.watermarking")
torch: Any = pytest.importorskip("torch")

KEYS = [0, 42, 43, 2**32, 2**64 - 1]
WIDTHS = [1, 4, 5, 9]
ALPHAS = [0.1, 0.2, 0.5, 1.0]


def draw(rng: np.random.Generator, logits: Any) -> Any:
    return torch.argmax(logits + torch.tensor(rng.gumbel(size=logits.shape)), dim=-1)


def generate(
    config: dict[str, Any], rng: np.random.Generator, count: int, prompt: tuple[int, ...] = ()
) -> tuple[list[int], list[int]]:
    """Draw a reply with vLLM's watermarker; return it, and the indices of its marked tokens."""
    from vllm.config.watermarking import WatermarkConfig
    from vllm.v1.worker.gpu.sample.watermark import repeated_context_mask

    config = {"deduplicate_contexts": "single_turn", "context_width": 4, **config}
    watermarker = watermarking.create_watermarker(WatermarkConfig(**config))
    width, is_all = config["context_width"], config["deduplicate_contexts"] == "all"
    model = rng.normal(0, 2, (64, 64))
    output, at = list[int](), list[int]()
    for i in range(count):
        contexts = torch.tensor([([-1] * width + output)[-width:]])
        history = torch.tensor([[*prompt, *output, 0]])
        row, start, end = (torch.tensor([each]) for each in (0, len(prompt), len(prompt) + i))
        skip = repeated_context_mask(
            *(history, row, start, end, contexts),
            include_prompt=is_all,
            skip_partial_context=is_all,
        )
        logits = torch.tensor(model[[output[-1] if output else 0]], dtype=torch.float32)
        sample = watermarker.sample(logits, contexts, lambda row: draw(rng, row), skip)
        output.append(int(sample.token_ids))
        at += [] if skip else [i]
    return output, at


def detected(key: int, tokens: list[int], width: int, alpha: float | None) -> dict[str, Any]:
    """What vLLM's detector finds, as a vector."""
    fields: dict[str, Any] = {"width": width}
    if alpha is None:
        detector = watermarking.GumbelWatermarkDetector(key, width)
    else:
        detector = watermarking.DualKeyGumbelWatermarkDetector(key, width, alpha=alpha)
        fields["alpha"] = alpha
    found = detector.detect(tokens)
    return {
        "profile": {"scheme": f"vllm-{'gumbel' if alpha is None else 'dual-gumbel'}", **fields},
        "key": str(key),
        "token_ids": tokens,
        "scored": found.num_scored_tokens,
        "score": found.score,
        "p_value": found.p_value,
    }


@pytest.mark.slow
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("key", KEYS)
def test_uniform_numbers(key: int, width: int):
    rng = np.random.default_rng(width)
    contexts = rng.integers(0, 2**32, (500, width)) * (rng.random((500, width)) < 0.9)
    contexts[:100, : width // 2 + 1] = -1
    tokens = rng.integers(0, 2**32, 500)
    found = philox.uniforms(key, contexts, tokens)
    prf = watermarking.create_prf("philox", key)
    expected = prf.uniform(torch.tensor(contexts), torch.tensor(tokens)[:, None]).squeeze(-1)
    np.testing.assert_array_equal(found, expected.numpy())
    assert found.dtype == np.float32


@pytest.mark.parametrize("key", KEYS)
def test_derived_keys(key: int):
    from vllm.config.watermarking import derive_watermark_key

    for name in (b"key_a", b"key_b"):
        assert derived(key, name) == derive_watermark_key(key, name)


@pytest.mark.slow
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("key", KEYS)
def test_detections(key: int, width: int):
    rng = np.random.default_rng(key % 1000 + width)
    texts = [
        generate({"key": key, "context_width": width}, rng, 64)[0],
        rng.integers(0, 151_936, 64).tolist(),
        natural(rng, 1, 100)[0].tolist(),
    ]
    for text in texts:
        for alpha in (None, *ALPHAS):
            vector = detected(key, text, width, alpha)
            found = find(profile(vector["key"], **vector["profile"]), text)
            assert_close([found.scored, found.score], [vector["scored"], vector["score"]])
            # An extreme p-value has the rounding of its large logarithm.
            assert found.p_value == pytest.approx(vector["p_value"], rel=1e-8, abs=1e-300)


# configuration | prompt: the marked tokens are those that we score
MARKED: list[tuple[dict[str, Any], tuple[int, ...]]] = [
    ({"key": 42}, ()),
    ({"key": 2**64 - 1, "context_width": 1}, ()),
    ({"key": 42, "context_width": 1}, (3, 5, 8)),
    ({"key": 42, "deduplicate_contexts": "all"}, ()),
    ({"key": 42, "deduplicate_contexts": "all", "context_width": 1}, (3, 5, 8, 13, 21)),
    ({"key": 42, "deduplicate_contexts": "all", "context_width": 2}, tuple(range(63)) * 3),
    ({"key": 42, "deduplicate_contexts": "all", "context_width": 9}, (3,)),
    ({"key": 42, "algorithm": "dual_key_gumbel", "alpha": 0.2}, ()),
]


@pytest.mark.slow
@pytest.mark.parametrize(("config", "prompt"), MARKED)
def test_what_is_marked_is_scored(config: dict[str, Any], prompt: tuple[int, ...]):
    dual = "algorithm" in config
    ours = profile(
        str(config["key"]),
        scheme="vllm-dual-gumbel" if dual else "vllm-gumbel",
        width=config.get("context_width", 4),
        deduplicate=config.get("deduplicate_contexts", "single_turn"),
        **({"alpha": config["alpha"]} if dual else {}),
    )
    for seed in range(6):
        text, at = generate(config, np.random.default_rng(seed), 64, prompt)
        scores = ours.scores(ours.keys(), np.array(text), np.array(prompt, int))
        assert scores.positions.tolist() == at
        assert find(ours, text, prompt).log10_p < -6


def test_golden(request: pytest.FixtureRequest):
    rng = np.random.default_rng(50)
    vectors: list[dict[str, Any]] = []
    for key, width in zip(KEYS, [4, 1, 5, 9, 4], strict=True):
        text = generate({"key": key, "context_width": width}, rng, 64)[0]
        vectors += [detected(key, text, width, alpha) for alpha in (None, 0.1, 0.2)]
    vectors += [detected(42, rng.integers(0, 151_936, 64).tolist(), 4, None)]
    golden("vllm", vectors, request)

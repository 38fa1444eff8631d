"""The processors and detectors of transformers against our ``kgw`` and ``synthid``."""

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from logitport.adapters.detection.torch_random import words

from tests.support.marks import assert_close, find, golden, natural, profile

transformers: Any = pytest.importorskip("transformers")
torch: Any = pytest.importorskip("torch")

VOCABULARY = 300
KEYS = [654, 400, 836, 123, 340, 443, 597, 160, 57]
# seeding | width
SEEDING = [("lefthash", 1), ("lefthash", 3), ("selfhash", 1), ("selfhash", 4)]


def replies(processor: Any, rng: np.random.Generator, rows: int, count: int) -> list[list[int]]:
    """Draw replies to a prompt of four tokens from a random model, as the processor wants them."""
    model = rng.normal(0, 1.5, (VOCABULARY, VOCABULARY))
    texts = torch.tensor(rng.integers(0, VOCABULARY, (rows, 4)))
    for _ in range(count):
        scores = processor(texts, torch.tensor(model[texts[:, -1].numpy()], dtype=torch.float32))
        drawn = (scores.double() + torch.tensor(rng.gumbel(size=scores.shape))).argmax(-1)
        texts = torch.cat([texts, drawn[:, None]], dim=-1)
    return texts[:, 4:].tolist()


class TestKgw:
    @staticmethod
    def processor(seeding: str, width: int, key: int = 15485863, size: int = VOCABULARY) -> Any:
        return transformers.WatermarkLogitsProcessor(
            size, "cpu", hashing_key=key, seeding_scheme=seeding, context_width=width
        )

    @staticmethod
    def counts(text: list[int], seeding: str, width: int, once: bool, **more: Any) -> list[int]:
        """The tokens that the detector of transformers scores, and the green ones."""
        config = {"seeding_scheme": seeding, "context_width": width, "greenlist_ratio": 0.25}
        config |= {"bias": 2.0, "hashing_key": more.get("key", 15485863)}
        model = SimpleNamespace(
            bos_token_id=-1, is_encoder_decoder=False, vocab_size=more.get("size", VOCABULARY)
        )
        theirs = transformers.WatermarkDetector(model, "cpu", config, ignore_repeated_ngrams=once)
        found = theirs(torch.tensor([text]), return_dict=True)
        return [int(found.num_tokens_scored[0]), int(found.num_green_tokens[0])]

    @staticmethod
    def ours(text: list[int], seeding: str, width: int, once: bool, **more: Any) -> list[int]:
        fields = {"vocab_size": more.get("size", VOCABULARY), "seeding": seeding, "width": width}
        key = str(more.get("key", 15485863))
        found = find(profile(key, scheme="kgw", deduplicate=once, **fields), text)
        return [found.scored, round(found.score)]

    @pytest.mark.parametrize(("seeding", "width"), SEEDING)
    def test_counts_of_marked_texts(self, seeding: str, width: int):
        rng = np.random.default_rng(width)
        for text in replies(self.processor(seeding, width), rng, 5, 60):
            expected = self.counts(text, seeding, width, False)
            assert self.ours(text, seeding, width, False) == expected
            assert expected[1] > 0.4 * expected[0]

    @pytest.mark.parametrize("key", [1, 15485863, 2**40 + 1, 2**63 - 1])
    @pytest.mark.parametrize(("seeding", "width"), SEEDING)
    def test_keys(self, seeding: str, width: int, key: int):
        text = natural(np.random.default_rng(width), 1, 60, VOCABULARY)[0].tolist()
        expected = self.counts(text, seeding, width, False, key=key)
        assert self.ours(text, seeding, width, False, key=key) == expected

    @pytest.mark.parametrize("size", [10, 1000, 50_257, 151_936])
    def test_vocabularies(self, size: int):
        """Also with tokens that the model's size does not have: they are never green."""
        text = np.random.default_rng(size).integers(0, size + size // 10, 30).tolist()
        expected = self.counts(text, "lefthash", 1, False, size=size)
        assert self.ours(text, "lefthash", 1, False, size=size) == expected

    def test_equal_pairs_count_once(self):
        for text in natural(np.random.default_rng(3), 5, 300, VOCABULARY).tolist():
            expected = self.counts(text, "lefthash", 1, True)
            assert self.ours(text, "lefthash", 1, True) == expected
            assert expected[0] < 250

    @pytest.mark.parametrize(("seeding", "width"), SEEDING)
    def test_what_decides_a_token_counts_once(self, seeding: str, width: int):
        """Ours goes further than transformers: other n-grams may have the same list and token."""
        processor = self.processor(seeding, width)
        for text in natural(np.random.default_rng(4), 3, 300, VOCABULARY).tolist():
            known: dict[Any, bool] = {}
            for i in range(width - (seeding == "selfhash"), len(text)):
                window = torch.tensor(text[: i + (seeding == "selfhash")])
                greens = processor._get_greenlist_ids(window)
                known[processor.rng.initial_seed(), text[i]] = text[i] in greens
            expected = [len(known), sum(known.values())]
            assert self.ours(text, seeding, width, True) == expected


def synthid(keys: list[int], ngram: int, size: int = 65536, seed: int = 0) -> Any:
    return transformers.SynthIDTextWatermarkLogitsProcessor(
        ngram_len=ngram,
        keys=keys,
        sampling_table_size=size,
        sampling_table_seed=seed,
        context_history_size=1024,
        device="cpu",
    )


def weighted_mean(processor: Any, text: list[int]) -> tuple[int, float]:
    """The tokens that count and their mean, as detector_mean.py of synthid-text weights it."""
    tokens = torch.tensor([text])
    mask = processor.compute_context_repetition_mask(tokens)[0].numpy()
    g = processor.compute_g_values(tokens)[0].double().numpy()[mask]
    weights = np.linspace(10, 1, g.shape[1])
    return len(g), float((g @ weights).sum() / (len(g) * weights.sum()))


def as_score(mean: float, scored: int, keys: list[int], table: np.ndarray) -> float:
    """Our score, of the same bits: a sum with a mean of 0 and a variance of 1 for each token."""
    weights, share = np.linspace(10, 1, len(keys)), table.mean()
    scale = weights.sum() / math.sqrt((weights**2).sum() * share * (1 - share))
    return scored * (mean - share) * scale


# keys | ngram | table size | its seed
TABLES = [
    (KEYS, 5, 65536, 0),
    (KEYS[:2], 2, 65536, 7),
    ([*range(30)], 8, 2**16 + 1, 3),
    ([2**62, 2**63 - 1, 5], 5, 4096, 2**40 + 1),
]


@pytest.mark.parametrize(("keys", "ngram", "size", "seed"), TABLES)
def test_weighted_means(keys: list[int], ngram: int, size: int, seed: int):
    processor, rng = synthid(keys, ngram, size, seed), np.random.default_rng(ngram)
    ours = profile(
        *(" ".join(map(str, keys)),),
        **{"scheme": "synthid", "ngram": ngram, "table_size": size, "table_seed": seed},
    )
    table = processor.sampling_table.numpy()
    np.testing.assert_array_equal(table, words(seed, size) % 2)
    marked = replies(processor, rng, 20, 80)
    for text in [*marked, *natural(rng, 5, 300, VOCABULARY).tolist()]:
        scored, mean = weighted_mean(processor, text)
        found = find(ours, text)
        assert found.scored == scored
        assert found.score == pytest.approx(as_score(mean, scored, keys, table), rel=1e-9, abs=1e-9)
    assert sum(find(ours, text).p_value < 0.01 for text in marked) >= 16


def test_golden(request: pytest.FixtureRequest):
    rng = np.random.default_rng(50)
    vectors: list[dict[str, Any]] = []
    for seeding, width in SEEDING:
        (text,) = replies(TestKgw.processor(seeding, width), rng, 1, 64)
        scored, greens = TestKgw.counts(text, seeding, width, False)
        fields = {"vocab_size": VOCABULARY, "seeding": seeding, "width": width}
        vectors.append(
            {
                "profile": {"scheme": "kgw", "deduplicate": False, **fields},
                "key": "15485863",
                "token_ids": text,
                "scored": scored,
                "score": float(greens),
            }
        )
    processor = synthid(KEYS, 5)
    (text,) = replies(processor, rng, 1, 64)
    scored, mean = weighted_mean(processor, text)
    vectors.append(
        {
            "profile": {"scheme": "synthid"},
            "key": " ".join(map(str, KEYS)),
            "token_ids": text,
            "scored": scored,
            "score": as_score(mean, scored, KEYS, processor.sampling_table.numpy()),
        }
    )
    assert_close(len(vectors), 5)
    golden("transformers", vectors, request)

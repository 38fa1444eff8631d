"""Steps of a chain beside llama.cpp's samplers and the warpers of transformers, on random rows.

What is allowed to differ is in docs/samplers.md: tokens that are exactly as likely as the last that
an engine keeps stay here; the likeliest stays; banned tokens are in no sum. Besides, engines add up
in float32: a step with a number that differs by so much has to agree.
"""

from collections.abc import Iterator, Sequence
from ctypes import POINTER, cast
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from logitport.adapters.core.host.shape import shape
from logitport.spec import ChainSpec, ChainStep, Xtc

from tests.support.samplers import softmax

pytestmark = pytest.mark.slow

ROWS, BATCH = 10_000, 100
BANNED = np.float32(-1e9)
DELTA = 1e-4
"""By how much sums of float32 differ, as a share."""
VALUES: dict[str, Sequence[Any]] = {
    "temperature": (0.05, 0.7, 1.5, 20.0),
    "top_k": (1, 3, 40, 1500),
    "top_p": (0.05, 0.5, 0.9, 0.99),
    "min_p": (0.01, 0.1, 0.5, 0.99),
    "typical": (0.1, 0.5, 0.9, 0.99),
    "top_n_sigma": (0.1, 1.0, 1.5, 3.0),
    "epsilon": (3e-4, 3e-3, 0.05, 0.9),
    "eta": (3e-4, 3e-3, 0.05, 0.9),
    "top_h": (0.1, 0.4, 0.7, 0.95),
}


class Rows(NamedTuple):
    """Rows of one size, one of which has one of the values of a step; banned tokens get -1e9."""

    logits: np.ndarray
    which: np.ndarray

    @property
    def masked(self) -> np.ndarray:
        return np.where(self.logits > BANNED / 2, self.logits, -np.inf).astype(np.float32)


def batches() -> Iterator[Rows]:
    """Usual, flat and peaked rows, with ties, with masked and with banned tokens."""
    rng = np.random.default_rng(7)
    for _ in range(ROWS // BATCH):
        size = int(np.exp(rng.uniform(np.log(64), np.log(2000))))
        logits = rng.normal(size=(BATCH, size)) * rng.choice([0.3, 1, 3, 8], (BATCH, 1))
        offsets = rng.normal(size=(BATCH, 1)) * 10
        logits = logits + offsets
        logits = torch.from_numpy(logits).float()
        logits[: BATCH // 3] = logits[: BATCH // 3].bfloat16().float()  # with ties
        logits, at = logits.numpy(), rng.random((BATCH, size))
        logits[(at < 0.3) & (rng.random((BATCH, 1)) < 0.5)] = -np.inf
        logits += np.where((at > 0.8) & (rng.random((BATCH, 1)) < 0.5), BANNED, np.float32(0))
        logits[:, 5] = offsets[:, 0]  # one at least may come
        yield Rows(logits, rng.integers(0, 4, BATCH))


def ours(row: np.ndarray, *steps: ChainStep) -> np.ndarray:
    left = shape(row, steps, float(BANNED) / 2)
    assert left is not None
    shaped = np.full(len(row), -np.inf, np.float32)
    shaped[left.tokens] = left.logits
    return shaped


def assert_same(name: str, value: Any, row: np.ndarray, after: np.ndarray) -> bool:
    """Hold an engine's row to ours; return whether the same tokens are left."""
    shaped = ours(row, ChainStep(**{name: value}))
    theirs, kept = (after > -np.inf) & (row > BANNED / 2), shaped > -np.inf
    np.testing.assert_array_equal(shaped[theirs & kept], after[theirs & kept])
    likeliest = row == row.max()
    if np.array_equal(theirs | (likeliest if name == "typical" else False), kept):
        return True
    order = _farness(row) if name == "typical" else -row
    level = np.abs(order - order[theirs].max()) <= (1e-4 if name == "typical" else 0)
    if not (theirs & ~kept).any() and not (kept & ~theirs & ~level & ~likeliest).any():
        return False  # it cuts ties, or the likeliest
    if name == "top_h" and softmax(row.astype(np.float64)).max() > 0.99:
        return False  # in float32, the logarithm of the likeliest is 0, or noise
    assert name in ("top_p", "min_p", "typical", "top_n_sigma", "epsilon", "eta", "top_h")
    below, above = (
        ours(row, ChainStep(**{name: min(value * (1 + sign * DELTA), 1 if value < 1 else 9)}))
        for sign in (-1, 1)
    )
    least, most = (below, above) if name in HIGHER_KEEPS else (above, below)
    assert not (theirs & (most == -np.inf) & ~level).any(), (name, value)
    assert not ((least > -np.inf) & ~theirs & ~level & ~likeliest).any(), (name, value)
    return False


HIGHER_KEEPS = "top_p", "typical", "top_n_sigma", "top_h"


def _farness(row: np.ndarray) -> np.ndarray:
    logits = np.where(row > BANNED / 2, row.astype(np.float64), -np.inf)
    p = softmax(logits)
    with np.errstate(divide="ignore", invalid="ignore"):
        log_p = np.log(p)
        return np.abs(-log_p + np.nansum(p * log_p))


class LlamaCpp:
    """llama.cpp's samplers, as its library has them."""

    DATA = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])

    def __init__(self) -> None:
        self.lib: Any = pytest.importorskip("llama_cpp.llama_cpp")
        lib = self.lib
        self.make = {
            "temperature": lib.llama_sampler_init_temp,
            "top_k": lib.llama_sampler_init_top_k,
            "top_p": lambda value: lib.llama_sampler_init_top_p(value, 0),
            "min_p": lambda value: lib.llama_sampler_init_min_p(value, 0),
            "typical": lambda value: lib.llama_sampler_init_typical(value, 0),
            "top_n_sigma": lib.llama_sampler_init_top_n_sigma,
            "xtc": lambda xtc: lib.llama_sampler_init_xtc(xtc.probability, xtc.threshold, 0, 11),
        }

    def apply(self, row: np.ndarray, *samplers: Any) -> np.ndarray:
        data = np.zeros(len(row), self.DATA)
        data["id"], data["logit"] = np.arange(len(row)), row
        first = cast(data.ctypes.data, POINTER(self.lib.llama_token_data))
        array = self.lib.llama_token_data_array(first, len(row), -1, False)
        for sampler in samplers:
            self.lib.llama_sampler_apply(sampler, array)
        offset = (cast(array.data, self.lib.ctypes.c_void_p).value or 0) - data.ctypes.data
        kept = data[offset // self.DATA.itemsize :][: array.size]
        after = np.full(len(row), -np.inf, np.float32)
        after[kept["id"]] = kept["logit"]
        return after


@pytest.fixture(scope="module")
def llama_cpp() -> LlamaCpp:
    return LlamaCpp()


@pytest.mark.parametrize(
    ("name", "most"),
    [
        *(("temperature", 0), ("top_k", 0.1), ("top_p", 0.15), ("min_p", 0.01)),
        *(("typical", 0.15), ("top_n_sigma", 0.01)),
    ],
)
def test_llama_cpp(name: str, most: float, llama_cpp: LlamaCpp):
    """In at most so many rows are others left."""
    others, samplers = 0, [llama_cpp.make[name](value) for value in VALUES[name]]
    for rows in batches():
        for row, which in zip(rows.masked, rows.which, strict=True):
            after, seen = np.full_like(row, -np.inf), np.ones(len(row), np.bool_)
            if name == "typical":  # with a token that has no mass, its entropy is NaN
                seen = row > -np.inf
            after[seen] = llama_cpp.apply(row[seen], samplers[which])
            others += not assert_same(name, VALUES[name][which], row, after)
    assert others <= most * ROWS


@pytest.mark.parametrize(
    ("name", "most"),
    [
        *(("temperature", 0), ("top_k", 0), ("top_p", 0.15), ("min_p", 0.01), ("typical", 0.15)),
        *(("epsilon", 0.01), ("eta", 0.01), ("top_h", 0.2)),
    ],
)
def test_transformers(name: str, most: float):
    """In at most so many rows are others left."""
    process = pytest.importorskip("transformers.generation.logits_process")
    camel = {"top_k": "TopK", "top_p": "TopP", "min_p": "MinP", "top_h": "TopH"}
    make = getattr(process, f"{camel.get(name, name.capitalize())}LogitsWarper")
    warpers, others = [make(value) for value in VALUES[name]], 0
    for rows in batches():
        for i, warper in enumerate(warpers):
            these = rows.logits[rows.which == i]
            after = warper(torch.zeros(len(these), 1), torch.from_numpy(these)).numpy()
            for row, each in zip(these, after, strict=True):
                others += not assert_same(name, VALUES[name][i], row, each)
    assert others <= most * ROWS


# a sampler | its value | a row | how many tokens are left there | which are left here
LOW = float(BANNED)
DIFFERENCES: list[tuple[str, Any, list[float], int, list[int]]] = [
    ("top_k", 2, [2, 1, 1, 0], 2, [0, 1, 2]),
    ("top_p", 0.5, [1, 1, 1, 1], 2, [0, 1, 2, 3]),
    ("typical", 0.1, [1, 0, 0.2, 0, 0.1, 0], 1, [0, 2]),
    ("top_n_sigma", 1, [3, 2, -5, LOW, LOW], 3, [0, 1]),
]


@pytest.mark.parametrize(("name", "value", "row", "theirs", "here"), DIFFERENCES)
def test_what_llama_cpp_does_otherwise(
    name: str, value: Any, row: Any, theirs: int, here: list[int], llama_cpp: LlamaCpp
):
    """It cuts ties, drops the likeliest, and has banned tokens in a deviation."""
    row = np.array(row, np.float32)
    after = llama_cpp.apply(row, llama_cpp.make[name](value))
    assert np.count_nonzero(after > LOW / 2) == theirs
    assert np.flatnonzero(ours(row, ChainStep(**{name: value})) > -np.inf).tolist() == here


DEFAULT = "penalties;dry;top_n_sigma;top_k;typ_p;top_p;min_p;xtc;temperature"
"""What `llama-server --help` has as the default of `--samplers`."""
SETTINGS: dict[str, dict[str, float]] = {
    "defaults": {},
    "xtc": {"xtc_probability": 1.0},
    "all": {
        **{"temp": 1.5, "top_k": 100, "top_p": 0.9, "min_p": 0.02},
        **{"top_n_sigma": 1.5, "xtc_probability": 1.0, "xtc_threshold": 0.05},
    },
}
AT_FIRST = {"temp": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05, "typical": 1.0} | {
    **{"top_n_sigma": -1.0, "xtc_probability": 0.0, "xtc_threshold": 0.1}
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize(
    "line", [DEFAULT, "temperature;top_k;top_p;min_p;xtc", "top-nsigma;temp;xtc", "min_p;nucleus"]
)
def test_a_chain_of_llama_cpp(line: str, settings: Any, llama_cpp: LlamaCpp):
    steps, values = ChainSpec.from_llama_cpp(line, **settings).steps, AT_FIRST | settings
    make, lib = llama_cpp.make, llama_cpp.lib
    xtc = values["xtc_probability"], values["xtc_threshold"]
    named = {
        **dict.fromkeys(("penalties", "dry")),  # which do nothing
        "typ_p": lambda: make["typical"](values["typical"]),
        "nucleus": lambda: make["top_p"](values["top_p"]),
        "top-nsigma": lambda: make["top_n_sigma"](values["top_n_sigma"]),
        "xtc": lambda: lib.llama_sampler_init_xtc(*xtc, 0, 11),
        **dict.fromkeys(("temp", "temperature"), lambda: make["temperature"](values["temp"])),
    }
    makers = [
        named.get(name, lambda name=name: make[name](values[name])) for name in line.split(";")
    ]
    samplers, others = [each() for each in makers if each is not None], 0
    for rows, _ in zip(batches(), range(10), strict=False):
        for row in rows.masked[BATCH // 3 :]:  # without ties
            row = row[row > -np.inf]
            after, shaped = llama_cpp.apply(row, *samplers), ours(row, *steps)
            if np.array_equal(after > -np.inf, shaped > -np.inf):
                np.testing.assert_allclose(softmax(after), softmax(shaped), rtol=1e-5)
            else:
                others += 1
    assert others <= 3  # of 670 rows, where float32 decides


@pytest.mark.parametrize("temperature", [None, 0.5, 2.0])
@pytest.mark.parametrize("engine", ["llama.cpp", "definition"])
def test_xtc_with_and_without_randomness(
    engine: str, temperature: float | None, llama_cpp: LlamaCpp
):
    """200,000 draws: a coin for each, or the row of the chain."""
    draws, rng = 200_000, np.random.default_rng(5)
    xtc, row = Xtc(0.08, 0.35), rng.normal(size=24).astype(np.float32) * 1.5
    after = [] if temperature is None else [ChainStep(temperature=temperature)]
    chances = softmax(ours(row, ChainStep(xtc=xtc), *after).astype(np.float64))
    if engine == "definition":
        p = softmax(row.astype(np.float64))
        likely = np.flatnonzero(p >= xtc.threshold)
        without = row.copy()
        without[likely[likely != likely[p[likely].argmin()]]] = -np.inf
        is_without = rng.random(draws) < xtc.probability
        rows, counts = [row, without], [(~is_without).sum(), is_without.sum()]
    else:
        sampler, seen = llama_cpp.make["xtc"](xtc), dict[bytes, int]()
        for _ in range(draws):
            each = llama_cpp.apply(row, sampler).tobytes()
            seen[each] = seen.get(each, 0) + 1
        rows, counts = [np.frombuffer(each, np.float32) for each in seen], [*seen.values()]
    assert len(rows) == 2
    drawn = np.zeros(len(row))
    for each, count in zip(rows, counts, strict=True):
        tempered = each.astype(np.float64) / (temperature or 1)
        drawn += rng.multinomial(count, softmax(tempered))
    again = rng.multinomial(draws, chances)
    degrees = len(row) - 1
    of_row = ((drawn - draws * chances) ** 2 / (draws * chances)).sum()
    of_draws = ((drawn - again) ** 2 / (drawn + again)).sum()
    assert max(of_row, of_draws) < degrees + 4 * np.sqrt(2 * degrees)
    likeliest = int(row.argmax())  # without the step, it would be drawn more often
    assert drawn[likeliest] < 0.85 * draws * softmax(row / (temperature or 1))[likeliest]

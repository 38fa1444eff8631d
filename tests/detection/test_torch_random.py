"""Random numbers of torch on a CPU, without torch."""

from typing import Any

import numpy as np
import pytest
from logitport.adapters.detection.torch_random import Shuffles, permutation, words

SEEDS = [0, 1, 42, 15485863, 2**32 - 1, 2**32, 2**40 + 7, 2**63 - 1, 2**64 - 2]


def randperm(size: int, seed: int) -> Any:
    torch: Any = pytest.importorskip("torch")
    return torch.randperm(size, generator=torch.Generator().manual_seed(seed)).numpy()


def test_written_values():
    assert permutation(0, 10).tolist() == [4, 1, 7, 5, 3, 9, 0, 8, 6, 2]
    assert words(5489, 2).tolist() == [3499211612, 581869302]  # std::mt19937


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("size", [1, 2, 10, 1000, 50_257])
def test_permutations(size: int, seed: int):
    np.testing.assert_array_equal(permutation(seed, size), randperm(size, seed))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("size", "count"),
    [(1, 0), (1, 1), (2, 1), (10, 9), (10, 10), (1000, 250), (50_257, 12_564), (151_936, 37_984)],
)
def test_members_of_the_first(size: int, count: int, seed: int):
    shuffles = Shuffles(size, count)
    values = np.random.default_rng(seed).integers(0, size, 40).tolist()
    first = {*randperm(size, seed)[:count].tolist()}
    values += [*first][:40]
    assert shuffles.are_first(seed, values) == [value in first for value in values]
    assert shuffles.are_first(seed, [size, 2**32 - 1]) == [False, False]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("size", [1, 1000, 65_536])
def test_bits(size: int, seed: int):
    torch: Any = pytest.importorskip("torch")
    generator = torch.Generator().manual_seed(seed)
    expected = torch.randint(0, 2, (size,), generator=generator)
    np.testing.assert_array_equal(words(seed, size) % 2, expected.numpy())

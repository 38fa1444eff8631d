"""What "torch.randperm" and "torch.randint" draw on a CPU, without torch.

Both take words of a Mersenne Twister that the low 32 bits of the seed start. The permutation is a
Fisher-Yates shuffle from the front: step ``i`` swaps ``i`` with ``i + word % (n - i)``
(aten/src/ATen/native/TensorFactories.cpp).
"""

from collections.abc import Iterable

import numpy as np


def words(seed: int, count: int, generator: np.random.RandomState | None = None) -> np.ndarray:
    """Return the first words of the generator, as uint32 ``[count]``.

    Args:
        seed: any integer.
        count: the number of words.
        generator: one to seed anew, which takes a thirtieth of the time that a new one takes.
    """
    generator = generator or np.random.RandomState(0)
    generator.seed(seed & 0xFFFFFFFF)
    return np.frombuffer(generator.bytes(4 * count), "<u4")


class Shuffles:
    """The first ``count`` of "torch.randperm(size)" for many seeds, each asked about few values.

    The shuffle itself takes a step for each value. A question follows one value through the
    swaps, of which few move it.

    ::

        >>> Shuffles(10, 3).are_first(0, [7, 3])  # The permutation begins with 4, 1, 7.
        [True, False]
    """

    def __init__(self, size: int, count: int) -> None:
        self._at = np.arange(count, dtype=np.uint32)
        self._left = np.uint32(size) - self._at
        self._generator = np.random.RandomState(0)

    def are_first(self, seed: int, values: Iterable[int]) -> list[bool]:
        """Return for each value whether it is among the first ones."""
        swapped = self._at + words(seed, len(self._at), self._generator) % self._left
        return [_is_first(swapped, value) for value in values]


def _is_first(swapped: np.ndarray, value: int) -> bool:
    """Follow a value. The step of its own index moves it on, unless an earlier one took it."""
    start, at = 0, value
    while not (swapped[start:at] == at).any():
        if at >= len(swapped):
            return False
        start, at, before = at + 1, int(swapped[at]), at
        if at == before:
            return True
    return True


def permutation(seed: int, size: int) -> np.ndarray:
    """Return "torch.randperm(size)", a microsecond for four values.

    ::

        >>> permutation(0, 10)[:3].tolist()
        [4, 1, 7]
    """
    values, at = list(range(size)), np.arange(size, dtype=np.uint32)
    swapped = at + words(seed, size) % (np.uint32(size) - at)
    for i, j in enumerate(swapped.tolist()):
        values[i], values[j] = values[j], values[i]
    return np.array(values)

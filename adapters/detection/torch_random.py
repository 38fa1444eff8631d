"""What "torch.randperm" and "torch.randint" draw on a CPU, without torch.

Both take words of a Mersenne Twister that the low 32 bits of the seed start. The permutation is a
Fisher-Yates shuffle from the front: step ``i`` swaps ``i`` with ``i + word % (n - i)``
(aten/src/ATen/native/TensorFactories.cpp).
"""

import numpy as np


def words(seed: int, count: int) -> np.ndarray:
    """Return the first words of the generator, as uint32 ``[count]``."""
    generator = np.random.RandomState(seed & 0xFFFFFFFF)
    return np.frombuffer(generator.bytes(4 * count), "<u4")


class Permutation:
    """ "torch.randperm(size)" of a seed, of which few values or indices are asked for.

    ::

        >>> [Permutation(0, 10).value(i) for i in range(3)]
        [4, 1, 7]
        >>> Permutation(0, 10).is_before(7, 3)
        True

    The shuffle itself takes a step for each value. A question follows one value through the
    swaps, of which few move it.
    """

    def __init__(self, seed: int, size: int, steps: int | None = None) -> None:
        steps = size - 1 if steps is None else min(steps, size - 1)
        at = np.arange(steps)
        self._swapped = at + words(seed, steps) % (size - at)

    def value(self, index: int) -> int:
        """Return the value at an index that the steps have settled."""
        if index < len(self._swapped):
            index, before = int(self._swapped[index]), index
        else:
            before = len(self._swapped)
        while len(found := np.flatnonzero(self._swapped[:before] == index)):
            index = before = int(found[-1])
        return index

    def is_before(self, value: int, count: int) -> bool:
        """Return whether a value is among the first ``count``, at most as many as the steps."""
        start, at = 0, value
        while not (self._swapped[start : min(at, count)] == at).any():
            if at >= count:
                return False
            start, moved = at + 1, int(self._swapped[at])
            if moved == at:
                return True
            at = moved
        return True

"""How history rules search: they compare many tokens at once."""

from typing import Any

import numpy as np

from ..loops import loop

BLOCK = 64
"""The number of tokens that are compared at once."""


@loop
def skip(tokens: Any, position: int, oldest: int, token: int) -> int:
    """Find the last occurrence of a token in ``[oldest, position]``, or return less."""
    wanted = np.int32(token)
    while position >= oldest + BLOCK:
        block, found = tokens[position - BLOCK + 1 : position + 1], np.int32(0)
        for at in range(BLOCK):  # in this form, it is compiled to vector operations
            found |= np.int32(block[at] == wanted)
        if found:
            break
        position -= BLOCK
    while position >= oldest and tokens[position] != token:
        position -= 1
    return position


@loop
def agree(tokens: Any, length: int, period: int, same: int, most: int) -> int:
    """Count the newest tokens, at most ``most``, that equal those a period earlier; ``same`` do."""
    while same + BLOCK <= most:
        end, differs = length - same, np.int32(0)
        newest = tokens[end - BLOCK : end]
        earlier = tokens[end - BLOCK - period : end - period]
        for at in range(BLOCK):  # in this form, it is compiled to vector operations
            differs |= np.int32(newest[at] != earlier[at])
        if differs:
            break
        same += BLOCK
    while same < most and tokens[length - 1 - same] == tokens[length - 1 - same - period]:
        same += 1
    return same

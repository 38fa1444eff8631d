"""``sequence_bias``."""

from typing import Any

from ....spec import SequenceBiasSpec
from .base import Add, Draws, Edit, FreeRun, Kind, Tokens


def _edit(spec: SequenceBiasSpec, prompt: Tokens, output: Tokens) -> Edit:
    sums: dict[int, float] = {}
    for sequence, bias in zip(spec.sequences, spec.biases, strict=True):
        last = sequence[-1]
        if (*output, last)[-len(sequence) :] == sequence:
            sums[last] = sums.get(last, 0.0) + bias
    return Add(sums) if sums else None


def _examples(free: FreeRun) -> list[SequenceBiasSpec]:
    a, b, c = free.unused
    return [
        SequenceBiasSpec((free.output_ids[:2],), (-1000,)),
        SequenceBiasSpec(((a,), (a, b), (a, b, c)), (1000, 3000, 5000)),
    ]


def _strategy(draw: Draws) -> Any:
    eighths = draw.st.integers(-800, 800).map(lambda n: n / 8)  # whose sums are exact
    biases = draw.st.lists(eighths, min_size=99, max_size=99)
    return draw.builds(
        lambda sequences, biases: SequenceBiasSpec(sequences, tuple(biases[: len(sequences)])),
        draw.choices,
        biases,
    )


KIND = Kind(SequenceBiasSpec(((1, 2),), (1.0,)), _edit, _examples, _strategy)

"""``sequence_bias``."""

from ....spec import SequenceBiasSpec
from .base import Add, Edit, FreeRun, Kind, Tokens


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


KIND = Kind(SequenceBiasSpec(((1, 2),), (1.0,)), _edit, _examples)

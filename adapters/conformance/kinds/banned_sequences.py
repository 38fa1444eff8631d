"""``banned_sequences``."""

from ....spec import BannedSequencesSpec
from .base import Edit, Kind, Tokens, ban


def _edit(spec: BannedSequencesSpec, prompt: Tokens, output: Tokens) -> Edit:
    return ban(
        {
            sequence[-1]
            for sequence in spec.sequences
            if len(output) >= len(sequence) - 1
            and output[len(output) - len(sequence) + 1 :] == sequence[:-1]
        }
    )


KIND = Kind(
    BannedSequencesSpec(((1, 2),)),
    edit=_edit,
    examples=lambda free: [BannedSequencesSpec((free.output_ids[:2], free.unused))],
    strategy=lambda draw: draw.builds(BannedSequencesSpec, draw.sequences),
)

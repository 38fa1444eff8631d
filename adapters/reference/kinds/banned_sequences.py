"""``banned_sequences``."""

from ....spec import BannedSequencesSpec
from .base import Edit, Kind, Tokens, ban


def _edit(spec: BannedSequencesSpec, prompt: Tokens, output: Tokens) -> Edit:
    return ban({each[-1] for each in spec.sequences if (*output, each[-1])[-len(each) :] == each})


KIND = Kind(
    BannedSequencesSpec(((1, 2),)),
    edit=_edit,
    examples=lambda free: [BannedSequencesSpec((free.output_ids[:2], free.unused))],
)

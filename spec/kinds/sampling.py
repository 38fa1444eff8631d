"""``sampling``: set the engine's sampling parameters, under one name everywhere."""

from typing import Annotated

import msgspec

from ..base import Count, NativeSpec
from ..errors import SpecError

_Temperature = Annotated[float, msgspec.Meta(ge=0, le=2)]
_Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
_PositiveShare = Annotated[float, msgspec.Meta(gt=0, le=1)]
_Penalty = Annotated[float, msgspec.Meta(ge=-2, le=2)]
_Factor = Annotated[float, msgspec.Meta(gt=0, le=2)]


class SamplingSpec(NativeSpec, frozen=True, tag="sampling", kw_only=True):
    """The engine's own sampling parameters; one that is ``None`` is left as it is.

    Names, meanings and bounds are those of vLLM and SGLang, the narrower bound where they differ.

    Examples:
        >>> from logitport.adapters import extra_body
        >>> extra_body("sglang", SamplingSpec(temperature=0, top_p=0.9))
        {'temperature': 0.0, 'top_p': 0.9}

    Args:
        temperature: 0 to 2; what logits are divided by. 0 is greedy: the likeliest token, and
            ``top_p``, ``top_k`` and ``min_p`` mean nothing.
        top_p: above 0, to 1: only the likeliest tokens, which together have this probability.
        top_k: only so many of the likeliest tokens, 0 for all, to ``MAX_INT``.
        min_p: 0 to 1: only tokens that are at least this share as likely as the likeliest.
        presence_penalty: -2 to 2, taken from the logits of tokens that the output has.
        frequency_penalty: -2 to 2, taken as often as the output has the token.
        repetition_penalty: above 0, to 2: what divides positive logits, and multiplies negative
            ones, of tokens that prompt or output have; above 1 they become less likely.

    Raises:
        SpecError: if a field is out of bounds, or none is given.
    """

    temperature: _Temperature | None = None
    top_p: _PositiveShare | None = None
    top_k: Count | None = None
    min_p: _Share | None = None
    presence_penalty: _Penalty | None = None
    frequency_penalty: _Penalty | None = None
    repetition_penalty: _Factor | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if all(getattr(self, name) is None for name in self.__struct_fields__):
            raise SpecError(f"Expected at least one of {', '.join(self.__struct_fields__)}")

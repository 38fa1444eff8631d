"""What a configuration requires of each text: a mark."""

from typing import Annotated, Literal

import msgspec

from ..adapters.draws import REQUIRED_BOUNDS


class _Bounds(msgspec.Struct, forbid_unknown_fields=True):
    """What a request may ask for whose text has to be marked; see ``draws.BOUNDS``."""

    temperature: Annotated[float, msgspec.Meta(ge=0.01)] = REQUIRED_BOUNDS["temperature"]
    top_k: Annotated[int, msgspec.Meta(ge=2)] = int(REQUIRED_BOUNDS["top_k"])
    top_p: Annotated[float, msgspec.Meta(ge=0.01, le=1)] = REQUIRED_BOUNDS["top_p"]
    min_p: Annotated[float, msgspec.Meta(ge=0, le=0.99)] = REQUIRED_BOUNDS["min_p"]


class _RequiredMark(msgspec.Struct, forbid_unknown_fields=True):
    """The mark of all texts, and which need none."""

    profile: str
    unless: tuple[Literal["grammar", "json"], ...] = ()
    bounds: _Bounds = msgspec.field(default_factory=_Bounds)


class Require(msgspec.Struct, forbid_unknown_fields=True):
    """What each request has."""

    watermark: _RequiredMark

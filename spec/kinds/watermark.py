"""``watermark``: mark the text, so that a detector finds it."""

from typing import Annotated

import msgspec

from ..base import LogitsProcessorSpec
from ..limits import MAX_NAME

ProfileName = Annotated[
    str, msgspec.Meta(min_length=1, max_length=MAX_NAME, pattern=r"^[A-Za-z0-9_.-]+$(?!\n)")
]
"""The name of a profile in a server's configuration."""


class WatermarkSpec(LogitsProcessorSpec, frozen=True, tag="watermark"):
    """The text is marked, so that a detector with the server's key finds it.

    Tokens are drawn with noise that the key and the tokens before make, and come as often as
    without. Where the server does not draw, at temperature 0 or with beams, the request is refused.
    ``logitport detect`` finds the mark.

    No payload has a key. The mark acts after all other kinds, and after the server's guard.

    Examples:
        >>> from logitport.spec import encode
        >>> print(encode(WatermarkSpec("news")))
        {"version":1,"specs":[{"kind":"watermark","profile":"news"}],"generation_only":true}

    Args:
        profile: 1 to ``MAX_NAME`` letters, digits, and ``_.-``.

    Raises:
        SpecError: if a field is out of bounds.
    """

    profile: ProfileName

    @property
    def narrows(self) -> bool:
        return True

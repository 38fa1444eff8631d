"""Access to the objects that call a processor, for values that vLLM does not pass to it."""

import sys
from types import FrameType
from typing import Any


def caller_frame(attribute: str, frames: int) -> FrameType | None:
    """Find the frame of the nearest calling method whose ``self`` has an attribute.

    Args:
        attribute: name of the attribute; an attribute that is ``None`` does not count.
        frames: how many frames to search, from the caller of the calling function on.
    """
    frame = sys._getframe(1)
    for _ in range(frames + 1):
        if (frame := frame.f_back) is None:
            break
        if getattr(frame.f_locals.get("self"), attribute, None) is not None:
            return frame
    return None


def nearest(attribute: str, frames: int) -> Any:
    """Return the attribute of the object that ``caller_frame`` finds; ``None`` if there is none."""
    frame = caller_frame(attribute, frames + 1)
    return None if frame is None else getattr(frame.f_locals["self"], attribute)

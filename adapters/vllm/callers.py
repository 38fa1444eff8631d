"""What vLLM does not pass to a processor, asked of the objects whose methods call it."""

import sys
from types import FrameType
from typing import Any


def caller_frame(attribute: str, frames: int) -> FrameType | None:
    """The frame of the nearest method that is being called on an object with an attribute.

    Args:
        attribute: its name; ``None`` as its value does not count.
        frames: how far to look, from the caller of the function that asks.

    Returns:
        The frame, which has the object as ``self``; ``None`` if there is none.
    """
    frame = sys._getframe(1)
    for _ in range(frames + 1):
        if (frame := frame.f_back) is None:
            break
        if getattr(frame.f_locals.get("self"), attribute, None) is not None:
            return frame
    return None


def nearest(attribute: str, frames: int) -> Any:
    """The attribute itself, of that object; ``None`` if there is none."""
    frame = caller_frame(attribute, frames + 1)
    return None if frame is None else getattr(frame.f_locals["self"], attribute)

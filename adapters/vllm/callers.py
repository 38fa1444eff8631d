"""What vLLM does not pass to a processor, asked of the objects whose methods call it."""

import sys
from typing import Any


def nearest(attribute: str, frames: int) -> Any:
    """An attribute of the nearest object that has it and whose method is being called.

    Args:
        attribute: its name.
        frames: how far to look, from the caller of the function that asks.

    Returns:
        ``None`` if there is none, or it is ``None`` itself everywhere.
    """
    frame = sys._getframe(1)
    for _ in range(frames):
        if (frame := frame.f_back) is None:
            break
        value = getattr(frame.f_locals.get("self"), attribute, None)
        if value is not None:
            return value
    return None

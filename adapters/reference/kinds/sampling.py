"""``sampling``."""

from typing import Any

from ....spec import SamplingSpec
from .base import Draws, Kind


def _strategy(draw: Draws) -> Any:
    floats = draw.st.floats
    fields = {
        "temperature": floats(0, 2),
        "top_p": floats(0, 1, exclude_min=True),
        "top_k": draw.st.integers(0, 100),
        "min_p": floats(0, 1),
        "presence_penalty": floats(-2, 2),
        "frequency_penalty": floats(-2, 2),
        "repetition_penalty": floats(0, 2, exclude_min=True),
    }
    some = draw.st.fixed_dictionaries({}, optional=fields).filter(bool)
    return some.map(lambda fields: SamplingSpec(**fields))


KIND = Kind(SamplingSpec(temperature=0), strategy=_strategy)

"""``sampling``."""

from ....spec import SamplingSpec
from .base import Kind

KIND = Kind(SamplingSpec(temperature=0))

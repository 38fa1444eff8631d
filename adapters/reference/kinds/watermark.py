"""``watermark``. What it draws is checked against the engines' own detectors."""

from ....spec import WatermarkSpec
from .base import Kind

KIND = Kind(
    WatermarkSpec("any"),
)

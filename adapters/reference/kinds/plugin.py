"""``plugin``."""

from ....spec import PluginSpec
from .base import Kind

KIND = Kind(
    PluginSpec("any"),
)

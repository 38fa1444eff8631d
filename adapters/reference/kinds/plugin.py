"""``plugin``."""

from ....spec import PluginSpec
from .base import Kind

KIND = Kind(
    PluginSpec("any"),
    strategy=lambda draw: draw.builds(
        PluginSpec, draw.st.from_regex(r"\A[A-Za-z0-9_.-]{1,8}\Z"), draw.json_object
    ),
)

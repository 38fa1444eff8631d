"""``allowed_scripts``. Its reference is in ``banned_scripts.py``."""

from ....spec import AllowedScriptsSpec
from .banned_scripts import names
from .base import Kind

KIND = Kind(
    AllowedScriptsSpec(("Latin",)),
    strategy=lambda draw: draw.builds(AllowedScriptsSpec, names(draw)),
)

"""``allowed_scripts``. Its reference is in ``banned_scripts.py``."""

from ....spec import AllowedScriptsSpec
from .base import Kind

KIND = Kind(
    AllowedScriptsSpec(("Latin",)),
)

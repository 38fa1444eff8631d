"""``allowed_scripts``. Its reference is in ``banned_scripts.py``."""

from typing import Any

from ....spec import AllowedScriptsSpec
from .banned_scripts import names
from .base import Draws, Kind


def _strategy(draw: Draws) -> Any:
    return draw.st.builds(AllowedScriptsSpec, names(draw))


KIND = Kind(AllowedScriptsSpec(("Latin",)), strategy=_strategy)

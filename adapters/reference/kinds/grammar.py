"""``grammar``."""

from ....spec import GrammarSpec
from .base import Kind

KIND = Kind(GrammarSpec(regex="a"))

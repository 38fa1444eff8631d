"""``chain``. Its steps are checked against other engines' samplers."""

from ....spec import ChainSpec, ChainStep
from .base import Kind

KIND = Kind(
    ChainSpec((ChainStep(top_k=1),)),
)

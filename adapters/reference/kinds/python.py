"""``python``."""

from ....spec import PythonProcessorSpec
from .base import Kind

KIND = Kind(PythonProcessorSpec(lambda: lambda output_ids, logits: None))

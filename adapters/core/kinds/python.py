"""``python``: a callable, made anew for each request."""

from collections.abc import Iterable

from ....spec import PythonProcessorSpec
from .base import Part, PerRequest, compile_spec


@compile_spec.register
def _compile(spec: PythonProcessorSpec) -> Iterable[Part]:
    yield PerRequest(spec.factory)

"""``python``: a callable, made anew for each request."""

from collections.abc import Iterable

from ....spec import PythonProcessorSpec
from ..parts import Part, PerRequest
from .base import Context, compile_spec


@compile_spec.register
def _compile(spec: PythonProcessorSpec, _: Context) -> Iterable[Part]:
    yield PerRequest(spec.factory)

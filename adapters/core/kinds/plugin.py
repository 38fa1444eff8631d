"""``plugin``: what an installed plugin makes of its parameters."""

from collections.abc import Iterable

from ....spec import PluginSpec
from ..automaton import Automaton
from ..parts import Part, PerRequest
from ..plugins import resolve_plugin
from .base import Context, compile_spec


@compile_spec.register
def _compile(spec: PluginSpec, _: Context) -> Iterable[Part]:
    part = resolve_plugin(spec.name, spec.params)
    if isinstance(part, Automaton):
        yield part
    else:
        yield PerRequest(lambda: resolve_plugin(spec.name, spec.params))

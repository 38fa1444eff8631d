"""Kinds that engines do by themselves."""

from typing import NoReturn

from ....spec import GrammarSpec, SamplingSpec, SpecError
from .base import compile_spec


@compile_spec.register(GrammarSpec)
@compile_spec.register(SamplingSpec)
def _refuse(spec: GrammarSpec | SamplingSpec) -> NoReturn:
    grammar = isinstance(spec, GrammarSpec)
    fields = "response_format or structured_outputs" if grammar else "temperature, top_p, ..."
    raise SpecError(
        f"The engine does `{spec.kind}` by itself, and not from a payload: "
        f"use attach(), or the request's own fields ({fields})"
    )

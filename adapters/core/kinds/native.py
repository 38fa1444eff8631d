"""Kinds that engines do by themselves."""

from typing import NoReturn

from ....spec import GrammarSpec, NativeSpec, SamplingSpec, SpecError
from .base import Context, compile_spec

_FIELDS = {
    GrammarSpec: " (response_format or structured_outputs)",
    SamplingSpec: " (temperature, top_p, ...)",
}


@compile_spec.register
def _refuse(spec: NativeSpec, _: Context) -> NoReturn:
    raise SpecError(
        f"The engine does `{spec.kind}` by itself, and not from a payload: "
        f"use attach(), or the request's own fields{_FIELDS.get(type(spec), '')}"
    )

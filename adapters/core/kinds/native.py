"""Kinds that engines do by themselves."""

from typing import NoReturn

from ....spec import NativeSpec, SpecError
from .base import Context, compile_spec


@compile_spec.register
def _refuse(spec: NativeSpec, _: Context) -> NoReturn:
    raise SpecError(
        f"The engine does `{spec.kind}` by itself, and not from a payload: "
        "use attach(), or the request's own fields (temperature, top_p, ...)"
    )

"""The fields with which an OpenAI client sends specs to an engine's server."""

from typing import Any

from ...spec import NativeSpec, SpecError, Stage, encode
from ...spec.base import as_specs
from ..backend import Specs, backend


def extra_body(
    engine: str,
    specs: Specs,
    *,
    stage: Stage = Stage.AGGREGATED,
    generation_only: bool = True,
) -> dict[str, Any]:
    """Make the ``extra_body`` with which an OpenAI client sends specs to an engine's server.

    A gateway merges the result into the JSON body of a request; no engine need be installed.

    Args:
        engine: the name of an installed backend that has a server.
        specs: one or several; for an empty sequence the result is empty.
        stage: the stage of the server that gets the request. A prefill server gets native kinds at
            most, if it chooses the first token.
        generation_only: see ``Payload``.

    Raises:
        SpecError: if the backend is not installed, has no server or does not support a spec, if
            two specs conflict, or if a limit is exceeded.
    """
    specs = as_specs(specs)
    asked = backend(engine)
    if asked.body is None:
        raise SpecError(f"{engine} has no server that an OpenAI client could ask")
    if not specs:
        return {}
    asked.check(specs)
    encode(specs, generation_only=generation_only)  # checks the specs together
    if not Stage(stage).is_active(generation_only):
        native = [spec for spec in specs if isinstance(spec, NativeSpec)]
        specs = native if asked.prefill_samples else []
    return asked.body(specs, generation_only) if specs else {}

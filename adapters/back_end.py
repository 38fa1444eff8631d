"""What the installed back ends can do, and how their clients ask for it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.metadata import entry_points
from typing import Any

from ..spec import (
    VERSION,
    WIRE_KINDS,
    LivePayload,
    LogitsProcessorSpec,
    NativeSpec,
    PythonProcessorSpec,
    SpecError,
    Stage,
    encode,
)
from ..spec.base import kind_of, several, without_native

GROUP = "logitport.adapters"
"""Entry-point group of installed back ends: a name, and a ``BackEnd``."""

Kinds = frozenset[type[LogitsProcessorSpec]]

REALIZABLE: Kinds = frozenset(
    kind for kind in (*WIRE_KINDS, PythonProcessorSpec) if not issubclass(kind, NativeSpec)
)
"""The kinds that the core realizes, for any engine: all that are not native."""


@dataclass(frozen=True)
class BackEnd:
    """What an adapter declares of its engine. What is not named here it refuses.

    Args:
        name: of the engine, as in the entry-point group.
        realizes: the kinds that the adapter's logits processor realizes.
        lowers: the kinds that the engine does by itself, asked for in its own request fields.
        body: makes of specs what an OpenAI client sends beside the standard fields, given whether
            they act on stages that generate alone; ``None`` for an engine without such a server.
        routes: the routes of its server that take specs, and where in the body of a request the
            object is that has the payload: ``{"/v1/completions": "vllm_xargs"}``. A route is the
            end of a path, and of several that fit the longest counts; ``None`` takes one out.
    """

    name: str
    realizes: Kinds
    lowers: Kinds = frozenset()
    body: Callable[[Sequence[LogitsProcessorSpec], bool], dict[str, Any]] | None = None
    routes: Mapping[str, str | None] = field(default_factory=dict[str, str | None], hash=False)

    def check(self, specs: Sequence[LogitsProcessorSpec]) -> None:
        """Refuse what this back end cannot do. What is no spec at all is refused elsewhere.

        Raises:
            SpecError: for the first spec of another kind, with its path.
        """
        able = self.realizes | self.lowers
        for i, spec in enumerate(specs):
            if isinstance(spec, LogitsProcessorSpec) and type(spec) not in able:
                kinds = ", ".join(sorted(map(kind_of, able)))
                raise SpecError(
                    f"{self.name} cannot do `{spec.kind}`; it can do {kinds}", f"$.specs[{i}]"
                )


def payload_for(
    back_end: BackEnd,
    specs: LogitsProcessorSpec | Sequence[LogitsProcessorSpec],
    stage: Stage,
    generation_only: bool = True,
) -> str | LivePayload | None:
    """What an ``attach`` puts into a request, and whether it puts anything there.

    Native kinds are no part of it: an ``attach`` sets the engine's own fields for them.

    Args:
        back_end: whose engine it is.
        specs: one or several; with none there is nothing.
        stage: what the worker does for the request.
        generation_only: ``False`` sends specs to workers that do not generate, too.

    Returns:
        The JSON text, or live objects if a ``PythonProcessorSpec`` is among the specs; ``None`` if
        nothing is to be sent.

    Raises:
        SpecError: if the back end cannot do the specs, or ``encode`` refuses them; whatever the
            stage.
    """
    specs, stage = several(specs), Stage(stage)
    if not specs:
        return None
    back_end.check(specs)
    payload = _payload(specs, generation_only)
    in_payload = without_native(specs)
    if not in_payload or not stage.takes_specs(generation_only):
        return None
    return payload if len(in_payload) == len(specs) else _payload(in_payload, generation_only)


def _payload(specs: Sequence[LogitsProcessorSpec], generation_only: bool) -> str | LivePayload:
    if any(isinstance(spec, PythonProcessorSpec) for spec in specs):
        return LivePayload(VERSION, tuple(specs), generation_only)  # pyright: ignore
    return encode(specs, generation_only=generation_only)


def back_ends() -> dict[str, BackEnd]:
    """The installed back ends by their names, in the order of the names.

    An engine itself need not be installed to know what its adapter can do.
    """
    return {name: back_end(name) for name in sorted(entry_points(group=GROUP).names)}


@lru_cache
def back_end(name: str) -> BackEnd:
    """One of the installed back ends; no other is imported.

    Raises:
        SpecError: if it is not installed.
    """
    entry_point = next(iter(entry_points(group=GROUP, name=name)), None)
    if entry_point is None:
        installed = ", ".join(sorted(entry_points(group=GROUP).names))
        raise SpecError(f"Expected an installed back end ({installed}), got {name!r}")
    return entry_point.load()


def extra_body(
    engine: str,
    specs: LogitsProcessorSpec | Sequence[LogitsProcessorSpec],
    *,
    generation_only: bool = True,
) -> dict[str, Any]:
    """What an OpenAI client passes as ``extra_body`` to ask an engine's server for specs.

    An application that changes its engine changes the first word alone.

    Args:
        engine: name of an installed back end that has a server.
        specs: one or several; with none there is nothing to send.
        generation_only: see ``Payload``.

    Raises:
        SpecError: if there is no such engine, it has no server, it cannot do one of the specs, two
            of them conflict, or a limit is exceeded.
    """
    specs = several(specs)
    asked = back_end(engine)
    if asked.body is None:
        raise SpecError(f"{engine} has no server that an OpenAI client could ask")
    asked.check(specs)
    return asked.body(specs, generation_only) if specs else {}

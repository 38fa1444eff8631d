"""The part of ``attach`` that is the same on every engine."""

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from ..spec import InProcessPayload, LogitsProcessorSpec, Stage, StandIn
from ..spec.base import as_specs, processor_specs
from ..spec.payload import as_given, specs_of
from ..spec.texts import Given
from .backend import Backend, Specs, payload_for, with_grammars
from .gateway.key import KEY
from .metrics import count
from .native import Native, check_grammar, lower
from .own_fields import OwnFields, check_bounds, check_own_fields

if TYPE_CHECKING:
    from .core import Program


class Attached(NamedTuple):
    """The payload and the values of the engine's own fields that a request gets for its specs."""

    specs: tuple[LogitsProcessorSpec, ...]
    payload: str | InProcessPayload | None
    fields: dict[str, Any]

    def put_into(self, container: Mapping[str, Any] | None) -> dict[str, Any]:
        """Copy an object of the request, and put the payload in place of an earlier payload.

        ``put_into({"mine": 1, "logitport": "..."})`` is ``{"mine": 1}`` if there is no payload.
        """
        others = {name: value for name, value in (container or {}).items() if name != KEY}
        return others if self.payload is None else {**others, KEY: self.payload}


@dataclass(frozen=True)
class Attachment:
    """The rules by which specs are attached to an engine's requests.

    ::

        ATTACHMENT = Attachment(BACKEND)


        def attach(extra, specs, *, stage=Stage.AGGREGATED, generation_only=True, continued=0):
            with ATTACHMENT.attaching(extra, specs, stage, generation_only, continued) as attached:
                return attached.put_into(extra)

    Args:
        backend: the engine's backend.
        native: converts a native spec to request fields; see ``fields_of`` and ``grammar_text``.
        grammars: the names of the request fields that ask for a grammar.
        own_fields: reads the request fields that ban, allow or delay tokens; see
            ``check_own_fields``.
        grammar_comes_last: whether the engine applies a grammar after logits processors, and fails
            if they leave no token that the grammar accepts. If so, kinds that narrow the choice of
            tokens are refused beside a grammar.
    """

    backend: Backend
    native: Native = field(default=lambda spec, request: {})
    grammars: tuple[str, ...] = ()
    own_fields: Callable[..., OwnFields] = field(default=lambda request: {})
    grammar_comes_last: bool = False

    def check(
        self,
        request: Any,
        specs: Specs,
        *known: Any,
        program: "Program | None" = None,
        has_texts: bool = False,
        is_continued: bool = False,
    ) -> None:
        """Refuse specs that contradict the request's own fields.

        ``known`` goes to ``own_fields``, and ``program`` to ``check_own_fields``. Specs that are
        made of texts with a ``StandIn`` have no tokens to compare: the engine does it.

        Raises:
            SpecError: for a certain contradiction. The error names the spec and the field.
        """
        specs = as_specs(specs)
        check_grammar(specs, request, self.grammars, self.grammar_comes_last, is_continued)
        if processor_specs(specs):
            check_bounds(request, specs)
        if not has_texts:
            check_own_fields(specs, self.own_fields(request, *known), program)

    @contextmanager
    def attaching(
        self,
        request: Any,
        specs: Given,
        stage: Stage,
        generation_only: bool,
        continued: int = 0,
    ) -> Generator[Attached]:
        """Check and lower specs for a request; count the request if the caller's block succeeds.

        The arguments are those of an engine's ``attach``. The request, a mapping or an object, is
        not changed.

        Raises:
            SpecError: as ``payload_for``, ``check`` and ``lower`` do.
            Exception: the engine's own, for request fields that the engine refuses together.
        """
        given, stage, texts = as_given(specs), Stage(stage), StandIn()
        given = with_grammars(self.backend, given, continued)
        acts = stage.is_active(generation_only)
        payload = payload_for(self.backend, given, stage, generation_only, continued)
        specs = specs_of(given, texts)
        fields: dict[str, Any] = {}
        if specs and (acts or self.backend.prefill_samples):
            self.check(request, specs, has_texts=len(texts) > 0, is_continued=continued > 0)
            fields = lower(specs, self.native, request, self.grammars)
        yield Attached(specs, payload, fields)
        if specs:
            count("attached" if acts else "gated", stage)

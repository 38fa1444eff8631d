"""``phases``: one thing after the other, each with specs of its own."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Annotated

import msgspec

from .. import kinds
from ..base import (
    LogitsProcessorSpec,
    MaybeTokenIds,
    NativeSpec,
    PositiveCount,
    Sizes,
    TokenFields,
    TokenId,
    check_fields,
    check_pattern,
    check_text,
    schema_default,
)
from ..errors import Path, SpecError
from ..limits import (
    MAX_PATTERN,
    MAX_PHASES,
    MAX_SPECS,
)
from ..suggestions import SpecMeta
from ..tokenization import text_fields
from .at_end import AtEndSpec
from .chain import ChainSpec
from .choice import ChoiceSpec
from .forced_end import ForcedEndSpec
from .forced_sequence import ForcedTokenSequenceSpec
from .grammar import GrammarSpec
from .plugin import PluginSpec
from .python_processor import PythonProcessorSpec
from .thinking_budget import ThinkingBudgetSpec
from .watermark import WatermarkSpec


class PhaseEnd(
    msgspec.Struct,
    metaclass=SpecMeta,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    forbid_unknown_fields=True,
):
    """What ends a phase, and the phase that follows. Exactly one of the first four is given.

    Args:
        n: the phase ends after this many tokens, 1 to ``MAX_INT``. Those that its specs force
            count, too, and the last may be in the middle of a sentence: let a further phase wait
            for its end, as in ``Phase((), (PhaseEnd(text="."), PhaseEnd(n=24)))``.
        token_ids: the phase ends when the output of the phase ends with these 1 to
            ``MAX_PATTERN`` token ids. After the model's EOS there is no further token, unless the
            request has ``ignore_eos``. On the wire, ``"tags": "model"`` stands for the end tags of
            the server's model.
        text: the phase ends when its output, as text, contains these up to ``MAX_PATTERN`` bytes in
            UTF-8, whatever tokens they are made of. A token that completes the text and goes on
            beyond it ends the phase all the same, after this token. A special token has no text,
            and nothing that begins before it is completed after it. The engine's adapter has to
            give the vocabulary of its tokenizer; where it does not, the phases are refused.
        complete: the phase ends when all its specs are complete that can be; see ``PhasesSpec``.
        phase: the index of the phase that follows, the next one by default. The number of phases
            stands for what comes after the last phase.

    Raises:
        SpecError: if a field is out of bounds, or not exactly one of the four is given.
    """

    TEXTS = text_fields(tag_text="token_ids")
    TAGS = ("token_ids",)

    n: PositiveCount | None = None
    token_ids: MaybeTokenIds = ()
    text: Annotated[str, msgspec.Meta(max_length=MAX_PATTERN)] = ""
    complete: bool = False
    phase: Annotated[int, msgspec.Meta(ge=0, le=MAX_PHASES)] | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        check_pattern(self.token_ids, "token_ids")
        check_text(self.text, "text")
        if (self.n is not None) + bool(self.token_ids) + bool(self.text) + self.complete != 1:
            raise SpecError("Expected exactly one of n, token_ids, text and complete")


_Specs = Annotated["tuple[kinds.WireSpec, ...]", msgspec.Meta(max_length=MAX_SPECS)]
_Ends = Annotated[tuple[PhaseEnd, ...], msgspec.Meta(max_length=MAX_PHASES)]


class Phase(
    msgspec.Struct, metaclass=SpecMeta, frozen=True, omit_defaults=True, forbid_unknown_fields=True
):
    """One phase of an output.

    Args:
        specs: up to ``MAX_SPECS`` specs that act in the phase; none leaves the model free.
        ends: what ends the phase, up to ``MAX_PHASES``. If several come at the same token, the
            first of them counts. Only the last phase may have none: it never ends. Ends with
            ``text`` that lead to the same phase are one rule about text, unless an end that leads
            to another one is between them.

    Raises:
        SpecError: if a field is out of bounds.
    """

    specs: _Specs = ()
    ends: _Ends = ()

    def __post_init__(self) -> None:
        check_fields(self)


_Phases = Annotated[tuple[Phase, ...], msgspec.Meta(min_length=1, max_length=MAX_PHASES)]


class PhasesSpec(LogitsProcessorSpec, frozen=True, omit_defaults=True, tag="phases"):
    """The output goes through phases, each with its own specs.

    The output begins in the first phase. A phase's specs act as if the output began where the
    phase begins, each time that it begins anew. Kinds that read the prompt read it in the first
    phase, when the request begins; for a later phase the prompt is empty, but for ``prompt_bias``,
    whose prompt is always that of the request. So is the output for the ends of a phase: a sequence
    that an earlier phase has begun is not completed.

    A spec is complete when there is nothing left for it to do:

    - ``forced_sequence``, ``forced_end`` and ``choice`` without ``eos_token_id``: the text is out;
    - ``grammar``: no more text may follow. A text that may go on for ever is never complete;
    - ``trigger`` with ``times``: it has fired so often, and the last phrase is out;
    - ``thinking_budget``: a block has been closed, in the prompt or in the output, and none is open
      since; ``then_token_ids`` are out if they are due. If the prompt has an empty block, as
      templates write it for a model that shall not think, the phase is over before the first token.
      If the model opens no block, the phase goes on.

    Other specs are never complete. They stand beside those that can be.

    For example, with ``<think>`` 7, ``</think>`` 8 and EOS 0::

        PhasesSpec.think_then(
            ThinkingBudgetSpec(3, (7,), (8,)),
            ForcedTokenSequenceSpec((4, 5)),
            Phase((ChoiceSpec(((1,), (2, 3)), 0),)),
        )

    If the prompt ends with 7 and the model only says 9, the output is 9 9 9 8 4 5, then 1 or 2 3,
    then 0 until the request ends. The second phase is on the wire::

        {"specs": [{"kind": "forced_sequence", "token_ids": [4, 5]}], "ends": [{"complete": true}]}

    A ``grammar`` in a phase is logitport's own, on every engine. The text of the phase is what it
    generates, so that a phase with ends has ``complete`` among them. In a last phase without, the
    reply may end where the text may.

    ``sampling``, ``plugin`` and ``python`` stand beside ``phases``, not within. A request has at
    most one ``dry``, in one phase or beside them. ``at_end`` is in a last phase that has no ends;
    with ``stop_token_ids``, no reply ends before.

    Examples:
        >>> from logitport.adapters.reference import edit
        >>> from logitport.spec import ChoiceSpec
        >>> spec = PhasesSpec.prefix_then((4, 5), ChoiceSpec(((1,), (2,)), 0))
        >>> [edit(spec, (), output) for output in ((), (4,), (4, 5), (4, 5, 1))]
        [Force(token=4), Force(token=5), Allow(tokens=frozenset({1, 2})), Force(token=0)]

    Args:
        phases: at least one. All have at most ``MAX_PHASES`` specs together, where a phase
            without any counts as one spec.
        eos_token_id: token to force after the last phase, until the request ends; ``None`` forces
            nothing.
        repeat: whether to go on with the first phase after the last.
        stop_token_ids: up to ``MAX_PATTERN`` tokens that end a reply, the model's EOS for example.
            They are banned in every phase but the last, so that no reply ends before its answer.
            They count as a spec of each phase. No ``token_ids`` that end such a phase have one.

    Raises:
        SpecError: if a field is out of bounds, a phase before the last has no end, an end leads
            nowhere or waits for specs that never complete, a kind cannot be in a phase, or two
            specs of a phase cannot both be obeyed.
    """

    TEXTS = text_fields(stop_tokens="stop_token_ids")

    phases: _Phases
    eos_token_id: Annotated[TokenId | None, schema_default(None)] = msgspec.field(
        default_factory=lambda: None
    )
    repeat: Annotated[bool, schema_default(False)] = msgspec.field(default_factory=lambda: False)
    stop_token_ids: MaybeTokenIds = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        check_pattern(self.stop_token_ids, "stop_token_ids")
        if self.repeat and self.eos_token_id is not None:
            raise SpecError("Expected no EOS token after phases that repeat", "eos_token_id")
        if (count := self._count()) > MAX_PHASES:
            what = f"Expected at most {MAX_PHASES} specs in all phases, an empty one as one"
            raise SpecError(f"{what}, got {count}", "phases")
        for i, phase in enumerate(self.phases):
            try:
                _check_specs(phase.specs)
                _check_ends(phase, i, len(self.phases))
                if i < len(self.phases) - 1:
                    _check_stops(phase, self.stop_token_ids)
            except SpecError as error:
                raise error.at("phases", i) from None

    @classmethod
    def think_then(
        cls,
        thinking: ThinkingBudgetSpec,
        *then: LogitsProcessorSpec | Phase,
        eos_token_id: int | None = None,
        stop_token_ids: Sequence[int] = (),
    ) -> "PhasesSpec":
        """Think on a budget, then go through other phases.

        The first phase goes on until a block has been closed, in the prompt or in the output. It
        is meant for prompts that open the block, and for models that always open one. With the
        tags of a tokenizer's model::

            thinking = ThinkingBudgetSpec.for_tokenizer(512, tokenizer)
            PhasesSpec.think_then(thinking, answer, stop_token_ids=[tokenizer.eos_token_id])

        With ``stop_token_ids``, a model cannot end the reply before its answer.

        Args:
            thinking: the budget and the tags.
            then: what follows, in order. A spec becomes a phase of its own that ends when the spec
                is complete. A grammar that comes last ends the reply, as in a phase without ends.
            eos_token_id: see ``PhasesSpec``.
            stop_token_ids: see ``PhasesSpec``.

        Raises:
            SpecError: as ``PhasesSpec`` does, for example if a spec before the last never ends.
        """
        phases = tuple(_in_phases((thinking, *then), eos_token_id))
        return cls(phases, eos_token_id, stop_token_ids=tuple(stop_token_ids))

    @classmethod
    def prefix_then(
        cls,
        token_ids: Sequence[int],
        *then: LogitsProcessorSpec | Phase,
        eos_token_id: int | None = None,
        stop_token_ids: Sequence[int] = (),
    ) -> "PhasesSpec":
        """Force a text, then go through other phases.

        ``PhasesSpec.prefix_then((4, 5), ChoiceSpec(((1,), (2,)), 0))`` makes the output 4 5 1 or
        4 5 2, and then 0 until the request ends.

        Args:
            token_ids: the text to begin with.
            then: what follows, as for ``think_then``.
            eos_token_id: see ``PhasesSpec``.
            stop_token_ids: see ``PhasesSpec``.

        Raises:
            SpecError: as ``PhasesSpec`` does.
        """
        parts = ForcedTokenSequenceSpec(tuple(token_ids)), *then
        phases = tuple(_in_phases(parts, eos_token_id))
        return cls(phases, eos_token_id, stop_token_ids=tuple(stop_token_ids))

    def token_fields(self) -> TokenFields:
        for path, spec in self.inner_specs():
            for below, token_ids in spec.token_fields():
                yield (*path, *below), token_ids
        for i, phase in enumerate(self.phases):
            for k, end in enumerate(phase.ends):
                yield ("phases", i, "ends", k, "token_ids", "*"), end.token_ids
        yield from super().token_fields()

    @property
    def text_rules(self) -> Sequence[Path]:
        return [
            *((*path, *below) for path, spec in self.inner_specs() for below in spec.text_rules),
            *(
                ("phases", i, "ends", k, "text")
                for i, phase in enumerate(self.phases)
                for k in end_texts(phase, i + 1)
            ),
        ]

    @property
    def needs_vocabulary(self) -> bool:
        inner = self.inner_specs()
        return bool(self.text_rules) or any(spec.needs_vocabulary for _, spec in inner)

    def sizes(self) -> Sizes:
        sought = [end.token_ids for phase in self.phases for end in phase.ends if end.token_ids]
        sizes = [spec.sizes() for _, spec in self.inner_specs()]
        ends = (end for phase in self.phases for end in phase.ends)
        text_bytes = sum(len(end.text.encode()) for end in ends)
        token_ids = 3 * sum(map(len, sought)) + len(self.phases) * len(self.stop_token_ids)
        sizes.append(Sizes(token_ids, text_bytes, self._count()))
        return Sizes(*map(sum, zip(*sizes, strict=True)))

    @property
    def breaks_grammar(self) -> bool:
        return self.eos_token_id is not None or any(
            spec.breaks_grammar or isinstance(spec, GrammarSpec) for _, spec in self.inner_specs()
        )

    @property
    def narrows(self) -> bool:
        return self.breaks_grammar or any(spec.narrows for _, spec in self.inner_specs())

    def _count(self) -> int:
        """Count the specs of all phases: one for a phase without any, one more for stop tokens."""
        stops = bool(self.stop_token_ids)
        return sum(max(1, len(phase.specs) + stops) for phase in self.phases)

    def inner_specs(self) -> Iterator[tuple[Path, LogitsProcessorSpec]]:
        """Yield the specs of all phases, with their paths."""
        for i, phase in enumerate(self.phases):
            for j, spec in enumerate(phase.specs):
                yield ("phases", i, "specs", j), spec


def end_texts(phase: Phase, following: int) -> dict[int, list[str]]:
    """Group the texts of ends that are one rule, by the index of the first of these ends.

    Between them, no end leads to another phase, which could come first at the same token.

    Args:
        phase: the phase.
        following: the index of the next phase.
    """
    groups: dict[int, list[str]] = {}
    targets = [following if end.phase is None else end.phase for end in phase.ends]
    for _, run in groupby(range(len(targets)), targets.__getitem__):
        if ends := [k for k in run if phase.ends[k].text]:
            groups[ends[0]] = [phase.ends[k].text for k in ends]
    return groups


BESIDE = NativeSpec, PluginSpec, PythonProcessorSpec, ChainSpec, WatermarkSpec
"""The kinds that stand beside phases: the engine's own, code, and what acts after all others."""


def _check_specs(specs: Sequence[LogitsProcessorSpec]) -> None:
    begin: list[int] = []
    for j, spec in enumerate(specs):
        if isinstance(spec, PhasesSpec):
            raise SpecError("Expected no phases within a phase", "specs", j)
        if isinstance(spec, BESIDE) and not isinstance(spec, GrammarSpec):
            what = f"`{spec.kind}` cannot be in a phase, only beside `phases`"
            raise SpecError(what, "specs", j)
        is_first = isinstance(spec, ForcedTokenSequenceSpec | ChoiceSpec)
        if is_first or (isinstance(spec, ForcedEndSpec) and not spec.after):
            begin.append(j)
    if len(begin) > 1:
        what = ": both force the first output token"
        raise SpecError(("Conflicts with ", ("specs", begin[0]), what), "specs", begin[1])


def _check_ends(phase: Phase, index: int, count: int) -> None:
    for j, spec in enumerate(phase.specs):
        is_grammar = isinstance(spec, GrammarSpec)
        if is_grammar and phase.ends and not any(each.complete for each in phase.ends):
            what = "Expected an end with `complete`, at which the grammar's text ends"
            raise SpecError(what, "ends")
        if phase.ends and isinstance(spec, AtEndSpec):
            what = "A phase with `at_end` has no ends, which could cut its text: put it last"
            raise SpecError(what, "specs", j)
    if not phase.ends and index < count - 1:
        raise SpecError("Expected an end: only the last phase may have none", "ends")
    for k, end in enumerate(phase.ends):
        if end.phase is not None and end.phase > count:
            what = f"Expected a phase from 0 to {count}, which is after the last, got {end.phase}"
            raise SpecError(what, "ends", k, "phase")
        if end.complete and not any(spec.can_complete for spec in phase.specs):
            raise SpecError("No spec of the phase is ever complete", "ends", k, "complete")


def _check_stops(phase: Phase, stop_token_ids: Sequence[int]) -> None:
    for k, end in enumerate(phase.ends):
        for i, token in enumerate(end.token_ids):
            if token in stop_token_ids:
                what = f"The phases' stop_token_ids ban token {token} here"
                raise SpecError(what, "ends", k, "token_ids", i)


def _in_phases(
    parts: Sequence[LogitsProcessorSpec | Phase], eos_token_id: int | None
) -> Iterator[Phase]:
    for i, part in enumerate(parts, 1):
        if isinstance(part, Phase):
            yield part
            continue
        ends_reply = isinstance(part, GrammarSpec) and i == len(parts) and eos_token_id is None
        is_ended = part.can_complete and not ends_reply
        yield Phase((part,), (PhaseEnd(complete=True),) if is_ended else ())

"""Refusal of specs that contradict a request's own fields.

An adapter converts each field that bans, allows or delays tokens (``min_tokens``, ``bad_words``,
...) to a spec that means the same. Then the rules for conflicts among specs apply.
"""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from ..spec import AtEndSpec, ChainSpec, LogitsProcessorSpec, PhasesSpec, SpecError
from ..spec.errors import Name
from ..spec.limits import MAX_BIAS
from .native import value_of

if TYPE_CHECKING:
    from .core import Program

OwnFields = Mapping[str, LogitsProcessorSpec | None]
"""The spec that means the same as a field, by the field's name; ``None`` if no spec does."""


BOUNDS = {"repetition_penalty": (0.1, 10.0), "temperature": (0.0, 100.0)}
"""The ranges of fields by which engines scale logits, where specs act.

A ban lowers a logit by 1e9, and a forced token has 1e9. With these fields and biases of at most
``MAX_BIAS``, a request changes logits by far less.
"""


def check_bounds(request: Any, specs: Sequence[LogitsProcessorSpec] = ()) -> None:
    """Refuse values of a request's own fields that would outvote the bans of specs.

    A bias of -inf is a ban, and stays. What is not a number is left to the engine.

    Args:
        request: the request's parameters, a mapping or an object.
        specs: the specs of the request, for what ``check_ends`` refuses.

    Raises:
        SpecError: with the field and its bounds.
    """
    check_ends(request, specs)
    for name, (least, most) in BOUNDS.items():
        _check_range(name, value_of(request, name), least, most)
    biases = value_of(request, "logit_bias")
    for token, value in biases.items() if isinstance(biases, Mapping) else ():
        if value != -math.inf:
            _check_range("logit_bias", value, -MAX_BIAS, MAX_BIAS, token)


def check_ends(request: Any, specs: Sequence[LogitsProcessorSpec]) -> None:
    """Refuse what an ``at_end`` cannot be obeyed beside: no end, or another temperature.

    Args:
        request: the request's parameters, a mapping or an object.
        specs: the specs of the request.

    Raises:
        SpecError: at the field or at the spec.
    """
    drawn = 0.0 if value_of(request, "do_sample") is False else value_of(request, "temperature")
    for chain in specs:  # which decides, whatever the request's
        for step in chain.steps if isinstance(chain, ChainSpec) else ():
            drawn = drawn if step.temperature is None else step.temperature
    for i, spec in enumerate(specs):
        inner = spec.inner_specs() if isinstance(spec, PhasesSpec) else [((), spec)]
        for path, each in inner:
            if isinstance(each, AtEndSpec):
                _check_end(request, each, drawn, "specs", i, *path)


def _check_end(request: Any, spec: AtEndSpec, drawn: Any, *path: str | int) -> None:
    own = value_of(request, "stop_token_ids") or ()
    if value_of(request, "ignore_eos") is True and not {*spec.stop_token_ids}.issubset(own):
        what = "Expected `ignore_eos` that is not true: `at_end` acts where a reply ends"
        raise SpecError.of_field(what, "ignore_eos")
    if not isinstance(drawn, int | float) or len(spec.stop_token_ids) == 1:
        return
    if not math.isclose(drawn, spec.temperature, abs_tol=1e-4):  # below, engines take the best
        what = f"Expected the request's temperature, {drawn:g}, by which the probabilities of "
        what += f"{len(spec.stop_token_ids)} end tokens add up; got {spec.temperature:g}"
        raise SpecError(what, *path, "temperature")


def _check_range(name: str, value: Any, least: float, most: float, token: Any = None) -> None:
    if isinstance(value, int | float) and not least <= value <= most:  # NaN is in no range
        what = f"Expected a number from {least:g} to {most:g} where specs act, got {value!r:.50}"
        raise SpecError.of_field(what, name if token is None else f"{name}[{token}]")


def check_own_fields(
    specs: Sequence[LogitsProcessorSpec],
    own_fields: OwnFields,
    program: "Program | None" = None,
    guard: Sequence[LogitsProcessorSpec] = (),
    guarding: "Program | None" = None,
) -> None:
    """Check that specs and a request's own fields can be obeyed together.

    ::

        check_own_fields(specs, {"stop_after": same_as(MinTokensSpec, n=5, stop_token_ids=(2,))})

    Args:
        specs: the specs of a request.
        own_fields: its own fields.
        program: what the specs compile to. Without it, specs about text and code are not compared.
        guard: the specs of the guard, which are compared as ``check_guard`` does.
        guarding: what these compile to; ``None`` without a guard.

    Raises:
        SpecError: for a certain contradiction. Its message and path name the spec and the field.
    """
    fields = {name: spec for name, spec in own_fields.items() if spec is not None}
    if not fields or not (specs or guard):
        return
    known, found = (None, ()) if program is None else _compared.get(program, (None, ()))
    if known != fields:
        found = _compare(specs, fields, program, guard, guarding)
        if program is not None:
            _compared[program] = fields, found
    if found:
        raise SpecError(*found)


_compared: "WeakKeyDictionary[Program, tuple[Any, tuple[Any, ...]]]" = WeakKeyDictionary()
"""Of each program, the fields that have last been compared with it, and the error's arguments."""


def _compare(
    specs: Sequence[LogitsProcessorSpec],
    fields: Mapping[str, LogitsProcessorSpec],
    program: "Program | None",
    guard: Sequence[LogitsProcessorSpec],
    guarding: "Program | None",
) -> tuple[Any, ...]:
    """Return the arguments of the error for the first field that contradicts; ``()`` for none."""
    from .core import compile_specs  # a request without such fields does without it
    from .core.contradictions import (
        budget,
        check_contradictions,
        check_guard,
        check_without_engine,
    )

    left = budget()
    for name, spec in fields.items():
        together = *specs, spec
        try:
            if program is None:
                check_without_engine(together)
                continue
            both = program.beside(compile_specs((spec,)), len(specs))
            if guarding is not None:
                check_guard(together, both, guard, guarding)
            if specs:
                check_contradictions(together, both, left=left)
        except SpecError as error:
            return _at_field(error, len(specs), name).args
    return ()


def _at_field(error: SpecError, index: int, name: str) -> SpecError:
    """Name a field in place of the spec that means the same."""
    field = Name(f"the request's `{name}`")
    moved = error.specs_at(lambda i: (field,) if i == index else ("specs", i))
    return SpecError.of_field(moved.parts, name) if field in moved.location else moved


def same_as(kind: type[LogitsProcessorSpec], **fields: Any) -> LogitsProcessorSpec | None:
    """Make a spec that means the same as a field; ``None`` if it is not set or beyond a limit.

    ``same_as(BannedTokensSpec, token_ids=())`` is ``None``.
    """
    if not all(fields.values()):  # most requests; an exception would cost ten times as much
        return None
    try:
        return kind(**fields)
    except SpecError:  # more than a spec may hold: the engine's own order decides, see the docs
        return None

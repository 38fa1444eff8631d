"""The wire format: one versioned JSON text with a request's specs, the same for all engines."""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Any, Literal, cast, get_args

import msgspec

from .allowed_tokens import AllowedTokensSpec
from .banned_sequences import BannedSequencesSpec
from .banned_tokens import BannedTokensSpec
from .base import (
    LogitsProcessorSpec,
    check_fields,
    check_sizes,
    fields_hold,
    kind_of,
    several,
    spec_error,
)
from .choice import ChoiceSpec
from .conflicts import check_conflicts
from .errors import SpecError
from .forced_end import ForcedEndSpec
from .forced_sequence import ForcedTokenSequenceSpec
from .grammar import GrammarSpec
from .limits import (
    MAX_CONTAINERS,
    MAX_EXTREME_NUMBERS,
    MAX_PARTS,
    MAX_PAYLOAD_BYTES,
    MAX_SPECS,
)
from .logit_bias import LogitBiasSpec, wrong_entry
from .min_tokens import MinTokensSpec
from .no_repeat_ngram import NoRepeatNgramSpec
from .plugin import PluginSpec
from .prompt_bias import PromptBiasSpec
from .sampling import SamplingSpec
from .stage import Stage
from .thinking_budget import ThinkingBudgetSpec
from .trigger import TriggerSpec

VERSION = 1
"""The newest version of the wire format that this release reads, and the one that it writes."""

WireSpec = (
    ForcedTokenSequenceSpec
    | AllowedTokensSpec
    | BannedTokensSpec
    | BannedSequencesSpec
    | LogitBiasSpec
    | MinTokensSpec
    | ForcedEndSpec
    | ThinkingBudgetSpec
    | ChoiceSpec
    | TriggerSpec
    | NoRepeatNgramSpec
    | PromptBiasSpec
    | GrammarSpec
    | SamplingSpec
    | PluginSpec
)
"""Every kind that can travel, told apart by the field ``kind``."""

WIRE_KINDS: tuple[type[WireSpec], ...] = get_args(WireSpec)
"""Their classes."""


class Payload(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a request carries.

    Args:
        version: of the format; see ``VERSION``.
        specs: 1 to ``MAX_SPECS`` specs, which all act on the request.
        generation_only: act only on workers whose stage generates. ``False`` is for engines that
            hand the prefill worker's token over to decode, and is an explicit choice.

    Raises:
        SpecError: if a field is out of bounds, or two of the specs cannot both be obeyed.
    """

    version: Literal[1]
    specs: Annotated[tuple[WireSpec, ...], msgspec.Meta(min_length=1, max_length=MAX_SPECS)]
    generation_only: bool = True

    def __post_init__(self) -> None:
        check_fields(self)
        check_sizes(self.specs)
        check_conflicts(self.specs)

    def acts_on(self, stage: Stage) -> bool:
        """Whether a worker in ``stage`` has anything to do for the request."""
        return stage.takes_specs(self.generation_only)

    def check_vocabulary(self, vocab_size: int) -> None:
        """Check every token id against the size of an engine's vocabulary.

        Raises:
            SpecError: for the first token id that is ``vocab_size`` or more.
        """
        for i, spec in enumerate(self.specs):
            try:
                spec.check_vocabulary(vocab_size)
            except SpecError as error:
                raise error.under(f"$.specs[{i}]") from None


class LivePayload(Payload, frozen=True):
    """Specs as live objects, ``PythonProcessorSpec`` among them; for an engine in this process.

    Raises:
        SpecError: as ``Payload`` does.
    """

    def __post_init__(self) -> None:
        check_fields(self, "version", "generation_only")
        msgspec.structs.force_setattr(self, "specs", several(self.specs))
        _check_count(self.specs)
        check_sizes(self.specs)
        check_conflicts(self.specs)


def encode(
    specs: LogitsProcessorSpec | Sequence[LogitsProcessorSpec], *, generation_only: bool = True
) -> str:
    """Encode specs as the JSON text that goes under the key ``logitport`` of a request.

    Args:
        specs: one spec, or 1 to ``MAX_SPECS`` of them.
        generation_only: see ``Payload``.

    Raises:
        SpecError: if a spec cannot travel, two of them conflict, or a limit is exceeded.
    """
    specs = several(specs)
    _check_count(specs)
    checked = tuple(_checked_wire_spec(i, spec) for i, spec in enumerate(specs))
    text = msgspec.json.encode(Payload(VERSION, checked, generation_only))
    _check_text(text)
    return text.decode()


def _check_count(specs: Sequence[object]) -> None:
    if not 1 <= len(specs) <= MAX_SPECS:
        raise SpecError(f"Expected 1 to {MAX_SPECS} specs, got {len(specs)}", "$.specs")


def _checked_wire_spec(index: int, spec: LogitsProcessorSpec) -> WireSpec:
    if isinstance(spec, WIRE_KINDS):
        return spec
    what = f"{type(spec).__name__} cannot be serialized"
    if fields := msgspec.structs.asdict(spec):
        what += ": it holds " + ", ".join(f"{k}={v!r}" for k, v in fields.items())
    raise SpecError(f"{what}; {_known_kinds()}", f"$.specs[{index}]")


def decode(payload: str | bytes | Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> Payload:
    """Decode a payload, checking all that can be checked without an engine.

    Args:
        payload: JSON text, or what a JSON parser made of it: an object as ``encode`` writes it,
            or Dynamo's list of entries
            (``[{"kind": "forced_sequence", "token_ids": [..], "eos_token_id": n}]``).

    Raises:
        SpecError: with the path of what is wrong. Unknown kinds, unknown fields and newer
            versions are errors.
    """
    content: Any = payload
    if isinstance(payload, str | bytes):
        text = _text(payload)
        if (decoded := _decoded(text)) is not None:
            return decoded
        content = _parsed(text)
    else:
        _check_object(payload)
    is_entry_list = isinstance(content, list | tuple)
    if not is_entry_list and not isinstance(content, Mapping):
        raise SpecError(
            f"Expected a payload made by encode(), got an object of type {type(content).__name__}"
        )
    body = cast("Any", {"version": VERSION, "specs": content} if is_entry_list else content)
    try:
        _check_version(body)
        # Token ids as keys of an object (a bias) are text in JSON.
        with fields_hold():
            return msgspec.convert(body, Payload, str_keys=True)
    except msgspec.ValidationError as error:
        failure = spec_error(error)
        if place := re.fullmatch(r"\$\.specs\[(\d+)\]\.bias(\[\.\.\.\])?", failure.path):
            index = int(place[1])
            if wrong := wrong_entry(body["specs"][index]["bias"]):
                failure = wrong.under(f"$.specs[{index}]")
        if failure.message.startswith("Invalid value") and failure.path.endswith(".kind"):
            failure = SpecError(f"{failure.message}; {_known_kinds()}", failure.path)
        if is_entry_list:
            message, path = (s.replace("$.specs", "$") for s in (failure.message, failure.path))
            failure = SpecError(message, path)
        raise failure from None
    except UnicodeEncodeError:
        raise SpecError("The payload is not valid Unicode") from None


def _text(payload: str | bytes) -> bytes:
    try:
        text = payload.encode() if isinstance(payload, str) else payload
    except UnicodeError:
        raise SpecError("The payload is not valid Unicode") from None
    _check_text(text)
    return text


def _check_object(payload: Any) -> None:
    """Hold what a JSON parser has made of a text to the limits of a text."""
    try:
        text = msgspec.json.encode(payload)
    except (TypeError, ValueError, RecursionError):
        return  # whoever looks at each value says where it is that is none
    _check_text(text)


class _Version(msgspec.Struct):
    version: Annotated[int, msgspec.Meta(ge=1, le=(1 << 31) - 1)]


_decoder = msgspec.json.Decoder(Payload)
_version_decoder = msgspec.json.Decoder(_Version)


def _decoded(text: bytes) -> Payload | None:
    """The payload, or ``None`` for whatever takes a second look: most errors, and Dynamo's list.

    Most payloads are good, and decoded like this they take half as many objects as by a parser
    that knows nothing of them.

    Raises:
        SpecError: for what a spec or the payload says of itself.
    """
    refusal = None
    try:
        with fields_hold():
            return _decoder.decode(text)
    except msgspec.DecodeError as error:
        if isinstance(error.__cause__, SpecError):
            refusal = spec_error(error)
    except (UnicodeError, RecursionError):
        pass
    # What matters more may come after what is refused: the version, or the end of the JSON.
    with suppress(msgspec.DecodeError, UnicodeError, RecursionError):
        if refusal and _version_decoder.decode(text).version == VERSION:
            raise refusal
    return None


def _parsed(text: bytes) -> Any:
    try:
        return msgspec.json.decode(text)
    except UnicodeError:
        raise SpecError("The payload is not valid Unicode") from None
    except msgspec.DecodeError as error:
        failure = spec_error(error)
        raise SpecError(f"The payload is not valid JSON: {failure.message}", failure.path) from None
    except RecursionError:
        raise SpecError("The payload is nested too deeply") from None


def _check_version(body: Any) -> None:
    """Before anything else is looked at: the rest of a newer payload may mean anything."""
    version = msgspec.convert(body, _Version).version
    if version > VERSION:
        raise SpecError(
            f"Version {version} is newer than {VERSION}, the newest that this release reads",
            "$.version",
        )


def dynamo_entries(
    specs: LogitsProcessorSpec | Sequence[LogitsProcessorSpec],
) -> list[dict[str, Any]]:
    """The specs as Dynamo's list of entries.

    The format of ``serialize_logits_processor_entries`` (``dynamo/common/backend/engine.py``,
    Dynamo 1.6.1), which knows forced sequences that end in EOS.

    Raises:
        SpecError: for a spec that Dynamo's format cannot express.
    """
    specs = several(specs)
    entries: list[dict[str, Any]] = []
    for i, spec in enumerate(specs):
        if not isinstance(spec, ForcedTokenSequenceSpec):
            raise SpecError(f"Dynamo's entries have no kind for {type(spec).__name__}", f"$[{i}]")
        if spec.eos_token_id is None:
            raise SpecError("Dynamo's entries always end in EOS", f"$[{i}].eos_token_id")
        entries.append(
            {
                "kind": spec.kind,
                "token_ids": list(spec.token_ids),
                "eos_token_id": spec.eos_token_id,
            }
        )
    return entries


def json_schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of the wire format."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **msgspec.json.schema(Payload),
    }


def _known_kinds() -> str:
    return "the kinds that can travel are " + ", ".join(map(kind_of, WIRE_KINDS))


_DIGITS_AS_0 = bytes.maketrans(b"123456789E", b"000000000e")


def _check_text(text: bytes) -> None:
    """Bound what a JSON parser may make of a text, by counts that need no parser.

    Raises:
        SpecError: beyond ``MAX_PAYLOAD_BYTES``, ``MAX_CONTAINERS``, ``MAX_PARTS`` or
            ``MAX_EXTREME_NUMBERS``.
    """
    if len(text) > MAX_PAYLOAD_BYTES:
        raise SpecError(f"The payload has {len(text)} bytes; the limit is {MAX_PAYLOAD_BYTES}")
    arrays, objects = text.count(b"["), text.count(b"{")
    parts = text.count(b",") + text.count(b":") + 2 * arrays + 4 * objects
    zeros = text.translate(_DIGITS_AS_0, b"+-")
    numbers = zeros.count(b"0" * 256)
    if zeros.count(b"e") > MAX_EXTREME_NUMBERS:
        numbers += zeros.count(b"e000")
    for got, most, what in (
        (arrays + objects, MAX_CONTAINERS, "opening brackets"),
        (parts, MAX_PARTS, "parts (commas, colons, [ twice, { four times)"),
        (numbers, MAX_EXTREME_NUMBERS, "numbers with three digits of exponent, or 256 in a row"),
    ):
        if got > most:
            raise SpecError(f"Expected a payload with at most {most} {what}, got {got}")

"""The wire format: one versioned JSON text with a request's specs, the same for all engines."""

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Any, Literal, cast

import msgspec

from .base import (
    LogitsProcessorSpec,
    as_specs,
    check_fields,
    check_sizes,
    fields_hold,
    kind_of,
    spec_error,
)
from .conflicts import check_native
from .errors import SpecError, type_of
from .json_values import check_text, payload_too_deep
from .kinds import WIRE_KINDS, WireSpec
from .kinds.logit_bias import wrong_entry
from .limits import MAX_INT, MAX_PAYLOAD_BYTES, MAX_SPECS
from .stage import Stage
from .suggestions import nearest
from .texts import Entry, Given, StandIn, TextResolver, needs_the_field
from .tokenization import Tokenizer

VERSION = 1
"""The newest version of the wire format that this release reads, and the one that it writes."""


class Payload(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The specs that a request carries.

    Args:
        version: the version of the format; see ``VERSION``.
        specs: 1 to ``MAX_SPECS`` specs, which all act on the request.
        generation_only: act only on workers whose stage generates. ``False`` is for engines that
            hand the prefill worker's token over to decode, and is an explicit choice.
        continued: the number of tokens at the prompt's end that are output of an earlier request,
            which this one continues. All kinds take them for output.

    Raises:
        SpecError: if a field is out of bounds, or a spec contradicts one that the engine
            realizes by itself. Other contradictions are found at admission.
    """

    version: Literal[1]
    specs: Annotated[tuple[WireSpec, ...], msgspec.Meta(min_length=1, max_length=MAX_SPECS)]
    generation_only: bool = msgspec.field(default_factory=lambda: True)  # and so never omitted
    continued: Annotated[int, msgspec.Meta(ge=0, le=MAX_INT)] = 0

    def __post_init__(self) -> None:
        check_fields(self)
        check_sizes(self.specs)
        check_native(self.specs)

    def is_active(self, stage: Stage) -> bool:
        """Whether the specs act on a worker in ``stage``."""
        return stage.is_active(self.generation_only)

    def check_vocabulary(self, vocab_size: int) -> None:
        """Check every token id against the size of an engine's vocabulary.

        Raises:
            SpecError: for the first token id that is ``vocab_size`` or more.
        """
        for i, spec in enumerate(self.specs):
            try:
                spec.check_vocabulary(vocab_size)
            except SpecError as error:
                raise error.at("specs", i) from None


class InProcessPayload(Payload, frozen=True):
    """Specs as live objects, which may be ``PythonProcessorSpec``, for an engine in this process.

    Raises:
        SpecError: as ``Payload`` does.
    """

    def __post_init__(self) -> None:
        check_fields(self, "version", "generation_only", "continued")
        msgspec.structs.force_setattr(self, "specs", as_specs(self.specs))
        _check_count(self.specs)
        check_sizes(self.specs)
        check_native(self.specs)


def as_given(specs: Given) -> tuple[LogitsProcessorSpec | Entry, ...]:
    """Put specs and objects of the wire into a tuple, in whatever form they come.

    Raises:
        SpecError: with the path of what is neither; for a payload with ``generation_only`` false
            or ``continued`` tokens, which are arguments.
    """
    is_text = isinstance(specs, str | bytes)
    if is_text or (isinstance(specs, Mapping) and "specs" in specs):
        decoded = decode(cast("Encoded", specs), StandIn())
        if not decoded.generation_only:
            raise SpecError("Expected generation_only=False as an argument", "generation_only")
        if decoded.continued:
            raise SpecError(f"Expected continued={decoded.continued} as an argument", "continued")
        content: Any = msgspec.json.decode(cast("str", specs)) if is_text else specs
        specs = cast("Given", content if isinstance(content, list) else content["specs"])
    given = (specs,) if isinstance(specs, Mapping) else specs
    if isinstance(given, list | tuple) and any(isinstance(each, Mapping) for each in given):
        return (*given,)
    return as_specs(cast("Sequence[LogitsProcessorSpec]", given))


def specs_of(given: Given, tokenizer: Tokenizer | None = None) -> tuple[LogitsProcessorSpec, ...]:
    """Make specs of whatever says them: specs, objects of the wire, a payload, its JSON text.

    ``specs_of({"kind": "choice", "texts": ["yes", "no"]}, tokenizer)`` has one ``ChoiceSpec``.

    Args:
        given: one or several.
        tokenizer: as for ``decode``.

    Raises:
        SpecError: as ``decode`` does.
    """
    entries = as_given(given)
    if any(isinstance(each, Mapping) for each in entries):
        return decode(_content(entries), tokenizer).specs
    return as_specs(cast("Sequence[LogitsProcessorSpec]", entries))


def _content(
    given: Sequence[LogitsProcessorSpec | Entry], generation_only: bool = True, continued: int = 0
) -> dict[str, Any]:
    entries = [
        msgspec.to_builtins(_checked_wire_spec(i, each), str_keys=True)
        if isinstance(each, LogitsProcessorSpec)
        else each
        for i, each in enumerate(given)
    ]
    content = {"version": VERSION, "specs": entries, "generation_only": generation_only}
    return {**content, "continued": continued} if continued else content


def encode(specs: Given, *, generation_only: bool = True, continued: int = 0) -> str:
    """Encode specs as the JSON text that goes under the key ``logitport`` of a request.

    A client without the tokenizer passes objects of the wire, with texts, for which the server has
    one::

        encode({"kind": "choice", "texts": ["yes", "no"]})

    Args:
        specs: one spec, or 1 to ``MAX_SPECS`` of them.
        generation_only: see ``Payload``.
        continued: see ``Payload``.

    Raises:
        SpecError: if a spec cannot be encoded, a limit is exceeded, or a spec contradicts a
            grammar. Other contradictions are found at admission.
    """
    given = as_given(specs)
    _check_count(given)
    if any(isinstance(each, Mapping) for each in given):
        content = _content(given, generation_only, continued)
        decode(content, StandIn())
        return msgspec.json.encode(content).decode()
    live = cast("Sequence[LogitsProcessorSpec]", given)
    checked = tuple(_checked_wire_spec(i, spec) for i, spec in enumerate(live))
    text = msgspec.json.encode(Payload(VERSION, checked, generation_only, continued))
    check_text(text)
    return text.decode()


def _check_count(specs: Sequence[object]) -> None:
    if not 1 <= len(specs) <= MAX_SPECS:
        raise SpecError(f"Expected 1 to {MAX_SPECS} specs, got {len(specs)}", "specs")


def _checked_wire_spec(index: int, spec: LogitsProcessorSpec) -> WireSpec:
    if isinstance(spec, WIRE_KINDS):
        return spec
    what = f"{type(spec).__name__} cannot be serialized"
    if fields := msgspec.structs.asdict(spec):
        what += ": it holds " + ", ".join(f"{k}={v!r}" for k, v in fields.items())
    raise SpecError(f"{what}; {_known_kinds()}", "specs", index)


Encoded = str | bytes | Mapping[str, Any] | Sequence[Mapping[str, Any]]
"""A payload on the wire: its JSON text, or what a JSON parser makes of it."""


def decode(payload: Encoded, tokenizer: Tokenizer | None = None) -> Payload:
    """Decode a payload, and check it as far as possible without an engine.

    Args:
        payload: JSON text, or the result of a JSON parser: an object as ``encode`` writes it,
            or Dynamo's list of entries
            (``[{"kind": "forced_sequence", "token_ids": [..], "eos_token_id": n}]``).
        tokenizer: the model's tokenizer, which turns texts in place of token ids into token ids.
            ``StandIn()`` only checks such a payload; without a tokenizer, it is refused.

    Raises:
        SpecError: with the path of the error. Unknown kinds, unknown fields and newer versions
            are errors.
    """
    return decode_texts(payload, TextResolver(tokenizer))


def decode_texts(payload: Encoded, resolver: TextResolver) -> Payload:
    """Decode a payload as ``decode`` does, with a new resolver, which then has its sizes."""
    content: Any = payload
    if isinstance(payload, str | bytes):
        text = _text(payload)
        if (decoded := _decoded(text)) is not None:
            return decoded
        content = _parsed(text)
        size = len(text)
    else:
        size = _check_object(payload)
    is_entry_list = isinstance(content, list | tuple)
    if not is_entry_list and not isinstance(content, Mapping):
        raise SpecError(f"Expected a payload or a list of specs, got `{type_of(content)}`")
    body = cast("Any", {"version": VERSION, "specs": content} if is_entry_list else content)
    try:
        try:
            _check_version(body)
            body = {**body, "specs": resolver.resolve(body["specs"])} if "specs" in body else body
            if resolver.has_texts and size > MAX_PAYLOAD_BYTES // 4:  # it is parsed twice
                what = f"The payload has texts, and {size} bytes; the limit is"
                raise SpecError(f"{what} {MAX_PAYLOAD_BYTES // 4}")
            # Token ids as keys of an object (a bias) are text in JSON.
            with fields_hold():
                return msgspec.convert(body, Payload, str_keys=True)
        except msgspec.ValidationError as error:
            failure = _with_entry(_validation_error(error), lambda i: body["specs"][i]["bias"])
            raise resolver.refusal(failure, body) from None
    except SpecError as error:
        if is_entry_list:
            raise error.moved(lambda path: path[1:]) from error.__cause__
        raise
    except UnicodeEncodeError:
        raise SpecError("The payload is not valid Unicode") from None


def _text(payload: str | bytes) -> bytes:
    try:
        text = payload.encode() if isinstance(payload, str) else payload
    except UnicodeError:
        raise SpecError("The payload is not valid Unicode") from None
    check_text(text)
    return text


def _check_object(payload: Any) -> int:
    """Apply the limits of a text to the result of a JSON parser; return the size of its text."""
    try:
        text = msgspec.json.encode(payload)
    except RecursionError:
        raise payload_too_deep() from None
    except (TypeError, ValueError):
        return 0  # the later checks of each value report its path
    check_text(text)
    return len(text)


class _Version(msgspec.Struct):
    version: Annotated[int, msgspec.Meta(ge=1, le=(1 << 31) - 1)]


_INVALID_KIND = re.compile(r"Invalid value '(.*)'", re.DOTALL)

_decoder = msgspec.json.Decoder(Payload)
_version_decoder = msgspec.json.Decoder(_Version)


class _Bias(msgspec.Struct):
    bias: dict[str, Any]


class _Specs(msgspec.Struct):
    specs: list[msgspec.Raw]


def _bias_of(text: bytes, index: int) -> object:
    """Parse the bias of one spec, and skip the rest of the payload."""
    try:
        specs = msgspec.json.decode(text, type=_Specs).specs
        return msgspec.json.decode(specs[index], type=_Bias).bias
    except (msgspec.DecodeError, UnicodeError):
        return None


def _decoded(text: bytes) -> Payload | None:
    """Decode a payload; return ``None`` for texts, wrong fields, JSON or version, or a list.

    Decoded like this, a payload takes half as many objects as without the types.

    Raises:
        SpecError: for an error of a payload whose JSON and version are right.
    """
    refusal = None
    try:
        with fields_hold():
            return _decoder.decode(text)
    except msgspec.DecodeError as error:
        if isinstance(error.__cause__, SpecError):
            refusal = spec_error(error)
        elif isinstance(error, msgspec.ValidationError):
            refusal = _validation_error(error)
            if needs_the_field(refusal):
                return None
    except UnicodeError:
        pass
    # A more important error may come after the refusal: the version, or the end of the JSON.
    with suppress(msgspec.DecodeError, UnicodeError):
        if refusal and _version_decoder.decode(text).version == VERSION:
            raise _with_entry(refusal, lambda i: _bias_of(text, i))
    return None


def _with_entry(failure: SpecError, bias_of: Callable[[int], object]) -> SpecError:
    """Add to an error in a bias which token id it is about; msgspec does not report it."""
    match failure.location:
        case ("specs", int(index), "bias") | ("specs", int(index), "bias", "..."):
            with suppress(LookupError, TypeError):  # the name of a field may look like this path
                if wrong := wrong_entry(bias_of(index)):
                    return wrong.at("specs", index)
        case _:
            pass
    return failure


def _validation_error(error: msgspec.ValidationError) -> SpecError:
    failure = spec_error(error)
    if failure.location[-1:] != ("kind",):
        return failure
    message = failure.message.partition(", got ")[0]  # a parser with types does not have the rest
    if invalid := _INVALID_KIND.fullmatch(message):
        hint = nearest(invalid[1], map(kind_of, WIRE_KINDS))
        message += f"{hint and f' ({hint})'}; {_known_kinds()}"
    return SpecError(message, *failure.location)


def _parsed(text: bytes) -> Any:
    try:
        return msgspec.json.decode(text)
    except UnicodeError:
        raise SpecError("The payload is not valid Unicode") from None
    except msgspec.DecodeError as error:
        failure = spec_error(error)
        what = f"The payload is not valid JSON: {failure.message}"
        raise SpecError(what, *failure.location) from None


def _check_version(body: Any) -> None:
    """Check the version before anything else: the rest of a newer payload may mean anything."""
    if "kind" in body and "version" not in body:
        raise SpecError("Expected a payload or a list of specs, got one spec: put it into a list")
    version = msgspec.convert(body, _Version).version
    if version > VERSION:
        raise SpecError(
            f"Version {version} is newer than {VERSION}, the newest that this release reads",
            "version",
        )


def _known_kinds() -> str:
    return "the kinds that can travel are " + ", ".join(map(kind_of, WIRE_KINDS))

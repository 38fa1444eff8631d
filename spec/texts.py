"""Texts in place of token ids: a server that has the model's tokenizer resolves them.

A kind names its text fields in ``TEXTS``. They exist on the wire alone: before a payload becomes
specs, its texts have become token ids, and everything else is as if the client had sent these.
"""

import re
import reprlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import combinations
from typing import Any, cast

import msgspec

from .base import LogitsProcessorSpec, kind_of
from .errors import Path, SpecError, text_of, type_of
from .kinds import WIRE_KINDS, AutomatonEdge, AutomatonState, Phase, PhaseEnd
from .limits import MAX_CLIENT_TEXT_BYTES, MAX_INT
from .suggestions import instead_of
from .thinking_families import ThinkingFamily, ThinkingTags, find_tags
from .tokenization import Tokenizer, name_tokens, resolved_eos, text_of_token, token_ids_of

_KINDS = {kind_of(kind): kind for kind in WIRE_KINDS}


def _kind_of(entry: Any) -> type[LogitsProcessorSpec] | None:
    kind = cast("Entry", entry).get("kind") if isinstance(entry, Mapping) else None
    return _KINDS.get(kind) if isinstance(kind, str) else None


_BYTES_OF_TEXT = 8
"""A tokenizer's work for a text, besides that for its bytes, in bytes."""


def text_names(struct: Any) -> Iterator[tuple[str, str]]:
    """Yield the text fields of a kind, or of an object within one, and what each stands for."""
    yield from getattr(struct, "TEXTS", {}).items()
    yield from (("tags", target) for target in getattr(struct, "TAGS", ()))


TEXT_FIELDS = frozenset(name for each in (*WIRE_KINDS, PhaseEnd) for name, _ in text_names(each))
"""The names of all text fields."""

Entry = Mapping[str, Any]
"""A spec as an object of the wire, which may have texts in place of token ids."""

Given = LogitsProcessorSpec | Entry | Sequence[LogitsProcessorSpec | Entry] | str | bytes
"""One spec, or several; or a payload, or its JSON text."""


_FIELD = re.compile(r"Object (missing required|contains unknown) field `(.*)`")


_NO_IDS = re.compile(r"Expected `(int|array)`, got `str`")


def needs_the_field(error: SpecError) -> bool:
    """Whether an error is about a field that is unknown or missing, or has text in place of ids."""
    return any(each.fullmatch(error.message) for each in (_FIELD, _NO_IDS))


def is_about_a_text(error: SpecError) -> bool:
    """Whether an error is about a text field that has not been resolved."""
    found = _FIELD.fullmatch(error.message)
    return found is not None and found[1] != "missing required" and found[2] in TEXT_FIELDS


def missing_field(name: str, kind: type[LogitsProcessorSpec]) -> str:
    """Name a missing field, and the texts that can stand for it."""
    names = (name, *(text for text, target in text_names(kind) if target == name))
    return f"Object missing required field {' or '.join(f'`{each}`' for each in names)}"


_PARTS = {"phases": Phase, "ends": PhaseEnd, "states": AutomatonState, "edges": AutomatonEdge}
"""The objects within a spec, by the name of the field that lists them."""


def known_fields(struct: type[msgspec.Struct]) -> set[str]:
    """List the fields of a kind, or of an object within one, on the wire."""
    known = {*(name for name, _ in text_names(struct)), *struct.__struct_fields__}
    return known | {"kind"} if issubclass(struct, LogitsProcessorSpec) else known


def _with_field(error: SpecError, content: Any) -> SpecError:
    """Add to an error about a field of a spec which field of its kind may be meant."""
    kind, within = _kind_at(error.location, content)
    found, hint = _FIELD.fullmatch(error.message), ""
    if kind and not within and found and found[1] == "missing required":
        return SpecError(missing_field(found[2], kind), *error.location)
    struct = _PARTS.get(str(within[-2])) if within[1:] else None if within else kind
    if struct and found and found[2] not in (known := known_fields(struct)):
        hint = instead_of(found[2], known)
    elif kind and _NO_IDS.fullmatch(error.message):
        names = [text for text, target in kind.TEXTS.items() if target in within[:1]]
        hint = f"`{names[0]}` takes texts" if names else ""
    return SpecError(f"{error.message}; {hint}", *error.location) if hint else error


def _kind_at(path: Path, content: Any) -> tuple[type[LogitsProcessorSpec] | None, Path]:
    """Find the innermost kind on a path of ``content``, and the path within its spec."""
    innermost = _kind_of(content), path
    with suppress(LookupError, TypeError):  # the name of a field may look like a path
        for n, step in enumerate(path, start=1):
            content = content[step]
            if kind := _kind_of(content):
                innermost = kind, path[n:]
    return innermost


class StandIn:
    """A tokenizer for processes without the model's: each text is one token, which no model has.

    What it makes of a payload is good for checks, and never for an engine.
    """

    eos_token_id = MAX_INT

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}

    def __len__(self) -> int:
        """Count the texts so far."""
        return len(self._ids)

    def encode(self, text: str, /, *, add_special_tokens: bool) -> list[int]:
        return [self._ids.setdefault(text, MAX_INT - 1 - len(self._ids))] if text else []

    def thinking_tags(self, family: ThinkingFamily | None) -> ThinkingTags:
        """Make tags that no model has."""
        family = ThinkingFamily("unknown", "", ("the start tag",), ("the end tag",))
        start, end = (token_ids_of(text, self) for (text,) in (family.start, family.end))
        return ThinkingTags(family, [start], [end])


class TextResolver:
    """Turns the texts of one payload into token ids.

    ``{"kind": "choice", "texts": ["yes", "no"]}`` becomes ``{"kind": "choice", "choices": [[4],
    [7]], "eos_token_id": 2}`` with a tokenizer that has these tokens.

    Args:
        tokenizer: the model's tokenizer; without one, a payload with texts is refused.
        family: the model's thinking tags, if they are stated.

    Attributes:
        has_texts: whether there were any texts so far.
        tags: the thinking tags of the model, if a spec has asked for them.
    """

    def __init__(self, tokenizer: Tokenizer | None, family: ThinkingFamily | None = None) -> None:
        self._tokenizer = tokenizer
        self._family = family
        self.tags: ThinkingTags | None = None
        self._fields: dict[Path, Path] = {}
        self._size = 0

    @property
    def has_texts(self) -> bool:
        return self._size > 0

    def resolve(self, specs: Any) -> Any:
        """Return the specs of a payload, as parsed, with token ids in place of texts.

        What is no spec stays as it is: its error is reported when the specs are made.

        Raises:
            SpecError: for a text that makes no tokens, or too many; beside the token ids that it
                stands for; beyond ``MAX_CLIENT_TEXT_BYTES``; for any text
                if there is no tokenizer.
        """
        return _each(specs, ("specs",), self._spec)

    def restore(self, error: SpecError) -> SpecError:
        """Have an error at token ids name the text that they were made of."""
        error = name_tokens(error, self._tokenizer) if self.has_texts else error
        return error.moved(self._path)

    def refusal(self, error: SpecError, content: Any) -> SpecError:
        """Have an error in the resolved ``content`` name what the client has sent, or may mean."""
        return self.restore(_with_field(error, content))

    def _path(self, path: Path) -> Path:
        for ids, text in self._fields.items():
            if path[: len(ids)] == ids:  # an index is that of a text, or of a token of one text
                rest, last = path[len(ids) :], text[-1]
                if isinstance(last, str):
                    rest = rest[: last.endswith(("texts", "tokens"))]
                return text + rest
        return path

    def _spec(self, entry: dict[str, Any], path: Path) -> None:
        kind, known = entry.get("kind"), _kind_of(entry)
        if known is not None and known.TAGS and "tags" in entry:
            self._replace_tags(entry, known, path)
        has_texts = known is not None and self._replace(entry, known.TEXTS, path)
        if has_texts and kind in _ENDED and "eos_token_id" not in entry:
            entry["eos_token_id"] = self._eos(path)
        if kind == "phases" and "phases" in entry:
            entry["phases"] = _each(entry["phases"], (*path, "phases"), self._phase)

    def _phase(self, phase: dict[str, Any], path: Path) -> None:
        if "specs" in phase:
            phase["specs"] = _each(phase["specs"], (*path, "specs"), self._spec)
        if "ends" in phase:
            phase["ends"] = self._ends(phase["ends"], (*path, "ends"))

    def _ends(self, ends: Any, path: Path) -> Any:
        """Resolve the ends of a phase: the model's end tags are as many ends."""
        if not isinstance(ends, list | tuple):
            return ends
        made: list[Any] = []
        for i, end in enumerate(cast("list[Any]", ends)):
            where: Path = (*path, i)
            alike: list[Any] = [end]
            if isinstance(end, Mapping):
                own = dict(cast("Mapping[str, Any]", end))
                tags = self._tags_of(own, PhaseEnd, PhaseEnd.TAGS, where) if "tags" in own else None
                alike = [{**own, **tag} for tag in tags.end_tags] if tags else [own]
                where = (*where, "tags") if tags else where
            for each in alike:
                if isinstance(end, Mapping):
                    self._replace(each, PhaseEnd.TEXTS, (*path, len(made)), where)
                self._fields[*path, len(made)] = where
                made.append(each)
        return made

    def _replace_tags(
        self, entry: dict[str, Any], kind: type[LogitsProcessorSpec], path: Path
    ) -> None:
        """Replace ``tags`` of a spec by the model's own; ``no_loop`` closes the block with them."""
        tags = self._tags_of(entry, kind, _TAGS, path)
        values = tags.start[0], tags.end[0], tags.start[1:], tags.end[1:]
        made: dict[str, Any] = dict(zip(_TAGS, values, strict=True))
        if "then_token_ids" not in entry and "then_text" not in entry:
            closing = tags.end[0] if entry["kind"] == "no_loop" else ()
            made["then_token_ids"] = closing + tags.then
        self._fields |= {(*path, name): (*path, "tags") for name in made}
        entry |= made

    def _tags_of(
        self, entry: dict[str, Any], struct: Any, targets: Sequence[str], path: Path
    ) -> ThinkingTags:
        """Take ``tags`` out of an object, where it stands for ``targets``; return the model's."""
        path = *path, "tags"
        if (value := entry.pop("tags")) != "model":
            raise SpecError(f'Expected "model", got {reprlib.repr(value)}', *path)
        for name, target in (*zip(targets, targets, strict=True), *struct.TEXTS.items()):
            if target in targets and name in entry:
                raise SpecError(f"Expected {name} or tags, got both", *path)
        self._size += _BYTES_OF_TEXT
        if self._tokenizer is None:
            raise SpecError(_NO_TOKENIZER, *path)
        tokenizer: Any = self._tokenizer
        find = getattr(tokenizer, "thinking_tags", partial(find_tags, tokenizer))
        try:
            tags: ThinkingTags = find(self._family)
        except SpecError as error:
            raise SpecError(_NO_TAGS, *path) from error
        except Exception as error:  # of any tokenizer
            raise SpecError(f"The tokenizer fails: {text_of(error)}", *path) from error
        self.tags = tags
        return tags

    def _replace(
        self, entry: dict[str, Any], texts: Mapping[str, str], path: Path, sent: Path = ()
    ) -> bool:
        """Replace the texts of one object, sent at ``sent``; return whether it has any."""
        found = [name for name in texts if name in entry]
        for name in found:
            where, target = (*(sent or path), name), texts[name]
            if target in entry:
                raise SpecError(f"Expected {target} or {name}, got both", *where)
            is_of_tokens = _is_of_tokens(name, entry)
            value = entry.pop(name)
            if name.endswith("text"):
                is_at_end = entry.get("kind") == "at_end"
                entry[target] = self._token_ids(value, where, is_of_tokens, is_at_end)
            elif not isinstance(value, list | tuple):
                raise SpecError(f"Expected `array`, got `{type_of(value)}`", *where)
            else:
                of_text = self._token_id if name.endswith("tokens") else self._token_ids
                given = enumerate(cast("list[Any]", value))
                entry[target] = [of_text(each, (*where, i)) for i, each in given]
            self._fields[*path, target] = where
        return bool(found)

    def _token_ids(
        self, text: Any, path: Path, is_of_tokens: bool = False, takes_first: bool = False
    ) -> list[int]:
        if not isinstance(text, str):
            raise SpecError(f"Expected `str`, got `{type_of(text)}`", *path)
        try:
            self._size += _BYTES_OF_TEXT + len(text.encode())
        except UnicodeEncodeError:
            raise SpecError("Expected valid Unicode", *path) from None
        if self._size > MAX_CLIENT_TEXT_BYTES:
            what = f"Expected at most {MAX_CLIENT_TEXT_BYTES} bytes of texts in place of token ids"
            raise SpecError(f"{what}, with {_BYTES_OF_TEXT} more for each, got more", *path)
        if self._tokenizer is None:
            raise SpecError(_NO_TOKENIZER, *path)
        try:
            for tag in dict.fromkeys(_SPECIAL.findall(text)) if is_of_tokens else ():
                if len(token_ids_of(tag, self._tokenizer)) > 2:  # one, or a space and one
                    raise SpecError(_no_token(tag, self._tokenizer))
            return [*token_ids_of(text, self._tokenizer, takes_first=takes_first)]
        except SpecError as error:
            raise error.at(*path) from None
        except Exception as error:  # of any tokenizer
            raise SpecError(f"The tokenizer fails: {text_of(error)}", *path) from error

    def _eos(self, path: Path) -> int | None:
        try:
            return resolved_eos("tokenizer", cast("Tokenizer", self._tokenizer))
        except SpecError as error:
            raise error.at(*path, "eos_token_id") from None

    def _token_id(self, text: Any, path: Path) -> int:
        token_ids = self._token_ids(text, path, is_of_tokens=True)
        if len(token_ids) > 1:
            advice = "`banned_text` and `choice` take other texts"
            what = f"Expected one token, got the {len(token_ids)} tokens of {text!r}; {advice}"
            raise SpecError(what, *path)
        return token_ids[0]


_SPECIAL = re.compile(r"<[|\uff5c][^\s<>|\uff5c]+[|\uff5c]>")
"""What looks like a special token."""


def _is_of_tokens(name: str, entry: Entry) -> bool:
    """Whether a field is meant for special tokens, so that those of other models are mistakes.

    Thinking tags may be plain text, and a reply may be about tokens of other models.
    """
    ends_reply = entry.get("kind") == "no_loop" and not {"start_text", "start_token_ids"} & {*entry}
    return name == "tag_text" or (name == "then_text" and ends_reply)


def _no_token(tag: str, tokenizer: object) -> str:
    end = text_of_token(getattr(tokenizer, "eos_token_id", None), tokenizer)
    return f"`{tag}` is no token of this model" + (f"; its end token is `{end}`" if end else "")


_NO_TOKENIZER = "A text needs the model's tokenizer, which is not here: send token ids"

_NO_TAGS = (
    "The model's thinking tags are not known: send them, as `start_text` and `end_text` for "
    "example, or have the operator state them as `tags` in the server's configuration"
)

_TAGS = "start_token_ids", "end_token_ids", "other_start_token_ids", "other_end_token_ids"
"""The fields of a spec for which ``tags`` stands, beside ``then_token_ids`` if that is left out."""

_ENDED = "forced_sequence", "forced_end", "choice"
"""The kinds whose texts the tokenizer's EOS follows, if ``eos_token_id`` is left out."""


def _each(items: Any, path: Path, resolve: Callable[[dict[str, Any], Path], None]) -> Any:
    """Copy the objects of a list and ``resolve`` each copy in place."""
    if not isinstance(items, list | tuple):
        return items
    copies: list[Any] = []
    for i, item in enumerate(cast("list[Any]", items)):
        if isinstance(item, Mapping):
            item = dict(cast("Mapping[str, Any]", item))
            resolve(item, (*path, i))
        copies.append(item)
    return copies


def add_text_fields(definitions: dict[str, Any]) -> None:
    """Add the text fields to the definitions of a JSON Schema."""
    structs: tuple[Any, ...] = *WIRE_KINDS, PhaseEnd
    for struct in structs:
        if struct.TEXTS:
            _add_to(definitions[struct.__name__], [*text_names(struct)])


def _add_to(schema: dict[str, Any], texts: Sequence[tuple[str, str]]) -> None:
    required: list[str] = schema["required"]
    either: list[Any] = []
    names: dict[str, list[str]] = {}
    for name, target in texts:
        one = {"type": "string", "minLength": 1}
        many = {"type": "array", "items": one, "minItems": 1, "maxItems": MAX_CLIENT_TEXT_BYTES}
        value = one if name.endswith("text") else many
        schema["properties"][name] = {"const": "model"} if name == "tags" else value
        names.setdefault(target, [target]).append(name)
    for target, each in names.items():
        if target in required:
            required.remove(target)
            either.append({"oneOf": [{"required": [name]} for name in each]})
        else:
            pairs = ([{"required": [name]} for name in pair] for pair in combinations(each, 2))
            either += ({"not": {"allOf": pair}} for pair in pairs)
    schema["allOf"] = either

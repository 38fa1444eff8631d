"""Spec files: what a file holds, all its problems, and where in the file they are."""

import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, NamedTuple, cast

import msgspec

from ...spec import (
    WIRE_KINDS,
    LogitsProcessorSpec,
    NativeSpec,
    PluginSpec,
    SpecError,
    StandIn,
    Tokenizer,
    decode,
)
from ...spec.base import kind_of, spec_error
from ...spec.conflicts import check_native
from ...spec.errors import Path, path_text
from ...spec.limits import MAX_SPECS
from ...spec.suggestions import instead_of
from ...spec.texts import is_about_a_text, known_fields, missing_field, text_names
from ..environment import CONFIGURATION_VARIABLE
from ..files import MAX_FILE_BYTES, decode_text, read_file
from ..policy import Policy, policy_of
from .texts import model_tokenizer

CONFIGURATIONS = ".yaml", ".yml", ".toml"
"""The ends of the names of files that hold a server's configuration, and no specs of a request."""


class Problem(NamedTuple):
    """One thing that is wrong with a file.

    Attributes:
        file: the name of the file.
        line: the line, from 1.
        column: the column, from 1.
        path: the path of the value in the file.
        message: what was expected and what was found.
        advice: what to do, if the message does not imply it.
    """

    file: str
    line: int
    column: int
    path: str
    message: str
    advice: str = ""

    def __str__(self) -> str:
        text = f"{self.file}:{self.line}:{self.column}: {self.path}: {self.message}"
        return f"{text}. {self.advice}" if self.advice else text


@dataclass(frozen=True)
class Source:
    """A checked file.

    Attributes:
        specs: the valid specs, by their index in the file.
        paths: the path in the file of each spec.
        generation_only: as in ``Payload``.
        problems: everything that is wrong.
        entries: all specs, as they are in the file.
        continued: as in ``Payload``.
    """

    specs: dict[int, LogitsProcessorSpec]
    paths: list[str]
    generation_only: bool
    problems: list[Problem]
    entries: Sequence[Any] = ()
    continued: int = 0

    @property
    def wrong(self) -> list[Problem]:
        """The problems, but the texts that only lack the tokenizer, which a server has."""
        return [each for each in self.problems if not each.message.startswith(UNRESOLVED)]


def read_text(file: str) -> str:
    """Read a file, or standard input for ``-``.

    Raises:
        OSError: if the file cannot be read.
        ValueError: as for ``read_file``.
    """
    if file != "-":
        return read_file(file)
    data = sys.stdin.buffer.read(MAX_FILE_BYTES + 1)
    return decode_text(data, "Standard input", MAX_FILE_BYTES)


def read_specs(file: str, tokenizer: str | None = None) -> Source:
    """Read and check a payload, a list of entries or one spec, texts with a model's tokenizer.

    Of a server's configuration, the specs are those of its guard and its default specs.

    Of more specs than a request may have, none is checked.

    Raises:
        OSError: if the file cannot be read.
        ValueError: as for ``read_file``; for a configuration, as ``read_policy`` does.
    """
    if is_configuration(file):
        return _of_configuration(file, tokenizer)
    text = read_text(file)
    loaded = None if tokenizer is None else model_tokenizer(tokenizer)
    try:
        return _checked(file, text, json.loads(text), loaded)
    except json.JSONDecodeError as error:
        at = Problem(file, error.lineno, error.colno, "$", f"Not JSON: {error.msg}")
        return Source({}, [], True, [at])
    except RecursionError:
        return Source({}, [], True, [Problem(file, 1, 1, "$", "Nested too deeply")])


def is_configuration(file: str) -> bool:
    """Whether a file is a server's configuration: in JSON, an object with a field of one."""
    if not file.endswith(".json"):
        return file.endswith(CONFIGURATIONS)
    from .configuration_schema import configuration_schema

    try:
        content = json.loads(read_text(file))
    except (ValueError, RecursionError):  # which its reader says
        return False
    fields = configuration_schema()["properties"].keys() - {"version"}
    return isinstance(content, dict) and not fields.isdisjoint(content)  # pyright: ignore


def read_policy(file: str, tokenizer: str | None, *, checks_only: bool = False) -> Policy | None:
    """Read a server's configuration.

    Args:
        file: its name.
        tokenizer: the model's folder, or its name.
        checks_only: without a tokenizer, leave out the specs made of texts.

    Raises:
        OSError: if the file cannot be read.
        ValueError: if something in it is wrong, with all problems in ``problems``.
    """

    def load() -> Any:
        if tokenizer is None:
            raise ValueError("Use --tokenizer to name the model, whose tokens this needs")
        return model_tokenizer(tokenizer)

    os.environ.pop(CONFIGURATION_VARIABLE, None)  # which names the file of a server here
    return policy_of(None if checks_only and tokenizer is None else load, file)


def _of_configuration(file: str, tokenizer: str | None) -> Source:
    try:
        policy = read_policy(file, tokenizer) or Policy()
    except ValueError as error:
        problems = "; ".join(getattr(error, "problems", [str(error)]))
        raise ValueError(f"{file}: {problems}") from None
    specs = (*policy.guard, *policy.default)
    if not specs:
        raise ValueError(f"{file}: expected specs in `guard` or `default`, got none")
    paths = [f"$.guard[{i}]" for i in range(len(policy.guard))]
    paths += [f"$.default[{i}]" for i in range(len(policy.default))]
    return Source(dict(enumerate(specs)), paths, True, [])


def _checked(file: str, text: str, content: Any, tokenizer: Tokenizer | None) -> Source:
    entries, path_of, whole = _entries(content)
    specs: dict[int, LogitsProcessorSpec] = {}
    errors: list[SpecError] = []
    if len(entries) > MAX_SPECS:  # of which each two would be compared
        what = f"Expected 1 to {MAX_SPECS} specs, got {len(entries)}; they are not checked"
        error = SpecError(what, *path_of(0)[:-1])
        return Source({}, [], True, [_problem(file, text, _positions(text), error)])
    for i, entry in enumerate(entries):
        try:
            if not tokenizer:
                decode([entry], StandIn())  # what else is wrong counts more than a text
            (specs[i],) = decode([entry], tokenizer).specs
        except SpecError as error:
            errors += [each.at("specs", i) for each in _all_of(entry, error)]
    errors += _conflicts(specs)
    errors += _costs(specs)
    try:
        decoded = decode(whole, tokenizer or StandIn())
        generation_only, continued = decoded.generation_only, decoded.continued
    except SpecError as error:
        generation_only, continued = True, 0
        if not errors or len(error.location) < 2 or error.location[0] != "specs":
            errors.append(error)
    positions = _positions(text) if errors else {}
    problems = [_problem(file, text, positions, error.specs_at(path_of)) for error in errors]
    paths = [path_text(path_of(i)) for i in range(len(entries))]
    problems.sort(key=lambda problem: (problem.line, problem.column))
    return Source(specs, paths, generation_only, problems, entries, continued)


def _entries(content: Any) -> tuple[list[Any], Callable[[int], Path], Any]:
    """Return the specs of a file, what makes their paths, and the payload that they make."""
    if isinstance(content, Mapping) and "kind" in content:
        return [content], lambda i: (), {"version": 1, "specs": [content]}
    if isinstance(content, list):
        entries = cast("list[Any]", content)
        return entries, lambda i: (i,), {"version": 1, "specs": entries}
    specs = cast("Any", content).get("specs") if isinstance(content, Mapping) else None
    entries = cast("list[Any]", specs) if isinstance(specs, list) else []
    return entries, lambda i: ("specs", i), content


def _all_of(entry: Any, first: SpecError) -> Iterator[SpecError]:
    """Yield the error of a spec, all its unknown and missing fields, and its fields' errors."""
    first = first.moved(lambda path: path[1:])
    kind = cast("Any", entry).get("kind") if isinstance(entry, Mapping) else None
    of_kind = [each for each in WIRE_KINDS if kind_of(each) == kind]
    fields = msgspec.structs.fields(of_kind[0]) if of_kind else ()
    named = [*_names(entry, of_kind[0])] if of_kind else []
    is_about_names = not first.location and first.message.startswith("Object ")
    yield from named if named and is_about_names else (first, *named)
    for field in fields:
        if field.encode_name in entry and first.location[:1] != (field.name,):
            try:
                msgspec.convert(entry[field.encode_name], field.type, str_keys=True)
            except msgspec.ValidationError as error:
                if not is_about_a_text(found := spec_error(error)):
                    yield found.at(field.name)


def _names(entry: Mapping[str, Any], kind: type[LogitsProcessorSpec]) -> Iterator[SpecError]:
    """Yield an error for each field that is unknown, and for each that is missing."""
    known, texts = known_fields(kind), [*text_names(kind)]
    for name in entry.keys() - known:
        yield SpecError(f"There is no field {name!r}; {instead_of(name, known)}", name)
    there = {*entry, *(target for name, target in texts if name in entry)}
    for field in msgspec.structs.fields(kind):
        if field.required and field.encode_name not in there:
            yield SpecError(missing_field(field.encode_name, kind))


def _conflicts(specs: Mapping[int, LogitsProcessorSpec]) -> list[SpecError]:
    """List the conflicts of each two specs; if no two conflict, that of all specs together."""
    from ..core.contradictions import check_without_engine

    def conflict(indices: tuple[int, ...]) -> list[SpecError]:
        try:
            check_native([specs[i] for i in indices])
            check_without_engine([specs[i] for i in indices])
        except SpecError as error:
            return [error.specs_at(lambda i: ("specs", indices[i]))]
        return []

    pairs = (error for pair in combinations(specs, 2) for error in conflict(pair))
    return [*pairs] or conflict(tuple(specs))


def _costs(specs: Mapping[int, LogitsProcessorSpec]) -> Iterator[SpecError]:
    """Yield the errors of compilation. Plugins and the tokenizer are on the server, not here."""
    from ..core import compile_specs

    servers = NativeSpec | PluginSpec
    indices = tuple(
        i for i, each in specs.items() if not (isinstance(each, servers) or each.needs_vocabulary)
    )
    try:
        compile_specs([specs[i] for i in indices])
    except SpecError as error:
        yield error.specs_at(lambda i: ("specs", indices[i]))


def missing(error: ModuleNotFoundError) -> str:
    """Say what to install."""
    name = (error.name or "").partition(".")[0]
    extras = {"huggingface_hub": "tokenizer", "tokenizers": "tokenizer"}
    extra = (extras | dict.fromkeys(("anyio", "starlette", "uvicorn"), "detect")).get(name, "cli")
    return f"{name} is missing: pip install 'logitport[{extra}]'"


def _problem(file: str, text: str, positions: Mapping[Path, int], error: SpecError) -> Problem:
    """Put an error at its place in the file; without one, at the object around it."""
    around = error.location
    while around not in positions and around:
        around = around[:-1]
    at = positions.get(around, 0)
    line, column = text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at)
    advice = next((each for start, each in _ADVICE.items() if error.message.startswith(start)), "")
    return Problem(file, line, column, error.path, error.message, advice)


UNRESOLVED = "A text needs"
"""How the error of a text begins that only lacks the tokenizer."""

_ADVICE = {
    "Conflicts with": "Remove one of them",
    UNRESOLVED: "A server has it; here, use --tokenizer to name the model",
}
"""What to do about errors, by the beginnings of their messages."""

_SPACE = re.compile(r"\s*")


def _positions(text: str) -> dict[Path, int]:
    """Map the path of each value of a JSON text to its position."""
    found: dict[Path, int] = {}

    def skip(at: int) -> int:
        return cast("re.Match[str]", _SPACE.match(text, at)).end()

    def walk(at: int, path: Path) -> int:
        found[path] = at
        if text[at] not in "{[":
            return json.JSONDecoder().raw_decode(text, at)[1]
        is_object, index, at = text[at] == "{", 0, skip(at + 1)
        while text[at] not in "}]":
            key = index
            if is_object:
                key, at = json.JSONDecoder().raw_decode(text, at)
                at = skip(skip(at) + 1)
            at = skip(walk(at, (*path, key)))
            index += 1
            if text[at] == ",":
                at = skip(at + 1)
        return at + 1

    walk(skip(0), ())
    return found

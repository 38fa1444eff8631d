"""Configuration: a file gives an engine default specs, presets and bounds, without any code.

``LOGITPORT_CONFIG`` names a YAML, TOML or JSON file::

    default:                        # for requests that bring no specs
      - kind: thinking_budget
        for_tokenizer: {budget: 512}
    own: add                        # a request's own specs replace it (the default), or refuse
    guard:                          # on every request, whatever it brings
      - kind: banned_tokens
        token_ids: [128010]
    presets:                        # a request asks for {"kind": "plugin", "name": "yes-no"}
      yes-no:
        - kind: choice
          from_text: {choices: ["yes", "no"]}
    forbid: [prompt_bias]
    effort: {low: 512, high: 4096}  # budgets of the engine's own, by reasoning_effort
    models:                         # by served name; a field replaces the field above
      small-model:
        forbid: []

A spec has the fields of the wire format. In place of token ids, it may name a constructor of its
class, ``from_text``, ``from_words``, ``from_tokenizer`` or ``for_tokenizer``, with the arguments
beside the tokenizer, which is the engine's.

A process reads the file once: when its engine starts, or, in vLLM's front end, when it first checks
a request. Another file needs a restart of the front end and of the workers, which have to agree.
"""

import logging
import os
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, NamedTuple, cast

import msgspec

from ..adapters import Policy, TokenizerCopy
from ..adapters.environment import CONFIGURATION_VARIABLE as VARIABLE
from ..spec import WIRE_KINDS, LogitsProcessorSpec, NativeSpec, SpecError, StandIn, decode, encode
from ..spec.base import kind_of, spec_error
from ..spec.errors import Path, shown
from ..spec.limits import MAX_MESSAGE, MAX_PATH
from ..spec.payload import decode_texts
from ..spec.suggestions import instead_of
from ..spec.texts import TextResolver
from .constructors import CONSTRUCTORS, LoadTokenizer, make_spec
from .content import read_content

logger = logging.getLogger(__name__)

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
"""The values of ``reasoning_effort``."""

_GONE = {
    "forbid_fields": "This is a gateway's business",
    "default_fields": "This is a gateway's business; in vLLM, use `--override-generation-config`, "
    "in SGLang the model's `generation_config.json`",
    "ceiling": "Thinking is bounded by a `default` with `own: add`, and specs by LOGITPORT_LIMITS",
}
"""What to use in place of fields that a configuration could have."""

OWN = "replace", "add", "refuse"
"""The values of ``own``."""

_CLASSES = {kind_of(kind): kind for kind in WIRE_KINDS}
_IN_PAYLOADS = {"continued"}.union(
    name for name, kind in _CLASSES.items() if not issubclass(kind, NativeSpec)
)
"""What a server can forbid: kinds, and a field of payloads."""


class ConfigurationError(ValueError):
    """All problems of a configuration, a line each, with unprintable characters escaped.

    Args:
        source: the name of the file.
        problems: what is wrong, with the place.
    """

    def __init__(self, source: str, problems: Sequence[str]) -> None:
        self.problems = tuple(shown(each, MAX_PATH + MAX_MESSAGE) for each in problems)
        count = "a problem" if len(problems) == 1 else f"{len(problems)} problems"
        super().__init__("\n  ".join([f"{shown(source)} has {count}:", *self.problems]))


def policy(
    tokenizer: LoadTokenizer | None, names: Sequence[str] = (), settings: Any = None
) -> Policy | None:
    """Return the policy of the configuration; ``None`` if there is none.

    Args:
        tokenizer: loads the engine's tokenizer. It is called only for specs made of texts; with
            ``None``, they are left out, and the file is only checked.
        names: the names under which the engine serves its model.
        settings: what the engine's own configuration has for logitport: the name of a file, or what
            a file would hold.

    Raises:
        ConfigurationError: with all problems.
        OSError: if the file cannot be read.
    """
    file = os.environ.get(VARIABLE)
    if settings is not None and file:
        what = f"{VARIABLE} is set, and so is logitport in the engine's configuration: drop one"
        raise ConfigurationError(file, [what])
    if settings is None and not file:
        return None
    if settings is None or isinstance(settings, str):
        file = settings or file or ""
        try:
            content, lines = read_content(file)
        except ValueError as error:
            raise ConfigurationError(file, [str(error)]) from None
    else:
        content, lines, file = settings, {}, "logitport in the engine's configuration"
    reading = _Reading(lines, [])
    model, fields = reading.sections(content, tokenizer, names)
    if reading.problems:
        raise ConfigurationError(file, sorted(reading.problems, key=_by_line))
    made = Policy(**fields)
    rules = msgspec.json.encode({"guards": len(made.guard), **made.describe()}).decode()
    logger.info("logitport: %s, for %s: %s", shown(file), shown(model or "any model"), rules)
    return made


def _by_line(problem: str) -> tuple[int, str]:
    line = problem.split(":", 1)[0].removeprefix("line ")
    return int(line) if line.isdecimal() else 0, problem


class _Reading(NamedTuple):
    """The state of reading one file.

    Attributes:
        lines: the line of each value, by its path.
        problems: what is wrong so far.
    """

    lines: Mapping[Path, int]
    problems: list[str]

    def sections(
        self, content: Any, tokenizer: LoadTokenizer | None, names: Sequence[str]
    ) -> tuple[str | None, dict[str, Any]]:
        """Check all sections, for a model of these names.

        Returns:
            The name whose section applies, if one does, and the fields of the policy.
        """
        if not isinstance(content, Mapping):
            self._report((), f"Expected an object with {', '.join(_FIELDS)}, got {content!r:.100}")
            return None, {}
        top = dict(cast("Mapping[str, Any]", content))
        models = top.pop("models", None) or {}
        if not isinstance(models, Mapping):
            self._report(("models",), "Expected an object with a section for each model")
            models = {}
        chosen = next((name for name in names if name in models), None)
        fields: dict[str, Any] = {}
        replaced: Iterable[str] = ()
        for name, section in cast("Mapping[Any, Any]", models).items():
            path = "models", str(name)
            if not isinstance(name, str):  # YAML takes 7 and yes for other types
                self._report(path, f"Expected the name of a model, in quotes, got {name!r}")
            elif isinstance(section, Mapping):
                section = cast("Mapping[str, Any]", section)
                own = self._section(section, path, tokenizer if name == chosen else None)
                if name == chosen:
                    fields, replaced = own, section
            else:
                self._report(path, "Expected an object, like the whole file's")
        others = self._section(top, (), tokenizer, replaced)
        return chosen, {**others, **fields, "models": tuple(cast("Mapping[str, Any]", models))}

    def _section(
        self,
        section: Mapping[str, Any],
        path: Path,
        tokenizer: LoadTokenizer | None,
        replaced: Iterable[str] = (),
    ) -> dict[str, Any]:
        """Check a section; without a tokenizer, its specs are not made of their texts."""
        fields: dict[str, Any] = {}
        for name, value in section.items():
            where = *path, str(name)
            if name not in _FIELDS:
                known = [*_FIELDS] if path else [*_FIELDS, "models"]
                self._report(where, _unknown(name, known))
                continue
            read = _FIELDS[name]
            with self._reporting(*where):
                made = dict(read(self, value, where, None if name in replaced else tokenizer))
                fields |= {} if name in replaced else made
        return fields

    def _default(self, value: Any, path: Path, tokenizer: LoadTokenizer | None) -> "_Made":
        yield "default", self._specs(value, path, tokenizer)

    def _own(self, value: Any, path: Path, tokenizer: LoadTokenizer | None) -> "_Made":
        if value not in OWN:
            self._report(path, _unknown(value, OWN, "value"))
        yield "own", value

    def _guard(self, value: Any, path: Path, tokenizer: LoadTokenizer | None) -> "_Made":
        specs = self._specs(value, path, tokenizer)
        for i, spec in enumerate(specs):
            if spec.breaks_grammar:
                what = f"A guard bans, allows or limits; `{spec.kind}` forces tokens into a reply"
                self._report((*path, i), what)
        yield "guard", specs

    def _presets(self, value: Any, path: Path, tokenizer: LoadTokenizer | None) -> "_Made":
        presets = msgspec.convert(value, dict[str, Any])
        made = {
            name: self._specs(specs, (*path, name), tokenizer, f"the preset {name!r}")
            for name, specs in presets.items()
        }
        for name in presets:
            try:
                decode([{"kind": "plugin", "name": name}])
            except SpecError as error:
                self._report((*path, name), f"No name for a preset: {error.message}")
        yield "presets", made

    def _effort(self, value: Any, path: Path, tokenizer: LoadTokenizer | None) -> "_Made":
        efforts: dict[str, int] = {}  # each by itself, so that each that is wrong is reported
        for name, budget in msgspec.convert(value, dict[str, Any]).items():
            if name not in EFFORTS:
                self._report((*path, name), _unknown(name, EFFORTS, "effort"))
                continue
            with self._reporting(*path, name):
                efforts[name] = msgspec.convert(budget, Annotated[int, msgspec.Meta(ge=0)])
        yield "efforts", efforts

    def _forbid(self, value: Any, path: Path, tokenizer: LoadTokenizer | None) -> "_Made":
        kinds = msgspec.convert(value, list[str])
        for i, kind in enumerate(kinds):
            if kind not in _IN_PAYLOADS:
                what = _unknown(kind, _IN_PAYLOADS, "kind")
                if kind in _CLASSES:
                    what = f"`{kind}` travels in fields of the engine, which a gateway can forbid"
                self._report((*path, i), what)
        yield "forbid", frozenset(kinds)

    def _specs(
        self, value: Any, path: Path, tokenizer: LoadTokenizer | None, what: str = ""
    ) -> tuple[LogitsProcessorSpec, ...]:
        """Make specs, each by itself, and check them together."""
        if not isinstance(value, list) or (what and not value):
            self._report(path, f"Expected a list of specs{what and ' for ' + what}")
            return ()
        entries = cast("list[Any]", value)
        before, specs = len(self.problems), list[LogitsProcessorSpec]()
        for i, entry in enumerate(entries):
            where = *path, i
            entry = self._with_texts(entry, where, tokenizer)
            texts = TextResolver(StandIn() if tokenizer is None else TokenizerCopy(tokenizer))
            try:
                made = () if entry is None else decode_texts([entry], texts).specs
                specs += () if tokenizer is None and texts.has_texts else made
            except SpecError as error:
                self._report_error(error.moved(lambda path: path[1:]).at(*where))
                continue
            if specs and isinstance(specs[-1], NativeSpec):
                kind = f"`{specs[-1].kind}` travels in fields of the engine"
                self._report(where, f"{kind}, which a server cannot fill in")
        if specs and len(self.problems) == before:
            from ..adapters.core.contradictions import check_without_engine

            try:
                encode(specs)
                check_without_engine(specs)
            except SpecError as error:
                self._report_error(error.moved(lambda path: path[1:]).at(*path))
        return tuple(specs)

    def _with_texts(self, entry: Any, path: Path, tokenizer: LoadTokenizer | None) -> Any:
        """Return a spec's fields, which its constructor makes if it names one, or ``None``."""
        if entry is None:
            self._report(path, "Expected a spec, got null")
        if not isinstance(entry, Mapping):
            return entry
        fields = dict(cast("Mapping[str, Any]", entry))
        kind = fields.get("kind")
        spec_type = _CLASSES.get(kind) if isinstance(kind, str) else None
        if spec_type is not None and (
            name := next(filter(fields.__contains__, CONSTRUCTORS), None)
        ):
            arguments = fields.pop(name)
            others = fields.keys() - {"kind"}
            if others:
                what = f"Expected nothing beside {name}, got {', '.join(sorted(map(str, others)))}"
                self._report(path, what)
                return None
            try:
                made = make_spec(spec_type, name, arguments, tokenizer)
                return None if made is None else msgspec.to_builtins(made)
            except Exception as error:  # the arguments may be anything, and so the tokenizer's
                self._report((*path, name), str(error))
            return None
        if kind == "phases" and isinstance(fields.get("phases"), list):
            return self._with_phases(fields, path, tokenizer)
        return fields

    def _with_phases(
        self, fields: dict[str, Any], path: Path, tokenizer: LoadTokenizer | None
    ) -> dict[str, Any] | None:
        """Return the fields of ``phases``, with the specs within."""
        phases: list[Any] = []
        for i, phase in enumerate(fields["phases"]):
            if isinstance(phase, Mapping) and isinstance(phase.get("specs"), list):
                specs = [
                    self._with_texts(each, (*path, "phases", i, "specs", k), tokenizer)
                    for k, each in enumerate(phase["specs"])
                ]
                if any(each is None for each in specs):
                    return None
                phase = {**phase, "specs": specs}
            phases.append(phase)
        return {**fields, "phases": phases}

    @contextmanager
    def _reporting(self, *path: str | int) -> Generator[None]:
        """Report an error of the caller's block, which ends."""
        try:
            yield
        except SpecError as error:
            self._report_error(error.at(*path))
        except msgspec.ValidationError as error:
            self._report_error(spec_error(error).at(*path))

    def _report(self, path: Path, message: str) -> None:
        self._report_error(SpecError(message, *path))

    def _report_error(self, error: SpecError) -> None:
        around = error.location
        while around not in self.lines and around:
            around = around[:-1]
        line = f"line {self.lines[around]}: " if around in self.lines else ""
        self.problems.append(f"{line}{error.path}: {error.message}")


_Made = Iterator[tuple[str, Any]]
_FIELDS: dict[str, Callable[..., _Made]] = {
    name.removeprefix("_"): getattr(_Reading, name)
    for name in (*("_default", "_own", "_guard", "_presets", "_forbid", "_effort"),)
}


def _unknown(name: object, known: Iterable[str], what: str = "field") -> str:
    gone = _GONE.get(str(name)) if what == "field" else None
    return gone or f"There is no {what} {name!r}; {instead_of(str(name), known)}"

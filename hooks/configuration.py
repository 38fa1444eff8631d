"""Configuration: a file gives an engine default specs, presets and bounds, without any code.

``LOGITPORT_CONFIG`` names a YAML, TOML or JSON file::

    version: 1                      # of this format; 1 if it is left out
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
          texts: ["yes", "no"]
    forbid: [prompt_bias]
    effort: {low: 512, high: 4096}  # budgets of the engine's own, by reasoning_effort
    profiles:                       # the marks of texts; a request asks for kind watermark
      news: {scheme: vllm-gumbel, key: {env: NEWS_KEY}}
    require:
      watermark: {profile: news, unless: [json]}  # on every request, but those for JSON
    reload: true                    # what changes here, takes effect without a restart
    tags: olmo-3                    # the model's thinking tags, if its tokenizer does not tell them

A spec has the fields of the wire format, with texts in place of token ids. It may also name a
constructor of its class, ``from_text``, ``from_words``, ``from_tokenizer`` or ``for_tokenizer``,
with the arguments beside the tokenizer, which is the engine's.

A process reads the file once: when its engine starts, or, in vLLM's front end, when it first checks
a request. Without ``reload``, another file needs a restart of the front end and of the workers,
which have to agree.
"""

import logging
import os
import re
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, NamedTuple, cast

import msgspec

from ..adapters import Policy, TokenizerCopy, mark_of
from ..adapters.content import TenantSettings, read_content
from ..adapters.environment import CONFIGURATION_VARIABLE as VARIABLE
from ..adapters.files import FileState, state_of
from ..adapters.presets import Preset
from ..spec import (
    WIRE_KINDS,
    LogitsProcessorSpec,
    NativeSpec,
    SpecError,
    StandIn,
    ThinkingFamily,
    decode,
    encode,
)
from ..spec.base import kind_of, spec_error
from ..spec.errors import Path, shown
from ..spec.payload import decode_texts
from ..spec.suggestions import instead_of
from ..spec.texts import TextResolver
from .constructors import CONSTRUCTORS, LoadTokenizer, make_spec
from .problems import ConfigurationError, by_line, refusal
from .required_mark import Require
from .stated_tags import stated_tags

logger = logging.getLogger(__name__)

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
"""The values of ``reasoning_effort``."""

_GONE = {
    "forbid_fields": "This is a gateway's business",
    "default_fields": "This is a gateway's business; in vLLM, use `--override-generation-config`, "
    "in SGLang the model's `generation_config.json`",
    "models": "A server has a file of its own, in LOGITPORT_CONFIG",
    "limits": "Limits are those of the variable LOGITPORT_LIMITS, as in `max_specs=4`",
    "ceiling": "Thinking is bounded by a `default` with `own: add`, and specs by LOGITPORT_LIMITS",
}
"""What to use in place of fields that a configuration could have, or might be thought to have."""

_UNQUOTED = re.compile(r"Expected `str`, got `(bool|int|float|date|datetime)`")
"""A text without quotes, which YAML takes for another type."""

VERSION = 1
"""The version of the format: a later one would be for files that 1 cannot express."""

OWN = "replace", "add", "refuse"
"""The values of ``own``."""

_CLASSES = {kind_of(kind): kind for kind in WIRE_KINDS}
_IN_PAYLOADS = {"continued"}.union(
    name for name, kind in _CLASSES.items() if not issubclass(kind, NativeSpec)
)
"""What a server can forbid: kinds, and a field of payloads."""


def policy(tokenizer: LoadTokenizer | None, settings: Any = None) -> Policy | None:
    """Return the policy of the configuration; ``None`` if there is none.

    Args:
        tokenizer: loads the engine's tokenizer. It is called only for specs made of texts; with
            ``None``, they are left out, and the file is only checked.
        settings: what the engine's own configuration has for logitport: the name of a file, or what
            a file would hold; or what a gateway has for a tenant.

    Raises:
        ConfigurationError: with all problems.
        OSError: if the file cannot be read.
    """
    file, source, compares = os.environ.get(VARIABLE), None, True
    if file and settings is not None and not isinstance(settings, TenantSettings):
        what = f"{VARIABLE} is set, and so is logitport in the engine's configuration: drop one"
        raise ConfigurationError(file, [what])
    if settings is None and not file:
        return None
    if isinstance(settings, TenantSettings):
        (content, lines, file), compares = settings, False
    elif settings is None or isinstance(settings, str):
        source = state_of(file := settings or file or "")
        try:
            content, lines = read_content(file)
        except ValueError as error:
            raise ConfigurationError(file, [str(error)]) from None
    else:
        content, lines, file = settings, {}, "logitport in the engine's configuration"
    reading = _Reading(lines, [], tokenizer, source, compares=compares)
    fields = reading.fields(content)
    if reading.problems:
        raise ConfigurationError(file, sorted(reading.problems, key=by_line))
    made = Policy(**fields)
    rules = msgspec.json.encode(made.describe()).decode()
    if tokenizer is not None:  # or specs made of texts are not there
        rules = f"policy {made.digest}: {rules}"
    logger.info("logitport: %s: %s", shown(file), rules)
    return made


class _Reading(NamedTuple):
    """The state of reading one file.

    Attributes:
        lines: the line of each value, by its path.
        problems: what is wrong so far.
        tokenizer: loads the tokenizer; without one, no specs are made of texts.
        source: the file, before it was read, if it is one.
        tags: the thinking tags that the file states, for its specs.
        compares: whether to compare specs with each other, which needs numpy.
    """

    lines: Mapping[Path, int]
    problems: list[str]
    tokenizer: LoadTokenizer | None
    source: FileState | None
    tags: ThinkingFamily | None = None
    compares: bool = True

    def fields(self, content: Any) -> dict[str, Any]:
        """Check all fields of a file; return those of the policy."""
        if not isinstance(content, Mapping):
            self._report((), f"Expected an object with {', '.join(_FIELDS)}, got {content!r:.100}")
            return {}
        fields: dict[str, Any] = {}
        items = cast("Mapping[str, Any]", content).items()
        for name, value in sorted(items, key=lambda item: item[0] != "tags"):
            if name not in _FIELDS:
                self._report((str(name),), _unknown(name, _FIELDS))
                continue
            with self._reporting(name):
                made = _FIELDS[name](self._replace(tags=fields.get("tags")), value)
                fields |= made if name in _OTHERS else {_NAMES.get(name, name): made}
        named = cast("Mapping[str, Any]", content).get("profiles")
        named = named if isinstance(named, Mapping) else ()
        if (required := fields.get("required")) not in (None, *named):
            what = f"There is no profile {required!r} in `profiles`"
            self._report(("require", "watermark", "profile"), what)
        return fields

    def _version(self, value: Any) -> Mapping[str, Any]:
        if value is True or value != VERSION:
            what = f"Expected {VERSION}, the version that this release reads, got {value!r:.100}"
            is_newer = isinstance(value, int) and value > VERSION
            advice = "upgrade logitport" if is_newer else "leave the field out, or write 1"
            self._report(("version",), f"{what}: {advice}")
        return {}

    def _default(self, value: Any) -> Sequence[LogitsProcessorSpec]:
        return self._specs(value, ("default",))

    def _own(self, value: Any) -> str:
        if value not in OWN:
            self._report(("own",), _unknown(value, OWN, "value"))
        return value

    def _guard(self, value: Any) -> Sequence[LogitsProcessorSpec]:
        return self._specs(value, ("guard",))

    def _preset(self, value: Any, path: Path, what: str) -> Any:
        if not isinstance(value, Mapping):
            return self._specs(value, path, what)
        with self._reporting(*path):
            return Preset.of(value, self._made)
        return ()

    def _made(self, entries: Sequence[Any]) -> tuple[LogitsProcessorSpec, ...]:
        """Make specs of entries, later on; see ``Preset``."""
        apart = self._replace(lines={}, problems=[])
        specs = apart._specs(list(entries), ())
        if apart.problems:
            raise SpecError(apart.problems[0])
        return specs

    def _presets(self, value: Any) -> Mapping[str, Any]:
        presets = msgspec.convert(value, dict[str, Any])
        made = {
            name: self._preset(specs, ("presets", name), f"the preset {name!r}")
            for name, specs in presets.items()
        }
        for name in presets:
            try:
                decode([{"kind": "plugin", "name": name}])
            except SpecError as error:
                self._report(("presets", name), f"No name for a preset: {error.message}")
        return made

    def _effort(self, value: Any) -> Mapping[str, int]:
        efforts: dict[str, int] = {}  # each by itself, so that each that is wrong is reported
        for name, budget in msgspec.convert(value, dict[str, Any]).items():
            if name not in EFFORTS:
                self._report(("effort", name), _unknown(name, EFFORTS, "effort"))
                continue
            with self._reporting("effort", name):
                efforts[name] = msgspec.convert(budget, Annotated[int, msgspec.Meta(ge=0)])
        return efforts

    def _profiles(self, value: Any) -> Mapping[str, Any]:
        from ..adapters.detection import read_profiles

        marks: dict[str, Any] = {}
        for name, profile in read_profiles(value).items():
            with self._reporting("profiles", name):
                marks[name] = mark_of(name, profile)
            try:
                decode([{"kind": "watermark", "profile": name}])
            except SpecError as error:
                self._report(("profiles", name), f"No name for a profile: {error.message}")
        return marks

    def _require(self, value: Any) -> Mapping[str, Any]:
        required = msgspec.convert(value, Require).watermark
        bounds = msgspec.structs.asdict(required.bounds)
        unmarked = frozenset(required.unless)
        return {"required": required.profile, "mark_bounds": bounds, "unmarked": unmarked}

    def _reload(self, value: Any) -> FileState | None:
        reloads = msgspec.convert(value, bool)
        if reloads and self.source is None:
            self._report(("reload",), "Only a file is read again: name one in its place")
        return self.source if reloads else None

    def _tags(self, value: Any) -> ThinkingFamily | None:
        family = stated_tags(value)
        if self.tokenizer:
            TokenizerCopy(self.tokenizer).thinking_tags(family)
        return family

    def _forbid(self, value: Any) -> frozenset[str]:
        kinds = msgspec.convert(value, list[str])
        for i, kind in enumerate(kinds):
            if kind not in _IN_PAYLOADS:
                what = _unknown(kind, _IN_PAYLOADS, "kind")
                if kind in _CLASSES:
                    what = f"`{kind}` travels in fields of the engine, which a gateway can forbid"
                self._report(("forbid", i), what)
        return frozenset(kinds)

    def _specs(self, value: Any, path: Path, what: str = "") -> tuple[LogitsProcessorSpec, ...]:
        """Make specs, each by itself, and check them together."""
        if not isinstance(value, list) or (what and not value):
            self._report(path, f"Expected a list of specs{what and ' for ' + what}")
            return ()
        entries = cast("list[Any]", value)
        before, specs = len(self.problems), list[LogitsProcessorSpec]()
        for i, entry in enumerate(entries):
            where = *path, i
            entry = self._with_texts(entry, where)
            load = self.tokenizer
            texts = TextResolver(StandIn() if load is None else TokenizerCopy(load), self.tags)
            try:
                made = () if entry is None else decode_texts([entry], texts).specs
            except SpecError as error:
                self._report_error(error.moved(lambda path: path[1:]).at(*where))
                continue
            specs += () if load is None and texts.has_texts else made
            for why in filter(None, (refusal(spec, path == ("guard",)) for spec in made)):
                self._report(where, why)
        if specs and len(self.problems) == before:
            try:
                encode(specs)
                if self.compares:
                    from ..adapters.core.contradictions import check_without_engine

                    check_without_engine(specs)
            except SpecError as error:
                self._report_error(error.moved(lambda path: path[1:]).at(*path))
        return tuple(specs)

    def _with_texts(self, entry: Any, path: Path) -> Any:
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
                made = make_spec(spec_type, name, arguments, self.tokenizer)
                return None if made is None else msgspec.to_builtins(made)
            except Exception as error:  # the arguments may be anything, and so the tokenizer's
                self._report((*path, name), str(error))
            return None
        if kind == "phases" and isinstance(fields.get("phases"), list):
            return self._with_phases(fields, path)
        return fields

    def _with_phases(self, fields: dict[str, Any], path: Path) -> dict[str, Any] | None:
        """Return the fields of ``phases``, with the specs within."""
        phases: list[Any] = []
        for i, phase in enumerate(fields["phases"]):
            if isinstance(phase, Mapping) and isinstance(phase.get("specs"), list):
                specs = [
                    self._with_texts(each, (*path, "phases", i, "specs", k))
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
        quotes = ": quote it" if _UNQUOTED.match(error.message) else ""
        self.problems.append(f"{line}{error.path}: {error.message}{quotes}")


_NAMED = (
    *("version", "default", "own", "guard", "presets", "forbid", "effort"),
    *("profiles", "require", "reload", "tags"),
)
_FIELDS: dict[str, Callable[[_Reading, Any], Any]] = {
    name: getattr(_Reading, f"_{name}") for name in _NAMED
}
_OTHERS = "version", "require"
"""The fields that are no fields of a policy, but make some."""
_NAMES = {"effort": "efforts", "reload": "source"}
"""The fields of a policy that have another name."""


def _unknown(name: object, known: Iterable[str], what: str = "field") -> str:
    gone = _GONE.get(str(name)) if what == "field" else None
    return gone or f"There is no {what} {name!r}; {instead_of(str(name), known)}"

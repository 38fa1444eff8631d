"""Policies: the specs that an operator fills in, and the bounds of what requests may ask for."""

import hashlib
import logging
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib.metadata import entry_points
from typing import Any, ClassVar, Literal

import msgspec

from ..spec import (
    LogitsProcessorSpec,
    Payload,
    PhasesSpec,
    PluginSpec,
    SpecError,
    StandIn,
    ThinkingFamily,
    Tokenizer,
    WatermarkSpec,
    decode,
    encode,
)
from ..spec.base import fields_hold
from ..spec.errors import Name
from ..spec.limits import MAX_SPECS
from ..spec.suggestions import nearest
from .files import FileState
from .native import UNSET, leaves_text, value_of
from .presets import Preset

logger = logging.getLogger(__name__)

GROUP = "logitport.policies"
"""The entry-point group of functions ``(tokenizer, settings) -> Policy | None``.

Each is called once in each process of an engine, and again where a policy's ``source`` changes.
``tokenizer()`` loads the engine's tokenizer, or is ``None`` where a configuration is only checked;
``settings`` is what the engine's own configuration has for logitport.
"""

DEFAULTS = "logitport.default_specs"
"""The entry-point group of functions ``(tokenizer: Callable[[], Tokenizer]) -> Sequence[spec]``.

Each is called as those above are. Its specs are default specs, before those of the
policy.
"""

PolicyOf = Callable[[Callable[[], Tokenizer] | None, Any], "Policy | None"]


@dataclass(frozen=True, eq=False)
class Policy:
    """What an operator fills in, bounds and forbids in the requests of an engine.

    A file makes one without code, see ``logitport.hooks.configuration``.

    Args:
        default: the specs of requests that bring none.
        own: what happens to ``default`` if a request brings specs: they ``replace`` it, or are
            ``add``-ed to it; or the server does ``refuse`` all specs but its presets, which are
            added to it.
        guard: specs that act on every request, whatever it brings, after all other edits of a row.
            They ban, allow or limit, and force nothing into a reply.
        presets: specs by the name under which a request asks for them, with
            ``PluginSpec(name)``. A preset hides a plugin of the same name. A ``Preset`` takes the
            plugin's ``params``.
        forbid: the kinds that a request may not bring, and the payload's field ``continued``.
            Presets may have the kinds.
        efforts: thinking budgets, by the ``reasoning_effort`` of a request.
        profiles: the marks that texts may have, by name, with their keys: ``core.Mark``.
        required: the name of the profile with which each text is marked, if there is one.
        mark_bounds: the bounds of ``temperature``, ``top_k``, ``top_p`` and ``min_p`` of requests
            with the required mark, in place of those in ``draws.REQUIRED_BOUNDS``.
        tags: the model's thinking tags, where its tokenizer does not tell them.
        unmarked: what needs no mark: ``grammar``, a request with any grammar; ``json``, one for
            JSON or for one of some texts.
        source: the file of which another policy is made when it changes, as it was before it was
            read; see ``reload``.
    """

    NO_BEAMS: ClassVar = (
        "This server admits no beam search: its guard, or the mark of its texts, would not act on "
        "it"
    )

    default: tuple[LogitsProcessorSpec, ...] = ()
    own: Literal["replace", "add", "refuse"] = "replace"
    presets: Mapping[str, tuple[LogitsProcessorSpec, ...] | Preset] = field(
        default_factory=dict[str, tuple[LogitsProcessorSpec, ...] | Preset]
    )
    forbid: frozenset[str] = frozenset()
    guard: tuple[LogitsProcessorSpec, ...] = ()
    efforts: Mapping[str, int] = field(default_factory=dict[str, int])
    profiles: Mapping[str, Any] = field(default_factory=dict[str, Any], repr=False)
    required: str | None = None
    mark_bounds: Mapping[str, float] = field(default_factory=dict[str, float])
    unmarked: frozenset[str] = frozenset()
    source: FileState | None = field(default=None, repr=False)
    tags: ThinkingFamily | None = None

    @property
    def acts_always(self) -> bool:
        """Whether something acts on requests without specs."""
        return bool(self.guard or self.default or self.required)

    @property
    def forbids_beams(self) -> bool:
        """Whether something acts on every request that engines leave out of a beam search."""
        return bool(self.guard) or self.required is not None

    def required_mark_of(self, request: Any, grammars: Iterable[str] = ()) -> str | None:
        """Return the name of the profile that a request's text has to be marked with.

        Args:
            request: the request's parameters, a mapping or an object.
            grammars: the fields that ask for a grammar.
        """
        if not self.unmarked or value_of(request, "ignore_eos"):  # text comes after the grammar's
            return self.required
        asked = ((name, value_of(request, name)) for name in grammars)
        given = [each for each in asked if each[1] not in UNSET]
        is_free = "grammar" in self.unmarked or not any(leaves_text(*each) for each in given)
        return None if given and is_free else self.required

    @cached_property
    def guard_payload(self) -> str | None:
        """The payload of requests on which the guard alone acts, in any stage; ``None`` without."""
        return encode(self.guard, generation_only=False) if self.guard else None

    @cached_property
    def mark_payload(self) -> str | None:
        """The payload of requests on which the required mark alone acts; ``None`` without one."""
        return encode(WatermarkSpec(self.required)) if self.required else None

    @cached_property
    def default_payload(self) -> str | None:
        """The payload of requests on which the default specs alone act; ``None`` without."""
        return encode(self.default) if self.default else None

    def end_token(self, eos_token_ids: Iterable[int], vocab_size: int) -> int | None:
        """Return a token that ends a reply where nothing but what the guard bans is left.

        It ends a text that cannot be marked, too. It is none of a request's own stop tokens, which
        the guard may ban and a client may leave out. There is none without a guard and a required
        mark, unless a reload may bring a guard, or if the vocabulary has none of the model's, which
        is logged.
        """
        if not self.guard and self.required is None and self.source is None:
            return None
        found = min((each for each in eos_token_ids if 0 <= each < vocab_size), default=None)
        if found is None:
            logger.warning(
                "logitport: no EOS token of the model is known: where nothing but what the guard "
                "bans is left, a banned token comes; what cannot be marked may go on unmarked"
            )
        return found

    def check_change(self, policy: "Policy") -> None:
        """Refuse another policy in place of this one, if workers have to begin with it.

        Raises:
            ValueError: with the fields of the configuration.
        """
        mine, other = ((each.required, each.mark_bounds, each.unmarked) for each in (self, policy))
        changed = {
            "reload": policy.source is None,
            "profiles": policy.profiles != self.profiles,
            "require": mine != other,
        }
        if names := ", ".join(f"`{name}`" for name, differs in changed.items() if differs):
            raise ValueError(f"Restart the server to change {names}")

    def check_continued(self, payload: Payload) -> None:
        """Refuse to continue an output, if the server does.

        Raises:
            SpecError: at the field.
        """
        if payload.continued and "continued" in self.forbid:
            raise SpecError("This server does not admit `continued`", "continued")

    def resolve(self, payload: Payload) -> Payload:
        """Check a request's specs and fill in what the server has for it.

        The default specs come first: of two specs that force a token, or that each allow only
        some, the first wins. The further specs of presets come last. The guard is apart.

        Raises:
            SpecError: if the request may not bring a spec, or if the specs cannot act together.
        """
        self.check_continued(payload)
        specs, more = list(payload.specs), list[LogitsProcessorSpec]()
        named = set[str]()
        for i, spec in enumerate(specs):
            if isinstance(spec, PluginSpec) and spec.name in self.presets:
                if spec.name in named:
                    raise SpecError(f"The preset {spec.name!r} is named twice", "specs", i)
                named.add(spec.name)
                specs[i], *others = self._of_preset(spec, i)
                more += others
            else:
                self._check(spec, i)
        first = self._first
        if not (named or first):
            return payload
        if (got := len(first) + len(specs) + len(more)) > MAX_SPECS:
            what = f"Expected at most {MAX_SPECS} specs, with those that the server adds, got {got}"
            raise SpecError(what, "specs")
        with fields_hold(), self.restoring(payload):
            every = *first, *specs, *more
            return msgspec.structs.replace(payload, specs=every)

    def _of_preset(self, spec: PluginSpec, index: int) -> Sequence[LogitsProcessorSpec]:
        """Return the specs of the preset that a request names, with its parameters."""
        preset = self.presets[spec.name]
        if isinstance(preset, Preset):
            try:
                return preset.specs(spec.params)
            except SpecError as error:
                raise error.at("specs", index, "params") from error.__cause__
        if spec.params:
            what = f"The preset {spec.name!r} takes no parameters"
            raise SpecError(what, "specs", index, "params")
        return preset

    @cached_property
    def digest(self) -> str:
        """16 hexadecimal digits that servers with the same policy have, and no others.

        No key of a mark is in it.
        """
        marks = [
            (name, mark.width, mark.searched, mark.reads_prompt)
            for name, mark in sorted(self.profiles.items())
        ]
        content = {
            **self.describe(),
            "default": encode(self.default) if self.default else "",
            "guard": self.guard_payload,
            "presets": {
                name: each.describe() if isinstance(each, Preset) else encode(each)
                for name, each in self.presets.items()
            },
            "profiles": marks,
            "bounds": dict(self.mark_bounds),
            "unmarked": sorted(self.unmarked),
        }
        text = msgspec.json.encode(content, order="deterministic")
        return hashlib.sha256(text).hexdigest()[:16]

    def describe(self) -> dict[str, Any]:
        """Describe the policy to clients, by the names of the configuration."""
        return {
            "guard": [spec.kind for spec in self.guard],
            "default": [spec.kind for spec in self.default],
            "own": self.own,
            "presets": sorted(self.presets),
            "forbid": sorted(self.forbid),
            "effort": dict(self.efforts),
            **({"profiles": sorted(self.profiles)} if self.profiles else {}),
            **({"required": self.required} if self.required else {}),
            **({"tags": self.tags._asdict()} if self.tags else {}),
        }

    def join(self, specs: Sequence[LogitsProcessorSpec]) -> tuple[bool, tuple[str, ...]]:
        """Return whether default specs join those of a request, and the presets that it names."""
        named = (spec.name for spec in specs if isinstance(spec, PluginSpec))
        joins = bool(self.default) and self.own != "replace"  # a guard is no default
        return joins, tuple(name for name in named if name in self.presets)

    def mark(self, specs: Sequence[LogitsProcessorSpec]) -> str:
        """Return the profile with which a text is marked, unless it depends on a grammar."""
        required = "" if self.unmarked else self.required or ""
        named = (spec.profile for spec in specs if isinstance(spec, WatermarkSpec))
        return next(named, required)

    @property
    def _first(self) -> tuple[LogitsProcessorSpec, ...]:
        """The specs that come before those of each request."""
        return () if self.own == "replace" else self.default

    @contextmanager
    def restoring(self, payload: Any) -> Generator[None]:
        """Have errors name specs by their indices in ``payload``, and what is filled in by none.

        The payload is the request's own, encoded or not.
        """
        added = Name("a spec that the server adds")
        try:
            yield
        except SpecError as error:
            if not isinstance(payload, Payload):
                payload = decode(payload, StandIn())
            own = range(len(self._first), len(self._first) + len(payload.specs))
            moved = error.specs_at(lambda i: ("specs", own.index(i)) if i in own else (added,))
            match moved.location:
                case ("specs", int(i), "name") if moved.message.startswith("No plugin"):
                    known = self._presets_like(payload.specs[i])
                    moved = SpecError((*moved.parts, f"; {known}"), *moved.location)
                case _:
                    pass
            if added in moved.location:
                moved = SpecError((f"With {added}: ", *moved.parts), "specs")
            raise moved from error.__cause__

    @contextmanager
    def naming_guard(self) -> Generator[None]:
        """Have errors name the specs of the guard, which no payload has."""
        try:
            yield
        except SpecError as error:
            named = error.specs_at(lambda i: (Name(f"the server's guard[{i}]"),))
            if named.location == ("specs",):
                raise SpecError.of_field(named.parts, "the server's guard") from None
            raise named from None

    def _check(self, spec: LogitsProcessorSpec, index: int) -> None:
        """Check a spec that a request brings, and the specs within its phases."""
        if self.own == "refuse":
            what = f"This server admits no specs but its presets: {self._names}"
            raise SpecError(what, "specs", index)
        within = spec.inner_specs() if isinstance(spec, PhasesSpec) else ()
        for below, each in (((), spec), *within):
            path = "specs", index, *below
            if each.kind in self.forbid:
                what = f"This server does not admit `{each.kind}`"
                if isinstance(each, PluginSpec) and self.presets and not below:
                    what += f", and has no preset {each.name!r}; {self._presets_like(each)}"
                raise SpecError(what, *path)

    def _presets_like(self, spec: Any) -> str:
        """Ask for the preset whose name is nearest to a plugin's, if one is, and list all."""
        close = nearest(spec.name, self.presets)
        return "; ".join(filter(None, (close, f"presets: {self._names}")))

    @property
    def _names(self) -> str:
        return ", ".join(sorted(self.presets)) or "it has none"


def policy_of(tokenizer: Callable[[], Tokenizer] | None, settings: Any = None) -> Policy | None:
    """Return the policy of an engine; ``None`` if nothing is configured.

    Args:
        tokenizer: loads the engine's tokenizer; functions that need a tokenizer call it. ``None``
            checks the configuration without one, and without the default specs of packages.
        settings: what the engine's own configuration has for logitport.

    Raises:
        ValueError: if the configuration is wrong, with each problem, or if there are two.
    """
    found: dict[str, Policy] = {}
    for entry_point in entry_points(group=GROUP):
        make: PolicyOf = entry_point.load()
        if (policy := make(tokenizer, settings)) is not None:
            found[entry_point.name] = policy
    if len(found) > 1:
        raise ValueError(f"Expected one policy, got those of {', '.join(sorted(found))}")
    policy = next(iter(found.values()), None)
    specs: list[LogitsProcessorSpec] = []
    for entry_point in entry_points(group=DEFAULTS) if tokenizer else ():
        specs += entry_point.load()(tokenizer)
    if not specs:
        return policy
    policy = policy or Policy()
    return replace(policy, default=(*specs, *policy.default))

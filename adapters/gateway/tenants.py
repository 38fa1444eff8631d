"""Tenants of a gateway: what a server's configuration says, put into the requests of each."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from os import PathLike, fspath
from typing import Any, cast

from ...spec import SpecError, StandIn, decode, encode
from ...spec.errors import shown
from ...spec.texts import Entry
from ..backend import Backend
from ..content import TenantSettings, read_content
from ..policy import Policy, policy_of
from ..presets import Preset, Specs
from .exchange import Checked, Scope, path_of
from .json_body import Fields
from .key import KEY

OTHERS = "*"
"""The name under which tenants have a configuration that have none of their own."""

WITHOUT_SPECS = (
    *("/v1/responses", "/v1/messages", "/api/generate", "/api/chat", "/generate"),
    *("/cohere/v2/chat", "/v1/audio/transcriptions", "/v1/audio/translations"),
    *("/v1/systemone", "/v1/decisions"),  # which choose a text of the request's
)
"""Routes that generate text, on some engine without specs."""

_OF_SERVERS = {
    "guard": "A guard is a server's: specs in a request do not act after all others. "
    "Use `default` with `own: add`, or the server's configuration",
    "require": "Only a server can have every text marked: use its configuration",
    "profiles": "Keys of marks are for the server: use its configuration",
    "reload": "A gateway reads the file once, at its start: leave the field out",
    "tags": "The server knows its model's thinking tags: use its configuration",
}

NameOf = Callable[[Scope], str | None]
"""Returns the name of a request's tenant, by its ASGI scope."""


@dataclass(frozen=True)
class Tenant:
    """A configuration, and what stands for its specs in requests: the server knows the tokens.

    Attributes:
        policy: the policy; each text in its specs is a token that no model has.
        entries: the objects of the wire, by the ``id`` of their specs in the policy.
        behind: the backend of the server that gets the requests.
    """

    policy: Policy
    entries: Mapping[int, Entry]
    behind: Backend

    def fill(self, fields: Fields, place: str) -> bool:
        """Put the specs that act into a request.

        Args:
            fields: the request, whose payload has been checked, and is text.
            place: the path of the object that has the payload.

        Returns:
            Whether there are any.

        Raises:
            SpecError: if the tenant may not have the specs, or all cannot act together.
        """
        settings = dict[str, Any]()
        payload = _holder(fields, place).get(KEY)
        if payload is None:
            every = [self.entries[id(spec)] for spec in self.policy.default]
            if not every:
                return False
        else:
            sent, content = decode(payload, StandIn()), json.loads(payload)
            own = content if isinstance(content, list) else content["specs"]
            entries = {**self.entries, **dict(zip(map(id, sent.specs), own, strict=True))}
            make = partial(_make, self.behind, entries)
            presets = {
                name: replace(each, make=make) if isinstance(each, Preset) else each
                for name, each in self.policy.presets.items()
            }
            resolved = replace(self.policy, presets=presets).resolve(sent)
            every = [entries[id(spec)] for spec in resolved.specs]
            settings = {"generation_only": sent.generation_only, "continued": sent.continued}
        with self.policy.restoring(payload or "[]"):
            made = encode(every, **settings)
        _holder(fields, place, is_made=True)[KEY] = made
        return True


def read_tenant(name: str, settings: Any, behind: Backend) -> Tenant:
    """Read a configuration, as far as a gateway can obey it.

    Args:
        name: the name of the tenant, for errors.
        settings: the name of a file, or what a file would hold.
        behind: the backend of the server that gets the requests.

    Raises:
        ValueError: if something in it is wrong, or for a server only.
    """
    who, content, lines = f"The tenant {name!r}", settings, {}
    if not isinstance(settings, Mapping):
        if not isinstance(settings, str | PathLike):
            what = f"Expected the name of a file, or what it would hold, got {settings!r:.100}"
            raise ValueError(f"{shown(who)}: {what}")
        file = fspath(cast("Any", settings))
        who += f" ({file})"
        try:
            content, lines = read_content(file)
        except (OSError, ValueError) as error:
            raise ValueError(f"{shown(who)}: {error}") from None
    given = cast("Mapping[str, Any]", content) if isinstance(content, Mapping) else {}
    for field in filter(given.__contains__, _OF_SERVERS):
        raise ValueError(f"{shown(who)}: $.{field}: {_OF_SERVERS[field]}")
    policy = policy_of(None, TenantSettings(content, lines, who))
    assert policy is not None
    entries: dict[int, Entry] = {}

    def specs(given: Any, *path: str) -> Specs | Preset:
        try:
            if isinstance(given, Mapping):
                return Preset.of(given, partial(_make, behind, {}))
            return _make(behind, entries, given) if given else ()
        except SpecError as error:
            where = error.moved(lambda found: found[found[:1] == ("specs",) :]).at(*path)
            advice = "A gateway has no tokenizer: write token ids, or texts as on the wire"
            raise ValueError(f"{shown(who)}: {where}. {advice}") from None

    default = cast("Specs", specs(given.get("default", []), "default"))
    presets = {each: specs(of, "presets", each) for each, of in given.get("presets", {}).items()}
    return Tenant(replace(policy, default=default, presets=presets), entries, behind)


def _make(behind: Backend, entries: dict[int, Entry], given: Sequence[Any]) -> Specs:
    """Make specs of objects of the wire, which are kept by the ``id`` of each spec.

    Raises:
        SpecError: for a spec that the server behind cannot realize.
    """
    made = decode(cast("Any", list(given)), StandIn()).specs
    behind.check(made)
    entries.update(zip(map(id, made), given, strict=True))
    return made


class Tenants:
    """The tenants of a gateway.

    Args:
        configurations: as for ``read_tenant``, by the name of the tenant.
        name: the header that names the tenant of a request, or a function.
        behind: as for ``read_tenant``.
    """

    def __init__(
        self, configurations: Mapping[str, Any], name: str | NameOf, behind: Backend
    ) -> None:
        self._each = {
            name: read_tenant(name, each, behind) for name, each in configurations.items()
        }
        self._name_of = name if callable(name) else partial(_in_header, name.lower().encode())

    def of(self, scope: Scope, place: str | None) -> Tenant | None:
        """Return the tenant of a request that generates text; ``None`` for another request.

        Args:
            scope: the ASGI scope of the request.
            place: where the route takes specs, if it does.

        Raises:
            SpecError: if it has none, or its default specs cannot act on the route.
        """
        path = path_of(scope)
        if place is None and not path.endswith(WITHOUT_SPECS):
            return None
        name = self._name_of(scope)
        found = (
            self._each.get(OTHERS)
            if name is None
            else self._each.get(name) or self._each.get(OTHERS)
        )
        if found is None:
            which = "The request names no tenant" if name is None else f"No tenant {name!r:.100}"
            raise SpecError(f"{which}: this gateway has no configuration for it")
        if place is None and found.policy.default:
            raise SpecError(f"{path} takes no specs, and the tenant has default specs")
        return found if place is not None else None


def unread(body: bytes, tenant: Tenant | None) -> Checked:
    """Leave a body that is no JSON object to the application, unless a tenant's specs may act.

    Raises:
        SpecError: if they may.
    """
    if tenant is not None:
        raise SpecError("Expected a JSON object that is not compressed, for the tenant's specs")
    return Checked(body)


def _in_header(wanted: bytes, scope: Scope) -> str | None:
    """Return the value of a header; ``None`` if it is missing.

    Raises:
        SpecError: if it is there twice: the client may have sent one of them.
    """
    values = [value for name, value in scope["headers"] if name.lower() == wanted]
    if len(values) > 1:
        raise SpecError(f"Expected the header {wanted.decode('latin-1')} once: it names the tenant")
    return values[0].decode("latin-1") if values else None


def _holder(fields: Fields, place: str, *, is_made: bool = False) -> Fields:
    """Return the object that has the payload; without ``is_made``, an empty one if it is missing.

    Raises:
        SpecError: if something else is there.
    """
    for name in place.split("."):
        found = fields.get(name)
        if found is None:
            found = {}
            if is_made:
                fields[name] = found
        if not isinstance(found, dict):
            what = "Expected an object, to which the specs of the tenant are added"
            raise SpecError.of_field(what, place)
        fields = found
    return fields

"""ASGI middleware that refuses bad specs on every route, before the engine sees the request."""

import re
from asyncio import get_running_loop, to_thread
from collections.abc import Awaitable, Callable, Mapping, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from importlib.metadata import version
from typing import Any

from ...spec import VERSION, Payload, SpecError, Stage, StandIn, decode
from ...spec.base import kind_of
from ...spec.kinds import WIRE_KINDS
from ...spec.limits import LIMITS, MAX_BODY_BYTES
from ..acting import NOTED
from ..backend import Backend, backend
from ..environment import RECEIPT_VARIABLE, ROUTE_VARIABLE, is_on, setting
from ..metrics import begin, count, show_policy
from ..policy import Policy
from ..reload import one_policy, reload_of
from .exchange import Checked, Exchange, Receive, Scope, TooLargeError, answer, may_be_json, path_of
from .field_rules import check_beams, names_of, set_budget
from .json_body import CONTAINERS, Fields, Parts, containers, encode, join, keys_in, parse
from .key import KEY, check_bare, check_spelling
from .receipt import Message, Receipt, Send, digest_of
from .schema_carrier import check_strays, put_payload, take_payloads
from .tenants import NameOf, Tenant, Tenants, unread

App = Callable[[Scope, Receive, Send], Awaitable[None]]
"""An ASGI application."""

METHODS = "POST", "PUT"
"""The HTTP methods whose requests may carry specs."""

ROUTE = f"/{KEY}"
"""The route that describes the server; a prefix such as ``/v1`` may be before it."""

MAX_OBJECTS = 1 << 15
"""The most objects of a request that are checked, each of which takes microseconds."""

MAX_ON_LOOP = 1 << 13
"""The most bytes of a body that is searched on the event loop. A thread does the rest, so that
other requests do not wait."""

MAX_SMALL = 1 << 17
"""The most bytes of a body that does not wait for large ones, whose threads are others."""

_KEY = KEY.encode()
_INDEX = re.compile(r"(?<=sampling_params)\[\d+\]")
"""The index of a prompt, where an engine takes a list with an object for each prompt."""

_OF_SPECS = re.compile(rf"$|(.*\.)?({'|'.join(sorted(CONTAINERS))})(\[\d+\])?$")
"""The path of an object that may hold a payload: the request itself, and the containers."""

_OF_PROMPT = re.compile(rf"{_INDEX.pattern}$")
"""The end of the path of such an object."""


class SpecMiddleware:
    """Middleware that checks the specs of each HTTP request and answers bad specs with status 400.

    An engine itself validates a request late, when a streamed reply has begun with status 200, and
    a route without logits processors drops the payload. The middleware reads and checks the body
    when the application asks for it, which is after the application's own authentication.

    It wraps any ASGI app, and works with ``add_middleware`` of Starlette and FastAPI::

        app.add_middleware(SpecMiddleware, engine="vllm")

    A gateway's middleware leaves the requests that it admits and their answers as they are: what
    acts, and the receipt of it, is for the server behind to say. In an engine's own server, use the
    subclass of that engine: it also checks the payload against the model and the server. vLLM's is
    ``logitport.adapters.vllm.SpecMiddleware``; SGLang's is active wherever logitport is installed.

    A gateway may have a configuration for each tenant, in the form of a server's. Then the specs
    that act are put into the tenant's requests, and no other tenant's are admitted::

        tenants = {"acme": "acme.yaml", "*": "others.yaml"}
        app.add_middleware(SpecMiddleware, engine="vllm", tenants=tenants, tenant="x-tenant")

    Args:
        app: the application.
        engine: name of the installed backend whose server gets the requests.
        tenants: names of files, or what they would hold, by the name of the tenant; ``*`` is for
            tenants that have none, which are refused without it.
        tenant: the header that names the tenant, or a function of the ASGI scope. A client can
            write any header: the application's authentication has to set it.
        is_server: whether the application runs the engine itself, with all fields of the requests.
            Then payloads move from schemas to the engine's field, answers get receipts, and
            ``GET /logitport`` describes the server.

    Raises:
        SpecError: if there is no such engine, or it has no server.
        ValueError: if a configuration is wrong, or a gateway cannot obey it.
    """

    names = frozenset({"nvext"})
    """The fields that have a body checked, besides specs and those of the operator's rules."""

    def __init__(
        self,
        app: App,
        engine: str = "vllm",
        *,
        is_server: bool = False,
        tenants: Mapping[str, Any] | None = None,
        tenant: str | NameOf = "x-tenant",
    ) -> None:
        self.app, self._is_server = app, is_server
        self._backend = backend(engine)
        self.routes = self._backend.routes
        if not self.routes:
            raise SpecError(f"{engine} has no HTTP server whose requests could be checked")
        if is_server and tenants is not None:
            raise SpecError("A server has one configuration: `tenants` are for a gateway")
        self._tenants = None if tenants is None else Tenants(tenants, tenant, self._backend)
        self._gives_receipts = is_server and is_on(RECEIPT_VARIABLE, default=True, other="all")
        self._gives_all = self._gives_receipts and setting(RECEIPT_VARIABLE) == "all"
        self._is_ready = False  # the first check may read the configuration
        self._has_route = is_server and is_on(ROUTE_VARIABLE, default=True)
        # Python's parser has one core at a time: more threads would not be faster.
        self._threads = ThreadPoolExecutor(4, KEY), ThreadPoolExecutor(2, f"{KEY}-large")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check the body of a request and pass the request on."""
        if scope["type"] == "lifespan":
            self.start(scope)
        if scope["type"] != "http" or scope["method"] not in METHODS:
            is_get = scope["type"] == "http" and scope["method"] == "GET"
            path = path_of(scope) if is_get else ""
            if self._has_route and path.endswith(ROUTE):
                await self._describe(scope, receive, send)
                return
            if self._is_server and path.endswith("/metrics"):
                with suppress(Exception):  # before the engine has started
                    policy = self.backend(scope).policy or Policy()  # looks at its file, too
                    begin(self.stage(scope), policy.digest)
            await self.app(scope, receive, send)
            return
        check, error = partial(self._check, scope), partial(self.error, scope["path"])
        is_json = self._place(scope) is not None or may_be_json(scope)
        exchange = Exchange(check, error, scope, receive, send, is_json)
        try:
            with one_policy() as seen:
                if self._gives_all and self._place(scope) is not None:
                    exchange.find_receipt = partial(self._receipt_of_server, scope, seen)
                await self.app(scope, exchange.receive, exchange.send)
        except Exception:
            if exchange.refusal is None:
                raise
        await exchange.answer()

    def start(self, scope: Scope) -> None:
        """Prepare for requests, when the application's lifespan starts; here, nothing is needed."""

    async def _describe(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer ``GET /logitport`` in place of 404 or 405: the application authenticates first."""
        missing: Message | None = None

        async def send_on(message: Message) -> None:
            nonlocal missing
            if message["type"] == "http.response.start" and message["status"] in (404, 405):
                missing = message
            if missing is None:
                await send(message)

        await self.app(scope, receive, send_on)
        if missing is not None:
            content = await to_thread(self.describe, scope)
            await answer(send, 200, content, missing.get("headers", ()))

    def describe(self, scope: Scope) -> dict[str, Any]:
        """Describe the server: what its specs may be, and what it does with them.

        Args:
            scope: the ASGI scope of a request.
        """
        behind = self.backend(scope)
        policy, able = behind.policy or Policy(), behind.realizes | behind.lowers
        return {
            "version": version(KEY),
            "wire": VERSION,
            "payload": sorted(Payload.__struct_fields__),
            "engine": behind.name,
            "stage": self.stage(scope),
            "kinds": sorted(kind_of(kind) for kind in able.intersection(WIRE_KINDS)),
            "carriers": ["field", "schema"],
            "receipts": self._gives_receipts,
            "policy": {**policy.describe(), **reload_of(policy), "digest": policy.digest},
            "limits": {name: limit.value for name, limit in LIMITS.items()},
        }

    def backend(self, scope: Scope) -> Backend:
        """Return the backend of the engine behind the application, with its policy."""
        return self._backend

    async def _check(self, scope: Scope, body: bytes, parts: Parts | None = None) -> Checked:
        """Check a request on the event loop, or in a thread if that may take long."""
        on_loop = self._is_ready and len(body) <= MAX_ON_LOOP and _KEY not in body
        if on_loop:
            return self.check(scope, body, parts)
        threads = self._threads[len(body) > MAX_SMALL]
        run = copy_context().run
        checked = await get_running_loop().run_in_executor(
            threads, lambda: run(self.check, scope, body, parts)
        )
        self._is_ready = True
        return checked

    def check(self, scope: Scope, body: bytes, parts: Parts | None = None) -> Checked:
        """Check the specs of one request, if its body names any.

        Another body is the application's, and so is one that is no JSON object.

        Args:
            scope: the ASGI scope of the request.
            body: the whole body, or a part of one beyond the limit for bodies with specs.
            parts: what is kept of the parts before, if it is a part.

        Returns:
            The body, and the receipt of its specs. In a server, a payload that is a JSON object or
            list, or in a schema, has become text in the engine's own field.

        Raises:
            SpecError: if the specs are bad, or the body is too large to be searched for specs.
        """
        place = self._place(scope)
        try:
            tenant = self._tenants and self._tenants.of(scope, place)
            if (text := (parts or Parts()).text_of(body)) is None:
                return unread(body, tenant)
            policy = self.backend(scope).policy if tenant is None else tenant.policy
            keys = keys_in(text, self.names | names_of(policy))
            is_large = parts is not None or len(body) > MAX_BODY_BYTES
            if is_large and (keys is not None or (tenant is not None and tenant.policy.default)):
                limit = f"`max_body_bytes` ({MAX_BODY_BYTES})"
                raise TooLargeError(f"Expected at most {limit} bytes in a body with specs")
            if keys is None and (tenant is None or is_large):
                return Checked(body)
            if (fields := parse(text, is_strict=bool(keys))) is None:
                return unread(body, tenant)
            return self._check_fields(scope, fields, body, place, keys or frozenset(), tenant)
        except (SpecError, RecursionError) as found:
            is_deep = isinstance(found, RecursionError)
            error = SpecError("Expected a body that is not nested so deeply") if is_deep else found
            count("refused", self.stage(scope), error=error)
            raise error from None

    def _place(self, scope: Scope) -> str | None:
        """Return where specs are in a body of a request's route; ``None`` if it takes none."""
        path = path_of(scope)
        return self.routes.get(max(filter(path.endswith, self.routes), key=len, default=""))

    def _check_fields(
        self,
        scope: Scope,
        fields: Fields,
        body: bytes,
        place: str | None,
        keys: Set[str],
        tenant: Tenant | None = None,
    ) -> Checked:
        path = path_of(scope)
        prompts = carrying = 0  # of a list with an object for each prompt
        first: Any = None
        acting: Payload | None = None
        policy = (self.backend(scope).policy if tenant is None else tenant.policy) or Policy()
        is_changed = False
        for i, (container, value, owner) in enumerate(containers(fields, keys)):
            if i == MAX_OBJECTS:
                raise SpecError.of_field(f"Expected at most {MAX_OBJECTS} objects", container)
            check_beams(policy, container, value)
            check_spelling(keys & value.keys(), container or "the request")
            self.check_container(container, value)
            if KEY not in value and (place or container) and _OF_SPECS.match(container):
                check_bare(value, container, place)
            for where, payload in take_payloads(value, keys):
                where = join(container, where)
                if place is None or "." in place or container:
                    self._check_place(where, place, path, where)
                put_payload(fields, str(place), payload, where)
                is_changed = True
            check_strays(value, keys)
            prompts += bool(_OF_PROMPT.search(container))
            if KEY not in value:
                continue
            where = join(container, KEY)
            self._check_place(container, place, path, where)
            payload = value[KEY]
            if isinstance(payload, dict | list):
                is_changed = True
                payload = value[KEY] = encode(payload, is_ascii=False)
            if first not in (None, payload):
                raise SpecError.of_field(
                    "Expected the same specs for all prompts of one request", where
                )
            first = payload
            carrying += bool(_INDEX.search(container))
            acting = self.check_payload(scope, fields, owner, payload)
        budget = self._backend.budget_field
        if budget and place is not None and "." not in place:  # one of OpenAI's routes
            is_changed |= set_budget(policy, fields, budget)
        if "nvext" in fields and f'"{KEY}:' in encode(fields["nvext"]):
            self._check_place("nvext", place, path, "nvext.annotations")
        if tenant is not None and place is not None:
            is_changed |= tenant.fill(fields, place)
            return Checked(encode(fields).encode() if is_changed else body)
        receipt = None
        # A receipt is about all prompts of a request.
        gives = self._gives_receipts and carrying in (0, prompts)
        if first is not None and gives and not path.endswith("/render"):
            receipt = self._receipt(scope, first, acting)
        return Checked(encode(fields).encode() if is_changed and self._is_server else body, receipt)

    def _receipt(self, scope: Scope, payload: str, acting: Payload | None) -> Receipt:
        digest, stage = digest_of(payload), self.stage(scope)
        policy = self.backend(scope).policy
        own = "" if policy is None else policy.digest
        show_policy(own)
        if acting is None:
            return Receipt((), digest, stage, policy=own)
        policy = policy or Policy()
        mark = policy.mark(acting.specs)
        default, presets = policy.join(decode(payload, StandIn()).specs)
        kinds = tuple(dict.fromkeys(spec.kind for spec in (*policy.guard, *acting.specs)))
        losing, tags = self.may_lose(scope, payload), self.backend(scope).tags_in(payload)
        count = acting.continued
        return Receipt(kinds, digest, stage, default, presets, losing, count, mark, own, tags)

    def _receipt_of_server(self, scope: Scope, seen: dict[Any, Any]) -> Receipt | None:
        """Return the receipt of a request without specs, if any of the server act on it."""
        guard, default = seen.get(NOTED) or ((), ())
        if not (guard or default):
            return None
        policy = self.backend(scope).policy or Policy()
        show_policy(policy.digest)
        kinds = tuple(dict.fromkeys(spec.kind for spec in (*guard, *default)))
        mark, own = policy.mark(default), policy.digest
        return Receipt(kinds, "", self.stage(scope), bool(default), mark=mark, policy=own)

    def may_lose(self, scope: Scope, payload: str) -> tuple[str, ...]:
        """Return the kinds of an admitted payload that others in it may override.

        Only an engine's own server compares specs.
        """
        return ()

    def _check_place(self, container: str, place: str | None, path: str, where: str) -> None:
        if place is None:
            routes = ", ".join(sorted(route for route, place in self.routes.items() if place))
            raise SpecError.of_field(f"{path} takes no specs; these routes do: {routes}", where)
        if _INDEX.sub("", container) != place:
            raise SpecError.of_field(f"Expected specs for {path} in `{place}.{KEY}`", where)

    def check_container(self, path: str, container: Fields) -> None:
        """Check an object that may hold a payload, even if it holds none; here, nothing is needed.

        Args:
            path: path of the object; empty for the request itself.
            container: the object.

        Raises:
            SpecError: if it has what an engine does not admit.
        """

    def check_payload(
        self, scope: Scope, fields: Fields, owner: Fields, payload: Any
    ) -> Payload | None:
        """Check a payload, as far as the engine and the model behind the server are known.

        Args:
            scope: the ASGI scope of the request.
            fields: the fields of the request.
            owner: the object around the payload's container, with the sampling fields: the
                request, or its ``sampling_params`` for one prompt.
            payload: the payload as the client sent it, but an object or array as its JSON text.

        Returns:
            The payload with what the server fills in; ``None`` if it does not act here.

        Raises:
            SpecError: if the payload is bad.
        """
        decoded = decode(payload, StandIn())
        self._backend.check(decoded.specs)
        return decoded

    def error(self, path: str, message: str, status: int = 400) -> dict[str, Any]:
        """Return the body of a refusal, in the form that clients of the path expect."""
        if path.rstrip("/").endswith("/v1/messages"):  # Anthropic's
            return {"type": "error", "error": {"type": "invalid_request_error", "message": message}}
        error = {"message": message, "type": "BadRequestError", "param": KEY, "code": status}
        return {"error": error}

    def stage(self, scope: Scope) -> Stage:
        """Return the stage of the engine behind the application, to count refusals by stage."""
        return Stage.AGGREGATED

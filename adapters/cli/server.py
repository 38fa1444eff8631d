"""What ``logitport doctor`` finds at a running server: whether it obeys specs, or refuses them."""

import json
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from http.client import HTTPException
from typing import Any, cast, get_args

from ...spec import WIRE_KINDS
from ...spec.base import kind_of
from ..backend import backend
from ..files import MAX_FILE_BYTES
from ..finding import Finding, Status
from ..gateway.extra_body import Carrier, extra_body
from ..gateway.key import KEY
from ..gateway.probe import FORCED, PROMPTS, UNKNOWN_KIND, choice_of, reaches
from ..gateway.receipt import ReceiptError, find, receipt

SECONDS = 60.0
"""How long a server may take for an answer: the first one may compile kernels."""

IGNORED = "ignored"
"""What is found of specs that do not act."""

EMPTY = (
    "The default specs may force what the guard bans, or the end: "
    "`logitport check --config FILE --tokenizer MODEL` compares them."
)


class Server:
    """A server with OpenAI's routes."""

    def __init__(self, url: str, api_key: str | None) -> None:
        self.url = url
        self._headers = {"Content-Type": "application/json"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"

    def ask(self, route: str, body: dict[str, Any] | None = None) -> tuple[int, str]:
        """Return the status and the text of an answer.

        Raises:
            ValueError: if no server answers.
        """
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + route, data, self._headers)
        try:
            with urllib.request.urlopen(request, timeout=SECONDS) as answer:
                return answer.status, answer.read(MAX_FILE_BYTES).decode(errors="replace")
        except urllib.error.HTTPError as error:
            return error.code, error.read(MAX_FILE_BYTES).decode(errors="replace")
        except (OSError, ValueError, HTTPException) as error:
            raise ValueError(f"No answer from {self.url}{route}: {error}") from None

    def engine(self) -> str:
        """Return the engine of the server.

        Raises:
            ValueError: if it has no route that only one engine has.
        """
        for name, route in (("sglang", "/get_server_info"), ("vllm", "/version")):
            if self.ask(route)[0] == 200:
                return name
        raise ValueError(f"{self.url} is not known as a server of vLLM or SGLang: use --engine")

    def model(self) -> str:
        """Return the name of the first served model.

        Raises:
            ValueError: if the server lists none.
        """
        status, text = self.ask("/v1/models")
        try:
            return str(json.loads(text)["data"][0]["id"])
        except (ValueError, LookupError, TypeError):
            raise ValueError(f"{self.url}/v1/models lists no model (status {status})") from None


def ask(server: Server, engine: str, model: str | None) -> list[Finding]:
    """Send specs to a server, and a payload that is wrong.

    Args:
        server: the server.
        engine: its engine.
        model: the served model; by default, the first that the server lists.

    Raises:
        ValueError: if the server does not answer as such a server does.
    """
    extra_body(engine, ())  # raises for an engine without a server
    model = model or server.model()

    common = {"model": model, "max_tokens": 4, "temperature": 0.0}

    def body(prompt: str) -> dict[str, Any]:
        return common | {"prompt": prompt}

    def chat(prompt: str) -> dict[str, Any]:
        return common | {"messages": [{"role": "user", "content": prompt}]}

    def reply(prompt: str, fields: dict[str, Any] | None = None) -> tuple[int, str]:
        status, text = server.ask("/v1/completions", body(prompt) | (fields or {}))
        return status, _text(text) if status == 200 else _message(text)

    status, free = reply(PROMPTS[0])
    if status != 200:
        raise ValueError(f"{server.url} refuses a request without specs ({status}): {free}")
    fields = extra_body(engine, FORCED)
    replies = [reply(prompt, fields) for prompt in PROMPTS]
    _, whole = server.ask("/v1/completions", body(PROMPTS[0]) | fields)
    place = str(backend(engine).routes["/v1/completions"])
    wrong = reply(PROMPTS[0], fields | {place: {KEY: UNKNOWN_KIND}})
    elsewhere = reply(PROMPTS[0], {KEY: UNKNOWN_KIND})
    forced = _of_forced(engine, replies, free, whole)
    by = " by a gateway alone" if forced.found == IGNORED else ""
    is_empty = not free and reply(PROMPTS[1]) == (200, "")
    return [
        *([Finding("Requests without specs", "empty replies", Status.ERROR, EMPTY)] * is_empty),
        forced,
        _of_refusal("A wrong payload", engine, wrong, by),
        _of_refusal("A payload in a field that the engine does not read", engine, elsewhere, by),
        _of_carriers(server, engine, "/v1/completions", body),
        _of_carriers(server, engine, "/v1/chat/completions", chat),
        *([_of_receipt(whole, engine)] if forced.status is Status.OK else []),
        _of_description(server, engine),
    ]


def _of_forced(engine: str, replies: list[tuple[int, str]], free: str, whole: str) -> Finding:
    what = "A forced text"
    (status, first), (_, second) = replies
    if status != 200:
        return Finding(
            what, f"refused ({status}): {first}", Status.ERROR, "The message has the reason."
        )
    if first == second != free:
        return Finding(what, "obeyed")
    with suppress(ReceiptError, ValueError, RecursionError):
        given = find(json.loads(whole))
        if given is not None and not given.kinds:
            advice = "Ask the server that decodes, or set LOGITPORT_STAGE when this one starts."
            found = f"not acted on at the stage {given.stage}"
            return Finding(what, found, Status.ERROR, advice)
    return Finding(what, IGNORED, Status.ERROR, _start(engine))


def _of_refusal(what: str, engine: str, answer: tuple[int, str], by: str) -> Finding:
    status, message = answer
    if status == 400 and KEY in message:
        return Finding(what, f"refused{by}")
    if status == 200:
        return Finding(what, "not refused: it is dropped silently", Status.ERROR, _start(engine))
    return Finding(
        what, f"status {status}: {message}", Status.ERROR, "Expected status 400 of logitport."
    )


def _of_carriers(
    server: Server, engine: str, route: str, body: Callable[[str], dict[str, Any]]
) -> Finding:
    """Find out in which carriers specs reach the server."""
    what, arrives = f"Specs to {route}", list[str]()

    def ask(prompt: str, fields: dict[str, Any]) -> Any:
        status, text = server.ask(route, body(prompt) | fields)
        if status != 200:
            raise ValueError(f"status {status}: {_message(text)}")
        return json.loads(text)

    for carrier in get_args(Carrier):
        try:
            if reaches(ask, engine, carrier):
                arrives.append(carrier)
        except (ValueError, RecursionError) as error:
            if carrier == "field":
                return Finding(what, str(error), Status.NOTE, "Nothing is known.")
    field = f"{backend(engine).routes[route]}.{KEY}"
    match arrives:
        case ["field", "schema"]:
            return Finding(what, "arrive in the field and in a schema")
        case ["field"]:
            advice = "A server with the middleware reads carrier='schema', which passes gateways."
            return Finding(what, "arrive in the field, not in a schema", Status.NOTE, advice)
        case ["schema"]:
            advice = "Send them with carrier='schema', which passes."
            return Finding(what, f"`{field}` is lost on the way", Status.ERROR, advice)
        case _:
            what_is_lost = f"lost, in `{field}` and in a schema"
            return Finding(what, what_is_lost, Status.ERROR, _start(engine))


def _of_receipt(answer: str, engine: str) -> Finding:
    try:
        found = receipt(json.loads(answer), FORCED, engine=engine)
    except (ReceiptError, ValueError, RecursionError) as error:
        return Finding("The receipt of the forced text", "missing", Status.NOTE, str(error))
    return Finding("The receipt of the forced text", f"{', '.join(found.kinds)} at {found.stage}")


def _of_description(server: Server, engine: str) -> Finding:
    """Read what the middleware says of the server."""
    status, text = server.ask(f"/{KEY}")
    try:
        found = json.loads(text) if status == 200 else {}
        kinds, policy, stage = set(found["kinds"]), found["policy"], found["stage"]
        said = f"logitport {found['version']} at stage {stage}; policy {policy['digest']}"
        for name in ("guard", "default", "presets", "forbid"):
            said += f"; {name}: {json.dumps(policy[name])}" if policy.get(name) else ""
    except (ValueError, LookupError, TypeError, RecursionError):
        advice = "No middleware answers, or LOGITPORT_ROUTE=0 or a gateway hides it."
        return Finding(f"GET /{KEY}", f"status {status}", Status.NOTE, advice)
    if policy.get("reload") == "refused":
        advice = "The policy before goes on, and a restart would fail: the server's log says why."
        said += "; the file of its configuration has changed, and is wrong"
        return Finding(f"GET /{KEY}", said, Status.ERROR, advice)
    able = backend(engine).realizes | backend(engine).lowers
    if missing := sorted({kind_of(kind) for kind in able.intersection(WIRE_KINDS)} - kinds):
        advice = "Upgrade the server, or send no such specs."
        said += f"; it lacks {', '.join(missing)}"
        return Finding(f"GET /{KEY}", said, Status.WARNING, advice)
    return Finding(f"GET /{KEY}", said)


def _start(engine: str) -> str:
    return (
        f"Start the server with `logitport serve {engine} MODEL`, or with the options that "
        f"`logitport serve --print {engine} MODEL` prints."
    )


def _text(answer: str) -> str:
    try:
        return str(choice_of(json.loads(answer))["text"])
    except (ValueError, LookupError, TypeError):
        raise ValueError(f"Expected the answer of /v1/completions, got {answer[:200]!r}") from None


def _message(answer: str) -> str:
    """Find the message in the answer to a request that is refused; its form differs by engine."""
    try:
        found = json.loads(answer)
    except ValueError:
        return answer[:400]
    for name in ("error", "message"):
        if isinstance(found, dict):
            found = cast("dict[str, Any]", found).get(name, found)
    return str(found)[:400]

"""``logitport doctor``, with servers that answer as vLLM does. Tests of engines ask real ones."""

import json
import threading
from collections.abc import Callable, Generator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from logitport.adapters import SpecMiddleware
from logitport.adapters.gateway.receipt import digest_of
from logitport.spec import SpecError

from .command import run

Answer = Callable[[str, dict[str, Any]], tuple[int, Any]]
"""Of a route and a body: the status and the content."""


class _Handler(BaseHTTPRequestHandler):
    answer: Answer

    def do_GET(self) -> None:
        self._send({})

    def do_POST(self) -> None:
        self._send(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def _send(self, body: dict[str, Any]) -> None:
        status, content = type(self).answer(self.path, body)
        self.send_response(status)
        self.end_headers()
        self.wfile.write((content if isinstance(content, str) else json.dumps(content)).encode())

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def serve() -> Generator[Callable[[Answer], str]]:
    servers: list[ThreadingHTTPServer] = []

    def start(answer: Answer) -> str:
        handler = type("Handler", (_Handler,), {"answer": staticmethod(answer)})
        servers.append(ThreadingHTTPServer(("127.0.0.1", 0), handler))
        threading.Thread(target=servers[-1].serve_forever, args=(0.01,), daemon=True).start()
        return f"http://127.0.0.1:{servers[-1].server_port}/"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def engine(acts: bool, refuses: bool, middleware: bool, stage: str = "agg") -> Answer:
    """Answer as vLLM does."""

    def answer(route: str, body: dict[str, Any]) -> tuple[int, Any]:
        payload = body.get("vllm_xargs", {}).get("logitport", "")
        if middleware and "response_format" in body:
            payload = body["response_format"]["json_schema"]["schema"]["x-logitport"]
        if route == "/version":
            return 200, {"version": "0.32.0"}
        if route == "/v1/models":
            return 200, {"data": [{"id": "some/model"}]}
        if route == "/logitport" and middleware:
            made = SpecMiddleware(lambda *_: None, is_server=True)  # pyright: ignore
            return 200, made.describe({})
        if route not in ("/v1/completions", "/v1/chat/completions"):
            return 404, "not found"
        assert body["model"] == "some/model"
        is_bad = '"?"' in payload and refuses
        if is_bad or ("logitport" in body and middleware):
            return 400, {"error": {"message": "logitport: Invalid value '?'"}}
        text = payload if acts and payload else f"after {body.get('prompt', body.get('messages'))}"
        reply: dict[str, Any] = {"choices": [{"text": text}]}
        if payload and middleware:
            kinds = ["forced_sequence"] if stage != "prefill" else []
            made = {"kinds": kinds, "digest": digest_of(payload), "stage": stage}
            reply["logitport"] = made
        return 200, reply

    return answer


def gateway(
    behind: Answer, *lost: str, routes: Sequence[str] = ("/v1/chat/completions",)
) -> Answer:
    """Drop fields of requests on some routes, and describe nothing."""

    def answer(route: str, body: dict[str, Any]) -> tuple[int, Any]:
        if route == "/logitport":
            return 404, ""
        kept = {name: value for name, value in body.items() if name not in lost}
        return behind(route, kept if route in routes else body)

    return answer


def checking(behind: Answer) -> Answer:
    """A gateway with our middleware, which describes nothing."""

    def answer(route: str, body: dict[str, Any]) -> tuple[int, Any]:
        try:
            checked = SpecMiddleware(lambda *_: None)  # pyright: ignore
            checked.check({"path": route}, json.dumps(body).encode())
        except SpecError as error:
            return 400, {"error": {"message": f"logitport: {error}"}}
        return behind(route, body)

    return answer


BOTH = "arrive in the field and in a schema"
HOSTILE = "\x1b[2J\nA forced text: obeyed\x9b\u202e"


@pytest.mark.parametrize(
    "answer",
    [
        lambda route, body: (400, HOSTILE),
        lambda route, body: (200, HOSTILE),
        lambda route, body: (200, "[" * 100_000),
        lambda route, body: (200, {"data": [{"id": HOSTILE}]}),
        lambda route, body: (
            (400, {"error": {"message": HOSTILE}})
            if "vllm_xargs" in body
            else engine(True, True, True)(route, body)
        ),
    ],
)
def test_a_server_cannot_steer_the_terminal(answer: Answer, serve: Callable[[Answer], str]):
    result = run("doctor", serve(answer), "--engine", "vllm")
    assert isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code in (1, 2)
    assert result.output.replace("\n", "").isprintable()
    assert "\nA forced text: obeyed" not in result.output


OBEYED = ["obeyed", "refused", "refused"]
LOST = ["lost, in `vllm_xargs"] * 2
BY_GATEWAY = ["refused by a gateway alone"] * 2
HALF = ["arrive in the field, not in a schema"] * 2
OF_CHATS = "`vllm_xargs.logitport` is lost on the way"
GATED = "not acted on at the stage prefill"
ACTED = "forced_sequence at agg"


@pytest.mark.parametrize(
    ("answer", "found", "advice"),
    [
        (engine(True, True, True), [*OBEYED, BOTH, BOTH, ACTED, "logitport "], ""),
        (
            engine(False, False, False),
            ["ignored", "not refused", "not refused", *LOST, "status 404"],
            "serve vllm",
        ),
        (
            checking(engine(False, False, False)),
            ["ignored", *BY_GATEWAY, *LOST, "status 404"],
            "serve vllm",
        ),
        (checking(engine(True, True, True)), [*OBEYED, BOTH, BOTH, ACTED, "logitport "], ""),
        (
            engine(True, True, False),
            ["obeyed", "refused", "not refused", *HALF, "missing", "status 404"],
            "--print",
        ),
        (
            engine(False, True, True, "prefill"),
            [GATED, "refused", "refused", BOTH, BOTH, "logitport "],
            "LOGITPORT_STAGE",
        ),
        (
            gateway(engine(True, True, True), "vllm_xargs"),
            [*OBEYED, BOTH, OF_CHATS, ACTED, "status 404"],
            "carrier='schema', which passes",
        ),
    ],
)
def test_findings(
    answer: Answer, found: list[str], advice: str, serve: Callable[[Answer], str]
) -> None:
    result = run("doctor", serve(answer) + "/v1/")
    lines = [line for line in result.stdout.splitlines() if line[0] != " "]
    assert lines[0].startswith("vllm at http://127.0.0.1:")
    for line, expected in zip(lines[1:], found, strict=True):
        assert line.partition(": ")[2].startswith(expected)
    assert result.exit_code == bool(advice)
    assert advice in result.stdout
    result = run("doctor", serve(answer), "--json")
    assert [
        each["found"].startswith(expected)
        for each, expected in zip(json.loads(result.stdout)["findings"], found, strict=True)
    ] == [True] * len(found)


@pytest.mark.parametrize(
    ("answer", "arguments", "message"),
    [
        ("http://127.0.0.1:9", (), "No answer from http://127.0.0.1:9/get_server_info: "),
        ("127.0.0.1:9", (), "No answer from http://127.0.0.1:9/get_server_info: "),
        (lambda *_: (404, "no"), (), "use --engine"),
        (lambda *_: (404, "no"), ("--engine", "vllm"), "lists no model (status 404)"),
        (lambda *_: (200, {}), ("--engine", "mlx"), "has no server"),
        (
            lambda *_: (403, {"error": {"message": "no key"}}),
            ("--engine", "vllm", "--model", "m"),
            "refuses a request without specs (403): no key",
        ),
        (
            lambda *_: (200, "<html>"),
            ("--engine", "vllm", "--model", "m"),
            "Expected the answer of /v1/completions, got '<html>'",
        ),
    ],
)
def test_no_such_server(
    answer: Answer | str, arguments: tuple[str, ...], message: str, serve: Callable[[Answer], str]
) -> None:
    url = answer if isinstance(answer, str) else serve(answer)
    result = run("doctor", url, *arguments)
    assert result.exit_code == 2
    assert message in result.stderr

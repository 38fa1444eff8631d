"""``logitport doctor``, with servers that answer as vLLM does. Tests of engines ask real ones."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import logitport
import pytest
from logitport.adapters import SpecMiddleware
from logitport.spec import SpecError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from examples._support.serving import serving
from tests.support.transcripts import check, transcripts

from .command import printed, run
from .test_probe import Stub, of_vllm

Answer = Callable[[str, dict[str, Any]], tuple[int, Any]]
"""Of a route and a body: the status and the content."""


@contextmanager
def served(answer: Answer) -> Iterator[str]:
    async def respond(request: Request) -> Response:
        status, content = answer(request.url.path, json.loads(await request.body() or "{}"))
        return Response(content if isinstance(content, str) else json.dumps(content), status)

    routes = [Route("/{path:path}", respond, methods=["GET", "POST"])]
    with serving(Starlette(routes=routes)) as url:
        yield url


def engine(stub: Stub, *, middleware: bool = True) -> Answer:
    """Answer as vLLM does."""

    def answer(route: str, body: dict[str, Any]) -> tuple[int, Any]:
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
        if "logitport" in body and middleware:
            return 400, of_vllm("logitport: Expected specs elsewhere")
        return stub.reply(body)

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


def refusing(behind: Answer) -> Answer:
    """A server whose configuration has become wrong."""

    def answer(route: str, body: dict[str, Any]) -> tuple[int, Any]:
        status, found = behind(route, body)
        if route == "/logitport":
            found["policy"] |= {"guard": ["banned_text"], "reload": "refused"}
        return status, found

    return answer


def silenced(behind: Answer) -> Answer:
    """A server whose default specs force what its guard bans."""

    def answer(route: str, body: dict[str, Any]) -> tuple[int, Any]:
        status, found = behind(route, body)
        if route == "/v1/completions" and body.keys() <= PLAIN:
            found["choices"][0]["text"] = ""
        return status, found

    return answer


PLAIN = {"model", "max_tokens", "temperature", "prompt"}
HOSTILE = "\x1b[2J\nA forced text: obeyed\x9b\u202e"


def hostile_to_specs(route: str, body: dict[str, Any]) -> tuple[int, Any]:
    if "vllm_xargs" in body:
        return 400, {"error": {"message": HOSTILE}}
    return engine(Stub())(route, body)


@pytest.mark.parametrize(
    "answer",
    [
        lambda *_: (400, HOSTILE),
        lambda *_: (200, HOSTILE),
        lambda *_: (200, "[" * 100_000),
        lambda *_: (200, {"data": [{"id": HOSTILE}]}),
        hostile_to_specs,
    ],
)
def test_a_server_cannot_steer_the_terminal(answer: Answer):
    with served(answer) as url:
        result = run("doctor", url, "--engine", "vllm")
    assert isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code in (1, 2)
    assert result.output.replace("\n", "").isprintable()
    assert "\nA forced text: obeyed" not in result.output


WHOLE, NONE = engine(Stub()), engine(Stub(obeys=()), middleware=False)
SERVERS: dict[str, Answer] = {
    "WITH-ALL": WHOLE,
    "WITHOUT-LOGITPORT": NONE,
    "WITH-A-WRONG-FILE": refusing(WHOLE),
    "WITH-EMPTY-REPLIES": silenced(WHOLE),
    "GATEWAY-THAT-CHECKS": checking(WHOLE),
    "GATEWAY-THAT-CHECKS-ALONE": checking(NONE),
    "WITHOUT-MIDDLEWARE": engine(Stub(obeys=("field",), receipts=False), middleware=False),
    "PREFILL": engine(Stub(stage="prefill")),
    "GATEWAY-THAT-DROPS-FIELDS": gateway(WHOLE, "vllm_xargs"),
    "SILENT": lambda *_: (404, "no"),
    "WITH-A-KEY": lambda *_: (403, {"error": {"message": "no key"}}),
    "A-PAGE": lambda *_: (200, "<html>"),
}
"""The names of servers in the transcripts."""


def asked(command: str, text: str) -> Iterator[str]:
    """Run a line of a transcript with the URL of a server in place of its name."""
    words = command.split()
    (name,) = SERVERS.keys() & words
    with served(SERVERS[name]) as url:
        lines = [*printed(" ".join(url if each == name else each for each in words), text)]
    for line in lines:
        yield line.replace(url, name).replace(logitport.__version__, "VERSION")


@transcripts("doctor_server")
def test_transcript(file: Path, request: pytest.FixtureRequest):
    check(file, asked, request)


@pytest.mark.parametrize("end", ["/", "/v1", "/v1/"])
def test_forms_of_a_url(end: str):
    with served(WHOLE) as url:
        assert run("doctor", url + end).stdout == run("doctor", url).stdout


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "127.0.0.1:9"])
def test_no_such_server(url: str) -> None:
    result = run("doctor", url)
    assert result.exit_code == 2
    assert "No answer from http://127.0.0.1:9/get_server_info: " in result.stderr

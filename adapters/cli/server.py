"""What ``logitport doctor`` finds at a running server: whether it obeys specs, or refuses them."""

import json
import re
import urllib.error
import urllib.request
from http.client import HTTPException
from typing import Any, cast

from ...spec import ForcedTokenSequenceSpec
from ..files import MAX_FILE_BYTES
from ..finding import Finding, Status
from ..gateway.extra_body import extra_body
from ..gateway.key import KEY

SECONDS = 60.0
"""How long a server may take for an answer: the first one may compile kernels."""
FORCED = ForcedTokenSequenceSpec((1000, 1001, 1002, 1003))
PROMPTS = ("The capital of France is", "one two three four")
UNKNOWN_KIND = '{"version":1,"specs":[{"kind":"unknown"}]}'


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

    def decisions(self) -> dict[str, float]:
        """Count decisions on specs, by their labels in the server's metrics."""
        found = re.findall(
            r"^logitport_requests_total\{(.*)\} (\S+)$", self.ask("/metrics")[1], re.M
        )
        return {labels: float(value) for labels, value in found}


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

    def reply(prompt: str, fields: dict[str, Any] | None = None) -> tuple[int, str]:
        body = {"model": model, "prompt": prompt, "max_tokens": 4, "temperature": 0.0}
        status, text = server.ask("/v1/completions", body | (fields or {}))
        return status, _text(text) if status == 200 else _message(text)

    status, free = reply(PROMPTS[0])
    if status != 200:
        raise ValueError(f"{server.url} refuses a request without specs ({status}): {free}")
    fields = extra_body(engine, FORCED)
    before = server.decisions()
    replies = [reply(prompt, fields) for prompt in PROMPTS]
    after = server.decisions()
    gated = [
        labels for labels, n in after.items() if "gated" in labels and n > before.get(labels, 0)
    ]
    wrong = reply(PROMPTS[0], _with_payload(fields, UNKNOWN_KIND))
    elsewhere = reply(PROMPTS[0], {KEY: UNKNOWN_KIND})
    return [
        _of_forced(engine, replies, free, gated),
        _of_refusal("A payload that is wrong", engine, wrong),
        _of_refusal("A payload where the engine does not look", engine, elsewhere),
    ]


def _of_forced(engine: str, replies: list[tuple[int, str]], free: str, gated: list[str]) -> Finding:
    what = "A forced text"
    (status, first), (_, second) = replies
    if status != 200:
        return Finding(
            what, f"refused ({status}): {first}", Status.ERROR, "The message has the reason."
        )
    if first == second != free:
        return Finding(what, "obeyed")
    if gated:
        stages = re.findall(r'stage="(\w+)"', " ".join(gated))
        advice = "Ask the server that decodes, or set LOGITPORT_STAGE when this one starts."
        return Finding(
            what, f"not acted on at the stage {' or '.join(stages)}", Status.ERROR, advice
        )
    return Finding(what, "ignored", Status.ERROR, _start(engine))


def _of_refusal(what: str, engine: str, answer: tuple[int, str]) -> Finding:
    status, message = answer
    if status == 400 and KEY in message:
        return Finding(what, "refused")
    if status == 200:
        return Finding(
            what, "not refused: it is dropped without a word", Status.ERROR, _start(engine)
        )
    return Finding(
        what, f"status {status}: {message}", Status.ERROR, "Expected status 400 of logitport."
    )


def _start(engine: str) -> str:
    return (
        f"Start the server with `logitport serve {engine} MODEL`, or with the options that "
        f"`logitport serve --print {engine} MODEL` prints."
    )


def _with_payload(fields: dict[str, Any], payload: str) -> dict[str, Any]:
    """Replace the payload in the fields of a request, which have it in an object."""
    return {
        name: {KEY: payload} if isinstance(value, dict) and KEY in value else value
        for name, value in fields.items()
    }


def _text(answer: str) -> str:
    try:
        return str(json.loads(answer)["choices"][0]["text"])
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

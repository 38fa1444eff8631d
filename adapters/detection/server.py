"""The detector as a server: ``logitport detect --serve``."""

import logging
from collections.abc import Mapping

import msgspec
from anyio import CapacityLimiter, to_thread
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ...spec.base import spec_error
from ...spec.errors import SpecError
from .profiles import Profile
from .question import Question, TextTokenizer, cost, examine

logger = logging.getLogger(__name__)

MAX_BODY = 4 << 20
"""The bytes of a request's body."""

AT_ONCE = 4
"""The texts that are examined at the same time, beside as many small ones. Others wait."""

MAX_COST = 1 << 20
"""What an answer may cost, in tokens of the cheapest scheme: two seconds."""

SMALL = 1 << 14
"""What an answer costs that waits for no other than small ones."""


def make_app(
    profiles: Mapping[str, Profile],
    tokenizer: TextTokenizer | None = None,
    threshold: float = 0.01,
) -> Starlette:
    """Make an ASGI application: ``POST /detect``, ``GET /profiles`` and ``GET /health``.

    Args:
        profiles: the profiles to try. No answer has a key.
        tokenizer: the tokenizer of texts; without one, clients send token ids.
        threshold: the highest p-value of a mark, if a request has no other.

    Raises:
        ValueError: if a key is missing, or the threshold is not between 0 and 1.
    """
    examine(Question(token_ids=[]), profiles, tokenizer, threshold)
    limiters = CapacityLimiter(AT_ONCE), CapacityLimiter(AT_ONCE)

    def answer(question: Question) -> bytes:
        found, _ = examine(question, profiles, tokenizer, threshold)
        best = {"p_value": found.findings[0].p_value, "score": found.findings[0].score}
        return msgspec.json.encode(best | msgspec.structs.asdict(found))

    async def ask(request: Request) -> Response:
        try:
            question = msgspec.json.decode(await _body(request), type=Question)
            if (costs := cost(question, profiles)) > MAX_COST:
                field = "token_ids" if question.text is None else "text"
                what = (
                    f"Expected a text whose examination costs at most {MAX_COST:,}, got {costs:,}"
                )
                raise SpecError(f"{what}: send a part, or fewer profiles", field)
            limiter = limiters[costs <= SMALL]
            content = await to_thread.run_sync(answer, question, limiter=limiter)
        except SpecError as error:
            return _error(400, error)
        except msgspec.DecodeError as error:
            return _error(400, spec_error(error))
        except UnicodeDecodeError:
            return _error(400, SpecError("Expected JSON in UTF-8"))
        except ClientDisconnect:
            return Response(status_code=400)
        except ValueError as error:  # a key that was there at the start
            logger.error("logitport: %s", error)
            return _error(503, SpecError("A key is missing"))
        return Response(content, media_type="application/json")

    schemes = {name: profile.scheme for name, profile in profiles.items()}
    return Starlette(
        routes=[
            Route("/detect", ask, methods=["POST"]),
            Route("/profiles", lambda _: JSONResponse(schemes)),
            Route("/health", lambda _: JSONResponse({"status": "ok"})),
        ]
    )


async def _body(request: Request) -> bytes:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY:
            raise SpecError(f"Expected a body of at most {MAX_BODY:,} bytes")
    return bytes(body)


def _error(status: int, error: SpecError) -> Response:
    return JSONResponse({"error": {"message": error.message, "path": error.path}}, status)

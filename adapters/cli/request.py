"""What a server with a configuration would do with one request, without the server."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from ...spec import Payload, SpecError
from ..backend import Backend, backend
from ..draws import bind_draw
from ..gateway.exchange import Scope
from ..gateway.json_body import Fields
from ..gateway.middleware import SpecMiddleware
from ..policy import Policy
from .texts import model_tokenizer, vocabulary_size


def answer_to(file: str, policy: Policy | None, engine: str, model: str) -> Mapping[str, Any]:
    """Return the receipt of the request in a file, or what acts on one without specs.

    The engine's own checks of its own fields are not made, but for what a chain or a mark refuses.

    Args:
        file: the JSON body of a chat or completion.
        policy: the server's policy.
        engine: the name of the server's backend.
        model: the model's folder, or its name.

    Raises:
        SpecError: for a request that the server would refuse.
    """
    size, acting = vocabulary_size(model), policy or Policy()
    tokenizer = model_tokenizer(model)  # a backend does not keep it
    served = replace(backend(engine), policy=acting).for_tokenizer(tokenizer, size)
    text = Path(file).read_text(encoding="utf-8")
    try:
        fields: Any = json.loads(text)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise SpecError(f"Not JSON, {where}: {error.msg}") from None
    if not isinstance(fields, dict):
        raise SpecError("Expected the JSON object of a request")
    path = "/v1/chat/completions" if "messages" in fields else "/v1/completions"
    checked = _Server(served, size).check({"type": "http", "path": path}, text.encode())
    if checked.receipt is not None:
        return msgspec.to_builtins(checked.receipt)
    bind_draw(None, acting, fields)
    own = [spec.kind for spec in (*acting.guard, *acting.default)]
    mark = {"mark": acting.required} if acting.required else {}
    kinds = list(dict.fromkeys(own))
    return {"kinds": kinds, "default": bool(acting.default), **mark, "policy": acting.digest}


class _Server(SpecMiddleware):
    """The server's middleware, which admits payloads as the engine does."""

    def __init__(self, served: Backend, vocab_size: int) -> None:
        super().__init__(_no_application, served.name, is_server=True)
        self._served, self._size = served, vocab_size
        self._losing: tuple[str, ...] = ()

    def backend(self, scope: Scope) -> Backend:
        return self._served

    def check_payload(
        self, scope: Scope, fields: Fields, owner: Fields, payload: Any
    ) -> Payload | None:
        from ..admission import admit

        decoded, program = admit(self._served, payload, self._size)
        self._losing = program.may_lose
        bind_draw(program, self._served.policy, owner)
        return decoded

    def may_lose(self, scope: Scope, payload: str) -> tuple[str, ...]:
        return self._losing


async def _no_application(*_: Any) -> None:
    """Stand in for the application behind the middleware, which is not asked."""

"""Middleware for vLLM's own server, with access to the engine behind it."""

import logging
from contextlib import suppress
from typing import Any

from ...spec import Payload, SpecError, Stage
from .. import KEY, App, Backend, Fields, Scope, admit, inner
from .. import SpecMiddleware as NeutralMiddleware
from .admission import Admitting, admit_request, backend_of, why_no_efforts
from .engine_config import role_of
from .logs import show_logs

logger = logging.getLogger(__name__)


class SpecMiddleware(NeutralMiddleware):
    """Middleware that refuses bad specs on every route of vLLM's server, streamed or not.

    Start the server with ``--middleware logitport.adapters.vllm.SpecMiddleware``. It checks a
    payload against the model's vocabulary, the server's abilities and the request's own fields.
    ``LogitportProcessor.validate_params`` does the same, but after an answer may have begun.
    """

    def __init__(self, app: App) -> None:
        super().__init__(app, "vllm", is_server=True)
        show_logs()

    def start(self, scope: Scope) -> None:
        with suppress(ValueError):  # a wrong configuration is for the engine and requests to report
            policy = self.backend(scope).policy  # preloads it
            config = getattr(_state(scope), "vllm_config", None)
            if why := why_no_efforts(config, policy):
                logger.warning("logitport: %s", why)

    def backend(self, scope: Scope) -> Backend:
        config = getattr(_state(scope), "vllm_config", None)
        return super().backend(scope) if config is None else backend_of(config)

    def check_payload(
        self, scope: Scope, fields: Fields, owner: Fields, payload: Any
    ) -> Payload | None:
        if fields.get("use_beam_search"):
            raise SpecError.of_field(
                "vLLM's beam search chooses tokens without logits processors", KEY
            )
        state = _state(scope)
        client = getattr(state, "engine_client", None)
        tokenizer = getattr(getattr(client, "input_processor", None), "tokenizer", None)
        has_prompt_ids = fields.get("prompt_embeds") is None
        config = getattr(state, "vllm_config", None)
        admitting = Admitting(config, tokenizer, has_prompt_ids, share=0)
        return admit_request(admitting, _Params(fields, owner, payload), payload)

    def may_lose(self, scope: Scope, payload: str) -> tuple[str, ...]:
        config = getattr(_state(scope), "vllm_config", None)
        size = None if config is None else config.model_config.get_vocab_size()
        return admit(self.backend(scope), payload, size)[1].may_lose

    def stage(self, scope: Scope) -> Stage:
        config = getattr(_state(scope), "vllm_config", None)
        return Stage.AGGREGATED if config is None else role_of(config).stage


def _state(scope: Scope) -> Any:
    return getattr(scope.get("app"), "state", None)


class _Params:
    """The body of a request under the attribute names of ``SamplingParams``."""

    def __init__(self, fields: Fields, owner: Fields, payload: Any) -> None:
        self._fields = owner
        transfer = inner(fields, "kv_transfer_params") or inner(
            owner,
            "extra_args",
            "kv_transfer_params",  # of /inference/v1/generate
        )
        transfer_params = {"do_remote_decode": transfer and transfer.get("do_remote_decode")}
        self.extra_args = {KEY: payload, "kv_transfer_params": transfer_params}
        self.response_format = _grammar(fields, "response_format")
        self.text = _grammar(fields, "text", "format")  # of /v1/responses
        self.output_config = _grammar(fields, "output_config", "format")  # of /v1/messages
        self.tool_choice = _demanded_call(fields)

    def __getattr__(self, name: str) -> Any:
        return self._fields.get(name)


def _grammar(fields: Fields, *path: str) -> Any:
    """Return the kind of a reply's format, unless it is free."""
    kind = (inner(fields, *path) or {}).get("type")
    return None if kind == "text" else kind


def _demanded_call(fields: Fields) -> Any:
    """Return ``tool_choice`` if the reply has to be a call of a tool.

    vLLM then has a grammar of the tools' schemas (``ToolParser.adjust_request`` in
    ``vllm/tool_parsers/abstract_tool_parser.py``). Its value is text, or an object with a type.
    """
    choice = fields.get("tool_choice")
    if fields.get("tools") is None or choice is None:
        return None
    kind = choice.get("type", "function") if isinstance(choice, dict) else choice
    return None if kind in (None, "auto", "none") else kind

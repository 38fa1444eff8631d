"""Middleware for vLLM's own server, with access to the engine behind it."""

from collections.abc import Mapping
from typing import Any

from ...spec import SpecError, Stage
from .. import KEY, App, Fields, Scope
from .. import SpecMiddleware as NeutralMiddleware
from .admission import Admitting, admit_request
from .engine_config import role_of


class SpecMiddleware(NeutralMiddleware):
    """Middleware that refuses bad specs on every route of vLLM's server, streamed or not.

    Start the server with ``--middleware logitport.adapters.vllm.SpecMiddleware``. It checks a
    payload against the model's vocabulary, the server's abilities and the request's own fields.
    ``LogitportProcessor.validate_params`` does the same, but after an answer may have begun.
    """

    def __init__(self, app: App) -> None:
        super().__init__(app, "vllm")

    def check_payload(
        self, scope: Scope, fields: Fields, owner: Mapping[str, Any], payload: Any
    ) -> None:
        if fields.get("use_beam_search"):
            raise SpecError("vLLM's beam search chooses tokens without logits processors", KEY)
        state = _state(scope)
        client = getattr(state, "engine_client", None)
        tokenizer = getattr(getattr(client, "input_processor", None), "tokenizer", None)
        has_prompt_ids = fields.get("prompt_embeds") is None
        config = getattr(state, "vllm_config", None)
        admitting = Admitting(config, tokenizer, has_prompt_ids, share=0)
        admit_request(admitting, _Params(fields, owner, payload), payload)

    def stage(self, scope: Scope) -> Stage:
        config = getattr(_state(scope), "vllm_config", None)
        return Stage.AGGREGATED if config is None else role_of(config).stage


def _state(scope: Scope) -> Any:
    return getattr(scope.get("app"), "state", None)


class _Params:
    """The body of a request under the attribute names of ``SamplingParams``."""

    def __init__(self, fields: Fields, owner: Mapping[str, Any], payload: Any) -> None:
        self._fields = owner
        transfer = fields.get("kv_transfer_params")
        self.extra_args = {KEY: payload, "kv_transfer_params": transfer}

    @property
    def structured_outputs(self) -> Any:
        """The field that asks for a grammar, under either name."""
        own = self._fields.get("structured_outputs")
        asked = self._fields.get("response_format")
        is_text = not isinstance(asked, Mapping) or asked.get("type") == "text"
        return own if is_text else asked

    def __getattr__(self, name: str) -> Any:
        return self._fields.get(name)

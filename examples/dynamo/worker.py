"""A Dynamo worker that runs vLLM and takes specs: ``python -m examples.dynamo.worker``.

Dynamo 1.6.1 has no ``LLMEngine`` for vLLM; this is one, with logitport's mixin. It takes the
arguments of ``python -m dynamo.vllm``, and uses the arguments of Dynamo's runtime, of vLLM, and
``--disaggregation-mode``. It returns one answer in text only: it has no images, adapters or log
probabilities, and ignores the defaults of a model's generation config.
"""

# pyright: reportMissingImports=false
# Dynamo and its version of vLLM have a separate environment: make .venv-dynamo/ready

from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from typing import Any, Self

from dynamo.common.backend.disagg import enforce_prefill_max_tokens, require_prefill_result
from dynamo.common.backend.engine import (
    EngineConfig,
    GenerateChunk,
    GenerateRequest,
    LLMEngine,
    LlmRegistration,
)
from dynamo.common.backend.metrics import register_engine_registry
from dynamo.common.backend.run import run
from dynamo.common.backend.worker import WorkerConfig
from dynamo.common.constants import DisaggregationMode
from dynamo.common.utils.engine_response import normalize_finish_reason
from dynamo.common.utils.token_ids import normalize_request_token_ids
from dynamo.llm import ModelInput
from dynamo.llm.exceptions import InvalidArgument
from dynamo.vllm.args import Config, parse_args_with_model_fetch
from dynamo.vllm.kv_connector_protocols import make_kv_connector_protocol
from logitport.adapters.dynamo import LogitsProcessors
from logitport.adapters.vllm import BACKEND
from vllm import SamplingParams
from vllm.exceptions import VLLMClientError
from vllm.inputs import TokensPrompt
from vllm.outputs import RequestOutput
from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams
from vllm.v1.engine.async_llm import AsyncLLM


class VllmEngine(LogitsProcessors, LLMEngine):
    """vLLM as a Dynamo engine: aggregated, or for prefill or decode alone."""

    def __init__(self, config: Config) -> None:
        self.disaggregation_mode: DisaggregationMode = config.disaggregation_mode
        self._config = config
        self._vllm: AsyncLLM | None = None

    @classmethod
    async def from_args(cls, argv: list[str] | None = None) -> tuple[Self, WorkerConfig]:
        config = await parse_args_with_model_fetch(argv)
        worker = WorkerConfig.from_runtime_config(
            config,
            model_name=config.model,
            served_model_name=config.served_model_name,
            model_input=ModelInput.Tokens,
        )
        return cls(config), worker

    async def start(self, worker_id: int) -> EngineConfig:
        self.declare_stage()
        BACKEND.preload()  # while vLLM starts: the first request with specs need not wait
        self._vllm = AsyncLLM.from_engine_args(self._config.engine_args)
        config = self._vllm.vllm_config
        return EngineConfig(
            model=self._config.model,
            served_model_name=self._config.served_model_name,
            llm=LlmRegistration(
                context_length=config.model_config.max_model_len,
                kv_cache_block_size=config.cache_config.block_size,
                total_kv_blocks=config.cache_config.num_gpu_blocks,
                max_num_seqs=config.scheduler_config.max_num_seqs,
                max_num_batched_tokens=config.scheduler_config.max_num_batched_tokens,
            ),
        )

    async def generate(
        self, request: GenerateRequest, context: Any
    ) -> AsyncGenerator[GenerateChunk, None]:
        assert self._vllm is not None
        config = self._vllm.vllm_config
        normalize_request_token_ids(request)
        mode = self.disaggregation_mode
        if mode is DisaggregationMode.PREFILL:
            enforce_prefill_max_tokens(request)
        with client_errors():
            params = sampling_params(request, config.model_config.max_model_len)
        connector = None
        if mode is DisaggregationMode.PREFILL:
            connector = make_kv_connector_protocol(config)
            set_transfer(params, connector.prefill_request_kv_transfer_params())
        elif mode is DisaggregationMode.DECODE:
            prefilled = require_prefill_result(request, mode)
            set_transfer(params, prefilled["disaggregated_params"]["kv_transfer_params"])
        await self.activate_logits_processors(params, request)
        prompt = TokensPrompt(prompt_token_ids=request["token_ids"])
        generated = 0
        with client_errors():
            async for output in self._vllm.generate(prompt, params, context.id()):
                (answer,) = output.outputs
                generated += len(answer.token_ids)
                chunk = GenerateChunk(token_ids=list(answer.token_ids), index=answer.index)
                if answer.finish_reason:
                    chunk["finish_reason"] = normalize_finish_reason(answer.finish_reason)
                    chunk["completion_usage"] = usage(output, generated)
                    if connector is not None:
                        to_decode = connector.decode_request_kv_transfer_params(output)
                        chunk["disaggregated_params"] = {"kv_transfer_params": to_decode}
                yield chunk

    async def register_prometheus(self, metrics: Any) -> None:
        from prometheus_client import REGISTRY

        register_engine_registry(metrics, REGISTRY, prefix_filters=["vllm:", "logitport_"])

    async def abort(self, context: Any) -> None:
        if self._vllm is not None:
            await self._vllm.abort(context.id())

    async def cleanup(self) -> None:
        vllm, self._vllm = self._vllm, None
        if vllm is not None:
            vllm.shutdown()


def sampling_params(request: GenerateRequest, max_model_len: int) -> SamplingParams:
    """Make vLLM's parameters of a request.

    Dynamo's frontend has the tokenizer: it detokenizes the output and looks for stop strings.

    Raises:
        ValueError: for more than one answer, because Dynamo ends an engine's stream with the
            first answer that ends; or from vLLM, for a bad parameter.
    """
    asked = dict(request.get("sampling_options") or {})
    if (asked.get("n") or 1) > 1:
        raise ValueError(f"n={asked['n']}: this worker gives one answer to a request")
    stop = request.get("stop_conditions") or {}
    fields = {
        name: asked[name]
        for name in SamplingParams.__struct_fields__
        if asked.get(name) is not None
    }
    if grammar := asked.get("guided_decoding"):
        given = {name: value for name, value in grammar.items() if value is not None}
        given.pop("backend", None)
        fields["structured_outputs"] = StructuredOutputsParams(**given)
    stop_token_ids = {
        token_id
        for name in ("stop_token_ids", "stop_token_ids_visible", "stop_token_ids_hidden")
        for token_id in stop.get(name) or ()
    }
    max_tokens = stop.get("max_tokens") or max(1, max_model_len - len(request["token_ids"]))
    return SamplingParams(
        **fields,
        max_tokens=max_tokens,
        min_tokens=min(stop.get("min_tokens") or 0, max_tokens),  # prefill makes one token
        ignore_eos=bool(stop.get("ignore_eos")),
        stop_token_ids=sorted(stop_token_ids),
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
    )


def set_transfer(params: SamplingParams, kv_transfer_params: dict[str, Any]) -> None:
    """Set the source or the target of a prompt's KV cache."""
    params.extra_args = {**(params.extra_args or {}), "kv_transfer_params": kv_transfer_params}


def usage(output: RequestOutput, generated: int) -> dict[str, Any]:
    """Count the tokens in the format of OpenAI's API."""
    prompt = len(output.prompt_token_ids or ())
    return {
        "prompt_tokens": prompt,
        "completion_tokens": generated,
        "total_tokens": prompt + generated,
        "prompt_tokens_details": {"cached_tokens": output.num_cached_tokens or 0},
    }


@contextmanager
def client_errors() -> Iterator[None]:
    """Answer vLLM's errors about a request with HTTP 400 and the message.

    For a plain ``ValueError``, Dynamo's frontend would pass on the status alone.
    """
    try:
        yield
    except (VLLMClientError, ValueError) as error:
        raise InvalidArgument(str(error)) from error


if __name__ == "__main__":
    run(VllmEngine)

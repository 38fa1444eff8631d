"""One function for each engine, which runs requests greedily, in float32 if there is a choice."""

import os
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

from .._support import v2_on_cpu
from .._support.smollm2 import gguf, prepare
from .requests import MAX_TOKENS, PROFILES, SAMPLING, Request

Outputs = list[list[int]]


def vllm(requests: Sequence[Request]) -> Outputs:
    """Run requests on vLLM, under the chosen model runner."""
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_LOGGING_LEVEL": "ERROR"}
    from logitport.adapters.vllm import attach
    from vllm import LLM, SamplingParams

    llm = LLM(
        str(prepare()),
        dtype="float32",
        enforce_eager=True,
        max_model_len=512,
        kv_cache_memory_bytes=256 << 20,
        logits_processors=["logitport.adapters.vllm:LogitportProcessor"],
    )
    prompts = [{"prompt_token_ids": request.prompt_ids} for request in requests]
    params = [
        attach(SamplingParams(temperature=each.temperature, max_tokens=MAX_TOKENS), each.specs)
        for each in requests
    ]
    outputs = llm.generate(prompts, params, use_tqdm=False)  # pyright: ignore
    return [list(output.outputs[0].token_ids) for output in outputs]


def sglang(requests: Sequence[Request]) -> Outputs:
    """Run requests on SGLang."""
    from logitport.adapters.sglang import attach
    from sglang.srt.entrypoints.engine import Engine

    from .._support.sglang_server import OPTIONS

    length = {"max_new_tokens": MAX_TOKENS}
    engine = Engine(model_path=str(prepare()), **OPTIONS)
    try:
        asked = [
            attach({"sampling_params": {"temperature": each.temperature, **length}}, each.specs)
            for each in requests
        ]
        results: Any = engine.generate(
            input_ids=[request.prompt_ids for request in requests],
            sampling_params=[each["sampling_params"] for each in asked],
            custom_logit_processor=[each["custom_logit_processor"] for each in asked],
        )
        return [result["output_ids"] for result in results]
    finally:
        engine.shutdown()


def transformers(requests: Sequence[Request]) -> Outputs:
    """Run requests with Hugging Face's ``generate``."""
    import torch
    from logitport.adapters.transformers import LogitportProcessor
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model: Any = AutoModelForCausalLM.from_pretrained(prepare(), dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(prepare(), padding_side="left")
    prompts = [{"input_ids": request.prompt_ids} for request in requests]
    inputs = tokenizer.pad(prompts, return_tensors="pt")
    specs = [request.specs for request in requests]
    drawing: Any = {"profiles": PROFILES, "sampling": SAMPLING}
    processor = LogitportProcessor(model, specs, tokenizer=tokenizer, **inputs, **drawing)
    output = model.generate(
        **inputs, logits_processor=[processor], do_sample=False, max_new_tokens=MAX_TOKENS
    )
    return output[:, inputs["input_ids"].shape[1] :].tolist()


def llama_cpp(requests: Sequence[Request]) -> Outputs:
    """Run requests on llama.cpp, with the 4-bit weights of the GGUF file."""
    from llama_cpp import Llama, LogitsProcessorList
    from logitport.adapters.llama_cpp import LogitportProcessor

    llm = Llama(str(gguf()), n_ctx=512, verbose=False)
    outputs: Outputs = []
    for each in requests:
        drawing: Any = {"profiles": PROFILES, "sampling": SAMPLING}
        acting = [LogitportProcessor(llm, each.specs, **drawing)] if each.specs else []
        processors = LogitsProcessorList(acting)
        tokens = llm.generate(each.prompt_ids, temp=each.temperature, logits_processor=processors)
        outputs.append(list(islice(tokens, MAX_TOKENS)))
    return outputs


def mlx(requests: Sequence[Request]) -> Outputs:
    """Run requests on MLX."""
    import mlx.core as mx
    from logitport.adapters.mlx import LogitportProcessor
    from mlx_lm import load, stream_generate

    model, tokenizer = load(str(prepare()))[:2]
    model.set_dtype(mx.float32)
    outputs: Outputs = []
    for request in requests:
        processors = []
        if request.specs:
            drawing: Any = {"profiles": PROFILES, "sampling": SAMPLING}
            processors.append(LogitportProcessor(model, tokenizer, request.specs, **drawing))
        stream = stream_generate(
            model,
            tokenizer,
            request.prompt_ids,
            max_tokens=MAX_TOKENS,
            logits_processors=processors,
        )
        outputs.append([response.token for response in stream])
    return outputs


def choose_runner(engine: str) -> None:
    """Choose vLLM's model runner, before anything imports Triton."""
    os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "1" if engine == "vllm-v2" else "0"
    if engine == "vllm-v2" and v2_on_cpu.is_needed():
        v2_on_cpu.install()


ENGINES: dict[str, Callable[[Sequence[Request]], Outputs]] = {
    "vllm": vllm,
    "vllm-v2": vllm,
    "sglang": sglang,
    "transformers": transformers,
    "llama.cpp": llama_cpp,
    "mlx": mlx,
}

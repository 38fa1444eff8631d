"""SGLang's engine and its OpenAI server, configured small and quick to start."""

import shutil
from typing import Any

from .server import Server

# A front end that does not answer within 10 seconds is killed and started again, for ever where the
# imports alone take longer.
ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "SGLANG_UVICORN_WORKER_HEALTHCHECK_TIMEOUT": "120"}

OPTIONS: dict[str, Any] = {
    "enable_custom_logit_processor": True,
    "dtype": "float32",
    "context_length": 1024,
    "max_total_tokens": 4096,
    "max_running_requests": 8,
}
"""Arguments of ``Engine``, with which it calls our processor and no other."""

if shutil.which("nvidia-smi") is None:
    OPTIONS |= {
        "device": "cpu",
        "attention_backend": "torch_native",
        "sampling_backend": "pytorch",
        "cuda_graph_backend_decode": "disabled",
        "cuda_graph_backend_prefill": "disabled",
    }
    # With several threads, a step has hundreds of barriers at which threads spin until the last one
    # arrives. Where other programs use the cores too, it took up to 100 times as long.
    ENVIRONMENT["OMP_NUM_THREADS"] = "1"


class SglangServer(Server):
    """SGLang's OpenAI server, with ``OPTIONS`` on the command line."""

    engine = "SGLang"
    arguments = (
        "sglang.launch_server",
        "--skip-server-warmup",
        *(
            argument
            for name, value in OPTIONS.items()
            for argument in (f"--{name.replace('_', '-')}", str(value))
            if argument != "True"
        ),
    )
    model_argument = "--model-path"
    environment = ENVIRONMENT

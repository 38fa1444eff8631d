"""SGLang's engine and its OpenAI server, configured small and quick to start."""

import shutil
from typing import Any

from .server import Server

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
    environment = {"HF_HUB_OFFLINE": "1"}  # noqa: RUF012

"""SGLang's OpenAI server."""

import shutil

from .server import Server

ON_CPU = (
    *("--device", "cpu", "--attention-backend", "torch_native", "--sampling-backend", "pytorch"),
    *("--cuda-graph-backend-decode", "disabled", "--cuda-graph-backend-prefill", "disabled"),
)


class SglangServer(Server):
    """Small, and quick to start; it calls our processor, and no other."""

    engine = "SGLang"
    arguments = (
        "sglang.launch_server",
        "--enable-custom-logit-processor",
        *("--context-length", "1024", "--max-total-tokens", "4096", "--max-running-requests", "8"),
        *("--dtype", "float32", "--skip-server-warmup"),
        *(() if shutil.which("nvidia-smi") else ON_CPU),
    )
    model_argument = "--model-path"
    environment = {"HF_HUB_OFFLINE": "1"}  # noqa: RUF012

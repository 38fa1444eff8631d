"""vLLM's OpenAI server."""

from .server import Server

LOGITPORT = (
    *("--logits-processors", "logitport.adapters.vllm:LogitportProcessor"),
    *("--middleware", "logitport.adapters.vllm.SpecMiddleware"),
)
"""The arguments with which vLLM obeys specs or refuses them, with a receipt."""


class VllmServer(Server):
    """A vLLM server that is small and quick to start."""

    engine = "vLLM"
    arguments = ("vllm.entrypoints.openai.api_server", "--max-model-len", "1024", "--enforce-eager")
    environment = {  # noqa: RUF012
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB; read by CPU builds alone
    }

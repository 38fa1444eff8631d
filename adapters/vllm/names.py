"""The names under which vLLM finds logitport."""

GROUP = "vllm.logits_processors"
"""The entry-point group from which vLLM loads processors."""

PROCESSOR = "logitport.adapters.vllm:LogitportProcessor"
"""The value of ``--logits-processors``."""

MIDDLEWARE = "logitport.adapters.vllm.SpecMiddleware"
"""The value of ``--middleware``."""

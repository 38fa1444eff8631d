"""The names under which vLLM finds logitport, and of Dynamo's worker around vLLM."""

GROUP = "vllm.logits_processors"
"""The entry-point group from which vLLM loads processors."""

PROCESSOR = "logitport.adapters.vllm:LogitportProcessor"
"""The value of ``--logits-processors``."""

MIDDLEWARE = "logitport.adapters.vllm.SpecMiddleware"
"""The value of ``--middleware``."""

DYNAMO_HANDLERS = "dynamo.vllm.handlers"
"""The module with which Dynamo's worker passes requests to vLLM."""

TAKES_SPECS = "logitport_takes_specs"
"""What the plugin ``logitport.adapters.dynamo_worker`` sets in this module."""

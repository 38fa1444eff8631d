"""The names under which vLLM finds logitport, and of Dynamo's worker around vLLM."""

GROUP = "vllm.logits_processors"
"""The entry-point group from which vLLM loads processors."""

PROCESSOR = "logitport.adapters.vllm:LogitportProcessor"
"""The value of ``--logits-processors``."""

MIDDLEWARE = "logitport.adapters.vllm.SpecMiddleware"
"""The value of ``--middleware``."""

ACTING = "logitport_acting"
"""The key in ``extra_args`` by which admission passes to the workers what acts on a request, where
the policy may change: the payload with what the policy fills in, and the guard's. A client cannot
set it: it is a misspelt ``KEY``."""

DYNAMO_HANDLERS = "dynamo.vllm.handlers"
"""The module with which Dynamo's worker passes requests to vLLM."""

TAKES_SPECS = "logitport_takes_specs"
"""What the plugin ``logitport.adapters.dynamo_worker`` sets in this module."""

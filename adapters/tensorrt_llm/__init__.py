"""TensorRT-LLM: specs for the requests of its ``LLM``, in its PyTorch backend.

::

    llm = LLM(model, disable_overlap_scheduler=True)
    params = attach(SamplingParams(), spec, disable_overlap_scheduler=True)
    llm.generate(prompt, params)

**It has not run on the engine**, which needs a GPU: it follows the engine's source
(``tensorrt_llm/sampling_params.py``, ``tensorrt_llm/_torch/pyexecutor/``, autumn 2026), and is
tested with a caller that does the same.

- *Tokens.* The engine passes prompt and output together, for each beam. The first call of a request
  shows how long its prompt is: each chunk comes with the whole prompt
  (``DecoderRunner._execute_logit_post_processors``), on a decode worker followed by the token that
  was handed over (``_prepare_disagg_gen_transmission_complete`` in ``py_executor.py``).
- *The overlap scheduler*, on by default, calls processors before the newest token is known
  (``_executor_loop_overlap`` in ``py_executor.py``). ``attach`` then refuses specs that depend on
  the output. Allowed and banned tokens and biases are exact with it, too.
- *Workers* get a processor by pickle, or by a deep copy for each of ``n`` outputs. Our pickle has
  text, numbers, and the class ``logitport.adapters.tensorrt_llm.processor.LogitportProcessor``, for
  deployments that read only approved classes.
- *The request's own fields* (``min_tokens``, ``bad``, ``embedding_bias``, a grammar) come after the
  processors. ``attach`` refuses specs that certainly contradict them, as far as this is known
  before the engine has a tokenizer.
- *Speculative decoding* excludes processors (``docs/source/features/feature-combination-matrix``),
  and ``attach`` cannot see whether it is on. The same table excludes disaggregated serving, but the
  engine's source calls processors there.
- *Eviction* (``capacity_scheduler_policy=MAX_UTILIZATION``): the engine calls no processor for the
  token with which an evicted request goes on. Specs act again after this token.
- *Servers.* ``trtllm-serve`` takes no processors from its clients, so there is no second gate.
"""

from typing import TYPE_CHECKING

from .. import lazy
from .backend import BACKEND

if TYPE_CHECKING:
    from .params import attach
    from .processor import LogitportProcessor

__all__ = ["BACKEND", "LogitportProcessor", "attach"]

# These modules need torch.
__getattr__ = lazy(__name__, attach=".params", LogitportProcessor=".processor")

"""TensorRT-LLM: specs for the requests of its ``LLM``, in its PyTorch backend.

::

    llm = LLM(model, disable_overlap_scheduler=True)
    params = attach(SamplingParams(), spec, disable_overlap_scheduler=True)
    llm.generate(prompt, params)

**It has not run on the engine**, which needs a GPU: it is written from the engine's source
(``tensorrt_llm/sampling_params.py``, ``tensorrt_llm/_torch/pyexecutor/``, autumn 2026), and tested
with a caller that does what is written there.

- *Tokens.* The engine shows a processor the tokens of prompt and output together, for each beam. So
  the first call of a request says how long its prompt is: the engine calls with the whole prompt
  at each of its chunks (``DecoderRunner._execute_logit_post_processors``), and on a decode worker
  with the token that was handed over behind it (``_prepare_disagg_gen_transmission_complete`` in
  ``py_executor.py``). What acts on a beam is a function of its tokens; calls are not counted.
- *The overlap scheduler*, on by default, calls processors before the newest token is known
  (``_executor_loop_overlap`` in ``py_executor.py``), and the first two steps of an output look like
  two chunks of a prompt. ``attach`` refuses what depends on the output, unless it is told that the
  scheduler is off. Allowed and banned tokens and biases are exact with it, too.
- *Workers* get a processor by pickle, or by a deep copy for each of ``n`` outputs. A pickle of ours
  is the class ``logitport.adapters.tensorrt_llm.processor.LogitportProcessor`` with text and
  numbers, for a deployment that reads pickles of approved classes alone.
- *The request's own fields* (``min_tokens``, ``bad``, ``embedding_bias``, a grammar) come after the
  processors and have the last word. ``attach`` refuses what is certain to contradict specs, as far
  as it is known before the engine has a tokenizer.
- *Speculative decoding* and the engine's processors do not go together, says its
  ``docs/source/features/feature-combination-matrix.md``; nothing here can see whether it is on. The
  same table says so of disaggregated serving, whose source calls processors all the same.
- *Eviction* (``capacity_scheduler_policy=MAX_UTILIZATION``): the engine calls no processor for the
  token with which an evicted request goes on; specs cannot shape that one, and go on after it.
- *Servers.* ``trtllm-serve`` takes no processors from its clients: whoever calls ``attach`` is in
  the engine's own front end, and knows the stage. There is no second gate.
"""

from typing import TYPE_CHECKING

from .. import lazy
from .backend import BACKEND

if TYPE_CHECKING:
    from .batched_processor import LogitportBatchedProcessor
    from .params import attach
    from .processor import LogitportProcessor

__all__ = ["BACKEND", "LogitportBatchedProcessor", "LogitportProcessor", "attach"]

# What needs torch, as the engine does.
__getattr__ = lazy(
    __name__,
    attach=".params",
    LogitportProcessor=".processor",
    LogitportBatchedProcessor=".batched_processor",
)

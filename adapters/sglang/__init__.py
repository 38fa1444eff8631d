"""SGLang: specs in ``custom_params``, realized by one processor for all requests of a worker.

An SGLang that has logitport installed beside it finds it by itself (entry-point group
``sglang.srt.plugins``); what is left to do is to start it with ``--enable-custom-logit-processor``.
From then on it admits no processor of anybody else's, see ``plugin``.

In process::

    request = {"prompt": "Say something.", "sampling_params": {"max_new_tokens": 8}}
    engine.generate(**attach(request, ForcedTokenSequenceSpec((19556, 905))))

Over HTTP, ``logitport.adapters.backend.extra_body("sglang", specs)`` is what an OpenAI client
sends besides.
"""

from .. import lazy
from .backend import BACKEND, KEY, PROCESSOR
from .params import attach

__all__ = ["BACKEND", "KEY", "PROCESSOR", "attach"]

__getattr__ = lazy(__name__)

"""SGLang: specs in ``custom_params``, realized by one processor for all requests of a worker.

SGLang finds an installed logitport in the entry-point group ``sglang.srt.plugins``; start it with
``--enable-custom-logit-processor``. It then admits no other processors, see ``plugin``.

In process::

    request = {"prompt": "Say something.", "sampling_params": {"max_new_tokens": 8}}
    engine.generate(**attach(request, ForcedTokenSequenceSpec((19556, 905))))

Over HTTP, an OpenAI client sends ``extra_body("sglang", specs)`` of ``logitport.adapters``.
"""

from .. import lazy
from .backend import BACKEND, KEY, PROCESSOR
from .params import attach

__all__ = ["BACKEND", "KEY", "PROCESSOR", "attach"]

__getattr__ = lazy(__name__)

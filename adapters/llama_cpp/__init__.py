"""llama.cpp through llama-cpp-python: specs for one completion, in one process.

::

    llm = Llama("model.gguf")
    llm.create_chat_completion(messages, **arguments(llm, specs))

or, for the kinds that llama.cpp does not do by itself::

    processors = LogitsProcessorList([LogitportProcessor(llm, specs)])
    llm.create_completion(prompt, logits_processor=processors)

llama.cpp calls processors first, whatever the temperature; penalties, the grammar and the other
samplers follow. ``ctypes`` prints what a processor raises, and goes on. With ``logit_bias=``,
llama-cpp-python 0.3.36 loses the processors of an ordinary ``LogitsProcessorList``, but not those
of ``arguments``. It adds the bias after them, so a bias of minus infinity rules out a forced token.
"""

from typing import TYPE_CHECKING

from .. import lazy
from .backend import BACKEND

if TYPE_CHECKING:
    from .native import arguments
    from .processor import LogitportProcessor

__all__ = ["BACKEND", "LogitportProcessor", "arguments"]

__getattr__ = lazy(__name__, LogitportProcessor=".processor", arguments=".native")

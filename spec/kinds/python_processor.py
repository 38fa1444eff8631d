"""A live Python callable, for engines that run in the caller's own process."""

from collections.abc import Callable
from typing import Any, Self

from ..base import LogitsProcessorSpec
from ..errors import SpecError


class PythonProcessorSpec(LogitsProcessorSpec, frozen=True, tag="python"):
    """A factory of a live logits processor, called once per request.

    The encoder refuses this spec, because no code goes over the wire. It is the same as Dynamo's
    ``PythonProcessorSpec`` (``dynamo/common/backend/engine.py``).

    The processor is called before each output token, with two arguments or with three::

        processor(output_token_ids, logits)
        processor(prompt_token_ids, output_token_ids, logits)

    The token ids are lists of integers; ``logits`` is the request's row, a floating-point tensor
    ``[vocab_size]`` on the engine's device. The processor edits it in place and returns ``None``
    or ``logits``, or it returns a new tensor of the same shape, which replaces the row. These are
    the two forms of vLLM's per-request processors (``AdapterLogitsProcessor``). A processor that
    raises, or returns anything else, ends its own request and no other.

    Args:
        factory: a callable without arguments that returns the request's own processor. A request
            may be resumed with a new processor, so a processor should keep no state that does not
            follow from the token ids.

    Raises:
        SpecError: if ``factory`` is not callable.
    """

    factory: Callable[[], Any]

    def __post_init__(self) -> None:
        if not callable(self.factory):
            raise SpecError(f"Expected a callable, got {self.factory!r}", "factory")

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return this spec: vLLM copies each request's parameters, but live objects must stay."""
        return self

    @property
    def narrows(self) -> bool:
        return True

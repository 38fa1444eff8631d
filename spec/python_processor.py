"""A live Python callable, for engines that run in the caller's own process."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self

from .base import LogitsProcessorSpec
from .errors import SpecError


class PythonProcessorSpec(LogitsProcessorSpec, frozen=True, tag="python"):
    """A factory of a live logits processor, called once per request.

    It never travels: the encoder refuses it, since no code goes over the wire. The same as
    Dynamo's ``PythonProcessorSpec`` (``dynamo/common/backend/engine.py``).

    The processor is called before each output token, with two arguments or with three::

        processor(output_token_ids, logits)
        processor(prompt_token_ids, output_token_ids, logits)

    The token ids are lists of integers; ``logits`` is the request's row, a floating-point tensor
    ``[vocab_size]`` on the engine's device. It is edited in place (then ``None`` or ``logits``
    is returned), or a new tensor of the same shape is returned, which takes its place. These are
    the two forms of vLLM's per-request processors (``AdapterLogitsProcessor``). A processor that
    raises, or returns anything else, ends its own request and no other.

    Args:
        factory: called without arguments, returns the request's own processor. Since a request
            may be resumed with a new one, a processor should keep nothing that the token ids
            do not say.

    Raises:
        SpecError: if ``factory`` is not callable.
    """

    factory: Callable[[], Any]

    def __post_init__(self) -> None:
        if not callable(self.factory):
            raise SpecError(f"Expected a callable, got {self.factory!r}", "$.factory")

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """The same: vLLM copies the parameters of each request, and what they hold is live."""
        return self

    def token_fields(self) -> Iterator[tuple[str, Sequence[int]]]:
        return iter(())

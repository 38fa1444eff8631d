"""A live Python callable, for engines that run in the caller's own process."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from .base import LogitsProcessorSpec
from .errors import SpecError


class PythonProcessorSpec(LogitsProcessorSpec, frozen=True, tag="python"):
    """A factory of a live logits processor, called once per request.

    It never travels: the encoder refuses it, since no code goes over the wire. The same as
    Dynamo's ``PythonProcessorSpec`` (``dynamo/common/backend/engine.py``).

    Args:
        factory: called without arguments, returns the request's own processor.

    Raises:
        SpecError: if ``factory`` is not callable.
    """

    factory: Callable[[], Any]

    def __post_init__(self) -> None:
        if not callable(self.factory):
            raise SpecError(f"Expected a callable, got {self.factory!r}", "$.factory")

    def token_fields(self) -> Iterator[tuple[str, Sequence[int]]]:
        return iter(())

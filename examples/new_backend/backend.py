"""The backend for the toy engine. This is all that is needed for the kinds that are not native."""

from collections.abc import Sequence
from functools import partial
from importlib.util import find_spec
from typing import Any

from logitport.adapters import KEY, REALIZABLE, Attachment, Backend, program_of
from logitport.adapters.core import Realizer
from logitport.spec import LogitsProcessorSpec, PythonProcessorSpec, Stage

from .engine import Running

HAS_TORCH = find_spec("torch") is not None  # whose tensors a request's own code takes

BACKEND = Backend("toy", realizes=REALIZABLE if HAS_TORCH else REALIZABLE - {PythonProcessorSpec})

ATTACHMENT = Attachment(BACKEND)


def attach(
    extra: dict[str, Any],
    specs: LogitsProcessorSpec | Sequence[LogitsProcessorSpec],
    *,
    stage: Stage = Stage.AGGREGATED,
    generation_only: bool = True,
    continued: int = 0,
) -> dict[str, Any]:
    """Return a client's extra fields for a worker in ``stage``, with ``specs`` in them.

    Raises:
        SpecError: if the engine does not support the specs.
    """
    with ATTACHMENT.attaching(extra, specs, stage, generation_only, continued) as attached:
        return attached.put_into(extra)


class LogitportEditor:
    """The engine's editor, which reports each request's row and tokens to the realizer.

    Args:
        vocab_size: the number of the engine's tokens.
        eos_token_id: the token that ends a request whose specs fail.
        stage: the engine's task in its deployment.
    """

    def __init__(self, vocab_size: int, eos_token_id: int, stage: Stage = Stage.AGGREGATED) -> None:
        self._program_of = partial(program_of, BACKEND, vocab_size, stage)
        self._realizer, self._eos = Realizer(vocab_size, self._program_of), eos_token_id

    def admit(self, extra: dict[str, Any]) -> None:
        """Refuse a request whose specs cannot be realized, with a ``SpecError``."""
        self._program_of(extra.get(KEY))

    def enter(self, row: int, running: Running) -> None:
        """Put a request into a row. The engine appends to ``output_ids``, which may have tokens."""
        payload, prompt_ids = running.extra.get(KEY), running.prompt_ids
        self._realizer.enter(row, payload, prompt_ids, running.output_ids, self._eos)

    def leave(self, row: int) -> None:
        self._realizer.remove(row)

    def move(self, source: int, destination: int) -> None:
        self._realizer.move(source, destination)

    def edit(self, logits: Any) -> None:
        self._realizer.apply(logits)

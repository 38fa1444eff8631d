"""The back end for the toy engine: all that is needed, for every kind that is no engine's own."""

from collections.abc import Sequence
from typing import Any

import torch
from logitport.adapters import REALIZABLE, BackEnd, payload_for
from logitport.adapters.core import Program, Realizer, admitted
from logitport.spec import LogitsProcessorSpec, Stage

from .engine import Running

KEY = "logitport"

BACK_END = BackEnd(
    "toy",
    realizes=REALIZABLE,
)


def attach(
    extra: dict[str, Any],
    specs: LogitsProcessorSpec | Sequence[LogitsProcessorSpec],
    *,
    stage: Stage = Stage.AGGREGATED,
    generation_only: bool = True,
) -> dict[str, Any]:
    """What a client sends along to a worker in ``stage``, with ``specs`` in it.

    Raises:
        SpecError: if the engine cannot do them.
    """
    payload = payload_for(BACK_END, specs, stage, generation_only)
    others = {name: value for name, value in extra.items() if name != KEY}
    return others if payload is None else others | {KEY: payload}


class LogitportEditor:
    """Acts in the engine: says which request is in which row, and where its tokens are.

    Args:
        vocab_size: number of the engine's tokens.
        eos_token_id: ends a request whose specs fail.
        stage: what the engine does in its deployment.
    """

    def __init__(self, vocab_size: int, eos_token_id: int, stage: Stage = Stage.AGGREGATED) -> None:
        self._vocab_size, self._eos, self._stage = vocab_size, eos_token_id, stage
        self._realizer = Realizer(vocab_size)

    def admit(self, extra: dict[str, Any]) -> None:
        """Refuse a request whose specs cannot be realized, with a ``SpecError``."""
        self._program(extra)

    def _program(self, extra: dict[str, Any]) -> Program | None:
        if KEY not in extra:
            return None
        payload, program = admitted(BACK_END, extra[KEY], self._vocab_size)
        return program if payload.acts_on(self._stage) else None

    def enter(self, row: int, running: Running) -> None:
        """The engine appends to ``output_ids``; they may not be empty already."""
        try:
            program = self._program(running.extra)
        except Exception as error:  # a plugin that this worker lacks, for example
            self._realizer.fail(row, error, running.output_ids, self._eos)
            return
        if program is not None:
            self._realizer.add(row, program, running.prompt_ids, running.output_ids, self._eos)

    def leave(self, row: int) -> None:
        self._realizer.remove(row)

    def move(self, source: int, destination: int) -> None:
        self._realizer.move(source, destination)

    def edit(self, logits: torch.Tensor) -> None:
        self._realizer.apply(logits)

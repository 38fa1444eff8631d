"""logitport as vLLM's V1 runner drives it, and the parts of a step alone."""

from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from logitport.adapters.core import Program, Realizer, compile_specs, editor_for
from logitport.adapters.core.automaton import Edit
from logitport.adapters.vllm import KEY, LogitportProcessor
from logitport.spec import encode
from vllm import SamplingParams
from vllm.v1.sample.logits_processor import BatchUpdate

from .timing import Begin
from .workload import History, Step, Workload

# Requests with equal specs share one program, here as in an engine.
_program = lru_cache(maxsize=None)(lambda spec: compile_specs([spec]))
_text = lru_cache(maxsize=None)(encode)


def batch_update(workload: Workload, history: History, extra_args: list[Any]) -> BatchUpdate:
    """Make an update in which all requests of a batch are new."""
    added = [
        (row, SamplingParams(extra_args=extra), workload.prompts[row], history.outputs[row])
        for row, extra in enumerate(extra_args)
    ]
    return BatchUpdate(len(added), removed=[], added=added, moved=[])


class Config(SimpleNamespace):
    """A substitute for ``VllmConfig``, which allows weak references as ``VllmConfig`` does."""


def make_processor(vocab_size: int) -> LogitportProcessor:
    """Make a processor without an engine."""
    config: Any = Config(
        model_config=SimpleNamespace(
            get_vocab_size=lambda: vocab_size, model="model", served_model_name=None
        ),
        additional_config={},
        kv_transfer_config=None,
        use_v2_model_runner=False,
        scheduler_config=SimpleNamespace(async_scheduling=False),
    )
    return LogitportProcessor(config, torch.get_default_device(), is_pin_memory=False)


def begin(workload: Workload, history: History) -> Step:
    """Make the step of vLLM: ``update_state``, then ``apply``."""
    processor = make_processor(workload.vocab_size)
    extra = [None if spec is None else {KEY: _text(spec)} for spec in workload.specs]
    processor.update_state(batch_update(workload, history, extra))

    def step(logits: torch.Tensor) -> None:
        processor.update_state(None)
        processor.apply(logits)

    return step


class Parts:
    """A step of logitport in two parts: the host's work and the edit of the logits."""

    def __init__(self, workload: Workload, history: History) -> None:
        realizer = Realizer(workload.vocab_size)
        for row in workload.active:
            program = _program(workload.specs[row])  # pyright: ignore[reportArgumentType]
            realizer.add(row, program, workload.prompts[row], history.outputs[row], None)
        self._outputs, self._automata = realizer._outputs, realizer._automata
        self._edits, self._device = realizer._edits, torch.get_default_device()
        self._editor = editor_for(torch.empty(0, device=self._device))

    def advance(self) -> None:
        """Bring all states up to date, as ``Realizer.apply`` does."""
        self._outputs.read(self._automata, self._edits.rules)
        self._automata.advance()

    def edit(self, logits: torch.Tensor) -> None:
        """Edit the logits."""
        self._editor.apply(logits, self._edits)

    def cells(self, edit: Edit) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the rows, and the tokens or token sets, of automata in states with this edit."""
        automata = self._automata
        is_used = np.arange(automata.states.shape[1]) < automata.count[:, None]
        at = np.nonzero(is_used & (automata.tables.edit[automata.states] == edit))
        rows, operands = self._edits.rows[at[0]], automata.tables.operand[automata.states[at]]
        return (
            torch.as_tensor(rows, device=self._device),
            torch.as_tensor(operands.astype(np.int64), device=self._device),
        )


def begin_host(workload: Workload, history: History) -> Step:
    """Make the host's part of a step."""
    parts = Parts(workload, history)
    return lambda logits: parts.advance()


def begin_program(program: Program) -> Begin:
    """Make the step of a batch in which all requests have a program."""

    def begin(workload: Workload, history: History) -> Step:
        realizer = Realizer(workload.vocab_size)
        for row in workload.active:
            realizer.add(row, program, workload.prompts[row], history.outputs[row])
        return realizer.apply

    return begin


class EditAlone:
    """The edit of the logits; the host's part is done before and not timed."""

    def __init__(self, workload: Workload, history: History) -> None:
        parts = Parts(workload, history)
        self.advance, self._edit = parts.advance, parts.edit

    def __call__(self, logits: torch.Tensor) -> None:
        self._edit(logits)

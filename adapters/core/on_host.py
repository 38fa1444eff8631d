"""Realization on a device, but for requests with grammars: the host has their matchers."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from .device.context import History, LogitsLayout
from .device.realizer import DeviceRealizer, Step
from .host.realizer import Realizer
from .layer import Made, Tokens
from .parts import Program

Key = tuple[int, int]
"""A slot, and the number of draft tokens before a row's token."""


class _Hosted(NamedTuple):
    program: Program
    made: Made
    continued: int
    stop_token_id: int | None


class _Row(NamedTuple):
    row: int
    output_ids: list[int]


class SplitRealizer(DeviceRealizer):
    """A ``DeviceRealizer`` that leaves requests with grammars to the host.

    For these, each step waits for the device. No other request waits for them to be there.
    """

    def __init__(self, vocab_size: int, *more: Any, **named: Any) -> None:
        super().__init__(vocab_size, *more, **named)
        self._on_host = OnHost(vocab_size)

    def _start(
        self, number: int, program: Program, made: Made, tokens: Tokens, stop: int | None
    ) -> None:
        if program.grammars:
            # The slot is there for what `continued` says, which `upload` checks.
            bare = Program(continued=program.continued)
            super()._start(number, bare, ([], None), tokens, stop)
            self._on_host.add(number, program, made, stop)
        else:
            super()._start(number, program, made, tokens, stop)

    def _stop(self, number: int, request: Any) -> None:
        super()._stop(number, request)
        self._on_host.remove(number)

    def _step(self, step: Step) -> None:
        super()._step(step)
        for slot, error in self._on_host.apply(*step[:3]) if self._on_host else ():
            self.fail(slot, error, self._requests[slot].stop_token_id)


class OnHost:
    """Realizes programs on the rows of a device, by the host's realizer.

    Each row of a request is one of that realizer's requests: its tokens are the history, and the
    drafts before the row's token. This waits for the device, as vLLM's own grammars do.

    Args:
        vocab_size: the number of tokens.
    """

    def __init__(self, vocab_size: int) -> None:
        failed = list[tuple[int, Exception]]()  # no method: a cycle would keep the device's memory
        self._realizer = Realizer(
            vocab_size, report=lambda row, error, ends: failed.append((row, error))
        )
        self._failed = failed
        self._programs: dict[int, _Hosted] = {}
        self._rows: dict[Key, _Row] = {}

    def __bool__(self) -> bool:
        return bool(self._programs)

    def add(self, slot: int, program: Program, made: Made, stop_token_id: int | None) -> None:
        """Let a program act on a request, without its guard."""
        bare = replace(program, guard=None, continued=0)
        self._programs[slot] = _Hosted(bare, made, program.continued, stop_token_id)

    def remove(self, slot: int) -> None:
        """Remove a request, if it is there."""
        if self._programs.pop(slot, None) is not None:
            self._keep({key for key in self._rows if key[0] != slot})

    def apply(
        self, logits: torch.Tensor, history: History, rows: LogitsLayout
    ) -> list[tuple[int, Exception]]:
        """Edit the rows of the requests that are here; return the slots that have failed."""
        found = self._find(history, rows)
        self._keep(found.keys())
        self._realizer.rearrange({each.row: found[key][0] for key, each in self._rows.items()})
        for key, (row, prompt_ids, now) in found.items():
            known = self._rows.get(key)
            if known is None:
                program, made, _, stop = self._programs[key[0]]
                self._rows[key] = _Row(row, now)
                self._realizer.add(row, program, prompt_ids, now, stop, made)
                continue
            output_ids = known.output_ids
            self._rows[key] = known._replace(row=row)
            if now[: len(output_ids)] != output_ids:
                self._realizer.read_again(row)
            output_ids[:] = now
        if self._rows:
            self._realizer.apply(logits)
        return self._take_failed()

    def _find(
        self, history: History, rows: LogitsLayout
    ) -> dict[Key, tuple[int, Sequence[int], list[int]]]:
        """Find the rows of the requests that are here: the row, the prompt, and what follows it."""
        tokens: dict[int, tuple[list[int], list[int]]] = {}
        found: dict[Key, tuple[int, Sequence[int], list[int]]] = {}
        drafts, row_tokens = rows.drafts.tolist(), rows.token_ids.tolist()
        for row, slot in enumerate(rows.requests.tolist()):
            drafted = row_tokens[row + 1 - drafts[row] : row + 1]
            if slot in self._programs and min(drafted, default=0) >= 0:  # else a gap, not a draft
                if slot not in tokens:
                    tokens[slot] = history.read(slot, self._programs[slot].continued)
                prompt_ids, output_ids = tokens[slot]
                if prompt_ids or output_ids:  # else the engine measures the cost of a step
                    found[slot, len(drafted)] = row, prompt_ids, output_ids + drafted
        return found

    def _keep(self, keys: Collection[Key]) -> None:
        """Remove the rows with other keys."""
        for key in self._rows.keys() - set(keys):
            self._realizer.remove(self._rows.pop(key).row)

    def _take_failed(self) -> list[tuple[int, Exception]]:
        """Return the slots of requests that have failed: their rows end in this step.

        A draft that cannot come is of no importance: nothing reads the row after it.
        """
        key_of = {each.row: key for key, each in self._rows.items()}
        failed = [(key_of[row], error) for row, error in self._failed]
        self._failed.clear()
        self._keep(self._rows.keys() - {key for key, _ in failed if key[1]})
        return [(slot, error) for (slot, drafted), error in failed if not drafted]

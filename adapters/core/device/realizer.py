"""Realization on a device that reads the tokens itself: nothing is copied for a step."""

import logging
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import torch

from ....spec import AllowedTokensSpec, ChainStep, DrySpec, NoLoopSpec, NoRepeatNgramSpec, SpecError
from ..automaton import Ints
from ..automaton.pool import AutomatonPool
from ..callables import Report, stop_in
from ..layer import Layer, Made, Tokens
from ..logits import Additions, write_twice
from ..parts import Acting, Chain, Mark, Program
from ..program import ProgramOf, compile_specs
from ..tensors import add, end_where_banned, find_forced, highest_logit
from .advance_kernel import AdvanceKernel
from .chain_kernel import ChainKernel
from .context import History, LogitsLayout
from .edit_kernel import EditKernel
from .history_kernels import HistoryKernels
from .inputs import RequestInputs
from .loop_kernel import LoopKernel
from .mark_kernel import MarkKernel
from .pool import DevicePool
from .requests import INPUTS, Request

logger = logging.getLogger(__name__)

_NOBODY = Request(None)

Step = tuple[torch.Tensor, History, LogitsLayout, Ints, int]
"""The arguments of ``DeviceRealizer.apply``."""


class DeviceRealizer(Layer):
    """Realizes programs on the rows of an engine whose tokens are on the device.

    Each request has a slot below ``max_requests``. Slots are reused; ``add`` replaces all
    state of the previous request. The adapter calls ``enter`` and ``remove`` as requests come and
    go, ``upload`` before the next step, and ``apply`` with the logits. States advance on the
    device, from the engine's own history and the step's draft tokens. Nothing is copied to the
    host, and the host does not wait, except for a request with Python code of its own, which needs
    the tokens, and once for a request that is added without them: ``upload`` then reads prompt and
    output on the device.

    Args:
        vocab_size: the number of tokens.
        max_requests: the maximum number of requests at a time.
        device: the device of the history and of the logits; Triton must compile for it.
        program_of: see ``Layer``.
        report: see ``Layer``.
    """

    numbered = "slot"

    def __init__(
        self,
        vocab_size: int,
        max_requests: int,
        device: torch.device,
        program_of: ProgramOf = lambda program: program,
        report: Report | None = None,
    ) -> None:
        super().__init__(vocab_size, program_of, report)
        self._device = device
        self._with_code: set[int] = set()
        self._stale: set[int] = set()  # slots whose changes are not on the device yet
        self._admissions = np.zeros(max_requests, np.int32)
        self._end_tokens = np.full(max_requests, -1)  # -1: banned tokens may be all that is left
        self._multiples: dict[int, torch.Tensor] = {}
        self._written = False  # whether any logit may have been edited in this step
        self._forget()

    def _forget(self) -> None:
        """Begin without any state."""
        requests, device = len(self._admissions), self._device
        self._counts = np.zeros((len(_NOBODY.counts()), requests), np.int32)
        self._inputs = RequestInputs(requests, device, **INPUTS)
        self._tables = AutomatonPool()
        self._device_tables = DevicePool(self._tables, device, transitions=True)
        self._advance = AdvanceKernel(self._device_tables, self._inputs, device)
        self._scan = HistoryKernels(self._device_tables, self._inputs, device)
        self._loop = LoopKernel(self._device_tables, self._inputs)
        self._chain = ChainKernel(self._inputs)
        self._mark = MarkKernel(self._inputs)
        self._edit = EditKernel(self._device_tables, device)
        self._stale |= self._requests.keys()
        self._is_broken = False

    def _layer_of_guards(self) -> "DeviceRealizer":
        requests = len(self._admissions)
        return DeviceRealizer(self._vocab_size, requests, self._device, report=self._report_guard)

    def _start(
        self, number: int, program: Program, made: Made, tokens: Tokens, stop: int | None
    ) -> None:
        if program.grammars:
            raise SpecError("A grammar is followed on the host")
        request, (prompt_ids, output_ids) = Request(stop, program, *made), tokens
        if prompt_ids is not None:
            request.start(prompt_ids, output_ids, self._vocab_size)
        self._put(number, request)

    def _start_end(self, number: int, stop: int) -> None:
        self._put(number, Request.ending(stop, self._ending(stop)))

    def _put(self, slot: int, request: Request) -> None:
        """Let a request act in an empty slot. This cannot fail."""
        self._requests[slot] = request
        self._admissions[slot] += 1
        self._stale.add(slot)
        if (end_token := stop_in(self._vocab_size, request.program.end_token)) is not None:
            self._end_tokens[slot] = end_token
        if request.code is not None:
            self._with_code.add(slot)

    def _stop(self, number: int, request: Request) -> None:
        self._admissions[number] += 1  # what the kernel keeps of the slot is out of date
        self._with_code.discard(number)
        self._end_tokens[number] = -1
        self._stale.add(number)

    def upload(self, history: History) -> None:
        """Copy to the device which requests have come and gone since the last call.

        The engine's history has the prompts of the new requests.
        """
        if self._requests and (self._stale or self._is_broken):
            try:
                self._upload(history)
            except Exception:
                logger.debug("The next step makes the state again", exc_info=True)
                self._is_broken = True
        if self._guards is not None:
            self._guards.upload(history)

    def _upload(self, history: History) -> None:
        if self._is_broken:
            self._forget()
        for slot in self._stale & self._requests.keys():
            request = self._requests[slot]
            try:
                if request.read < 0:
                    tokens = history.read(slot, request.program.continued)
                    request.start(*tokens, self._vocab_size)
            except Exception as error:
                self.fail(slot, error, request.stop_token_id)
        if not self._has_room():
            in_use = [one for request in self._requests.values() for one in request.in_tables()]
            self._stale |= self._requests.keys()  # all automata move
            self._tables.rebuild(in_use)
        for slot in self._stale:
            request = self._requests.get(slot, _NOBODY)
            request.write(slot, self._inputs, self._tables)
            admission, end_token = self._admissions[slot], self._end_tokens[slot]
            self._inputs.put(slot, admission=[admission], end_token=[end_token])
            self._counts[:, slot] = request.counts()
        self._device_tables.update()
        self._inputs.upload()
        self._stale.clear()

    def _has_room(self) -> bool:
        """Put new automata into the tables; ``False`` if there is no room, or far too much."""
        tables, requests = self._tables, self._requests
        coming = [requests[slot] for slot in self._stale if slot in requests]
        wanted = [one for request in coming for one in request.in_tables()]
        return all(tables.base_of(automaton) is not None for automaton in wanted) and not (
            tables.is_mostly_unused(one for each in requests.values() for one in each.in_tables())
        )

    def apply(
        self,
        logits: torch.Tensor,
        history: History,
        rows: LogitsLayout,
        slots: Ints,
        longest: int,
    ) -> None:
        """Edit the logits of the next tokens in place.

        If a step fails before it has edited any logit, all state is made again from the tokens, and
        the step is tried once more. If it fails again, or later, the requests with specs that have
        rows end.

        Args:
            logits: ``[rows, columns]`` float32, float16 or bfloat16, with adjacent columns.
            history: the engine's history.
            rows: the layout of the rows.
            slots: ``[requests]``, the slots of the requests that have rows.
            longest: the maximum length of the requests' histories, draft tokens included.
        """
        if self._requests and not self._requests.keys().isdisjoint(slots.tolist()):
            self._written = False
            self._apply((logits, history, rows, slots, longest))
        if self._guards is not None:
            self._guards.apply(logits, history, rows, slots, longest)

    @property
    def _has_written(self) -> bool:
        return self._written

    def _step(self, step: Step) -> None:
        logits, history, rows, slots, longest = step
        if self._own is None:
            self._own = self._run_code(logits, history, rows) if self._with_code else []
        if self._stale or self._is_broken:
            self._upload(history)
        most = self._counts[:, slots].max(axis=1).tolist()
        automata_each, phases, allows, rules, penalizes, loops, chains, marks = most
        automata: tuple[Any, ...] = ()
        states: torch.Tensor | None = None
        since: torch.Tensor | None = None
        tokens = min(self._vocab_size, logits.shape[1])
        if automata_each or phases > 1:
            states, since = self._advance.launch(history, rows, automata_each, phases)
        if automata_each:
            starts = self._count_by(automata_each, len(rows) + 1)
            automata = self._count_by(1, len(rows)), starts, states, len(rows)
        ends = bool((self._end_tokens[slots] >= 0).any())
        forced = find_forced(logits[: len(rows)]) if ends else None
        self._written = True
        for additions in self._own:
            write_twice(add, additions, logits)
        if rules:
            batch, sizes = (logits, history, rows, since), (phases, rules, tokens, longest)
            write_twice(self._scan.launch, *batch, *sizes, penalizes=bool(penalizes))
        if loops:
            batch, sizes = (logits, history, rows, states, since), (automata_each, phases, loops)
            write_twice(self._loop.launch, *batch, *sizes, tokens)
        if automata_each:
            write_twice(self._edit.launch, logits, *automata, allows=bool(allows))
        if chains:
            self._chain.launch(logits, rows, tokens)
        if marks:
            self._mark.launch(logits, history, rows, tokens)
        if forced is not None:
            end_tokens, requests = self._inputs.columns("end_token")[0][0], rows.requests.long()
            end_where_banned(logits[: len(rows)], forced, end_tokens[requests].long())

    def _count_by(self, factor: int, count: int) -> torch.Tensor:
        """Return the first ``count`` or more multiples of ``factor``, cached if possible."""
        multiples = self._multiples.get(factor)
        if multiples is None or len(multiples) < count:
            multiples = torch.arange(2 * count, dtype=torch.int32, device=self._device) * factor
            self._multiples[factor] = multiples
        return multiples

    def _run_code(
        self, logits: torch.Tensor, history: History, rows: LogitsLayout
    ) -> list[Additions]:
        """Run the requests' own code, one row after the other. This waits for the device."""
        tokens: dict[int, tuple[list[int], list[int]]] = {}
        drafts, row_tokens = rows.drafts.tolist(), rows.token_ids.tolist()
        additions: list[Additions] = []
        for row, slot in enumerate(rows.requests.tolist()):
            drafted = row_tokens[row + 1 - drafts[row] : row + 1]
            if slot not in self._with_code or min(drafted, default=0) < 0:  # a gap, not a draft
                continue
            request = self._requests[slot]
            if slot not in tokens:
                tokens[slot] = history.read(slot, request.program.continued)
            prompt_ids, output_ids = tokens[slot]
            if not prompt_ids and not output_ids:  # the engine measures the cost of a step
                continue
            try:
                assert request.code is not None
                additions += request.code.run(prompt_ids, output_ids + drafted, logits, row)
            except Exception as error:
                self.fail(slot, error, request.stop_token_id)
        return additions

    def _acting(self, step: Step) -> Collection[int]:
        return self._requests.keys() & step[3].tolist()

    def _force(self, stops: Mapping[int, int | None], step: Step) -> None:
        logits, _, rows, *_ = step
        for row, slot in enumerate(rows.requests.tolist()):
            if (stop_token_id := stops.get(slot)) is not None:
                logits[row] = 0  # another token may have been forced
                logits[row, stop_token_id] = highest_logit(logits.dtype)

    @classmethod
    def warm_up(cls, vocab_size: int, history: History, columns: int) -> None:
        """Have Triton compile the kernels, so that no request waits for it.

        This uses a realizer of its own: an engine that sleeps may discard memory that was
        allocated while it was loading. The engine's logits have ``columns`` columns of float32.

        Raises:
            Exception: if a kernel cannot be compiled or launched.
        """
        device = history.token_ids.device
        errors: list[Exception] = []
        realizer = cls(vocab_size, 1, device, report=lambda _, error, ends: errors.append(error))
        everything = AllowedTokensSpec((0,)), NoRepeatNgramSpec(1), DrySpec(1.0), NoLoopSpec(2)
        chain = Chain((ChainStep(top_k=2),), 1.0)
        draw = Program((Acting(chain), Acting(Mark("", 1))))
        realizer.add(0, compile_specs(everything).then(draw), ())
        row = torch.zeros(1, dtype=torch.int32, device=device)
        logits = torch.zeros((1, columns), device=device)
        for requests in (row, row.long()):
            rows = LogitsLayout(requests, row, row)
            realizer._own = []
            realizer.apply(logits, history, rows, np.zeros(1, np.int64), 1)
        for error in errors:
            raise error

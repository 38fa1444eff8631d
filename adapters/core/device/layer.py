"""A layer of edits on a device that reads the tokens itself: nothing is copied for a step."""

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from ....spec import AllowedTokensSpec, DrySpec, NoLoopSpec, NoRepeatNgramSpec
from ..automaton import Ints
from ..automaton.pool import AutomatonPool
from ..callables import Report, instantiate, log_by, stop_in
from ..kinds.forced_sequence import forced_chain
from ..logits import Additions, write_twice
from ..parts import Program
from ..program import ProgramOf, compile_specs
from ..tensors import add, end_where_banned, find_forced, highest_logit
from .advance_kernel import AdvanceKernel
from .context import History, LogitsLayout
from .edit_kernel import EditKernel
from .history_kernels import HistoryKernels
from .inputs import RequestInputs
from .loop_kernel import LoopKernel
from .pool import DevicePool
from .requests import INPUTS, Counts, Request

logger = logging.getLogger(__name__)

_FREE = forced_chain((), None)
_NOBODY = Request(None)


class DeviceLayer:
    """Realizes programs where an engine keeps all tokens on the device; see ``DeviceRealizer``.

    Each request has a slot below ``max_requests``. Slots are reused; ``add`` replaces all
    state of the previous request. The adapter calls ``add`` and ``remove`` as requests come and
    go, ``upload`` before the next step, and ``apply`` with the logits. States advance on the
    device, from the engine's own history and the step's draft tokens. Nothing is copied to the
    host, and the host does not wait, except for a request with Python code of its own, which needs
    the tokens, and once for a request that is added without them.

    A failure of a request's specs never raises. It ends this request and affects no other.

    Args:
        vocab_size: the number of tokens.
        max_requests: the maximum number of requests at a time.
        device: the device of the history and of the logits; Triton must compile for it.
        program_of: returns the program of a request that ``enter`` is given; see ``Realizer``.
        report: called for each request that fails; by default it logs a line.

    Attributes:
        failed_requests: the number of requests that were ended because their specs failed.
    """

    def __init__(
        self,
        vocab_size: int,
        max_requests: int,
        device: torch.device,
        program_of: ProgramOf = lambda program: program,
        report: Report | None = None,
    ) -> None:
        self._vocab_size = vocab_size
        self._program_of = program_of
        self._report = report or log_by("slot")
        self._device = device
        self._requests: dict[int, Request] = {}
        self._with_code: set[int] = set()
        self._stale: set[int] = set()  # slots whose changes are not on the device yet
        self._admissions = np.zeros(max_requests, np.int32)
        self._end_tokens = np.full(max_requests, -1)  # -1: banned tokens may be all that is left
        self._multiples: dict[int, torch.Tensor] = {}
        self._own: list[Additions] | None = None  # own code's additions, once it has run in a step
        self._has_written = False  # whether any logit may have been edited in this step
        self.failed_requests = 0
        self._forget()

    def _forget(self) -> None:
        """Begin without any state."""
        requests, device = len(self._admissions), self._device
        self._counts = np.zeros((len(Counts._fields), requests), np.int32)
        self._inputs = RequestInputs(requests, device, **INPUTS)
        self._tables = AutomatonPool()
        self._device_tables = DevicePool(self._tables, device, transitions=True)
        self._advance = AdvanceKernel(self._device_tables, self._inputs, device)
        self._scan = HistoryKernels(self._device_tables, self._inputs, device)
        self._loop = LoopKernel(self._device_tables, self._inputs)
        self._edit = EditKernel(self._device_tables, device)
        self._stale |= self._requests.keys()
        self._is_broken = False  # the state must be made again from the tokens

    def __len__(self) -> int:
        return len(self._requests)

    def __contains__(self, slot: int) -> bool:
        """Whether something acts on a request."""
        return slot in self._requests

    def enter(
        self,
        slot: int,
        request: Any,
        prompt_ids: Sequence[int] | None = None,
        output_ids: Sequence[int] = (),
        stop_token_id: int | None = None,
    ) -> bool:
        """Add the program of a request, as ``Realizer.enter`` does; return whether one acts."""
        self.remove(slot)  # an engine may leave a request in its slot until another one comes
        try:
            program = self._program_of(request)
        except Exception as error:
            self.fail(slot, error, stop_token_id)
        else:
            if program is not None:
                self.add(slot, program, prompt_ids, output_ids, stop_token_id)
        return slot in self

    def add(
        self,
        slot: int,
        program: Program,
        prompt_ids: Sequence[int] | None = None,
        output_ids: Sequence[int] = (),
        stop_token_id: int | None = None,
    ) -> None:
        """Let a program act on a request, in place of the slot's earlier program.

        Args:
            slot: the slot of the request.
            program: the compiled form of its specs.
            prompt_ids: the prompt, if the host has it. Otherwise ``upload`` waits for the device
                and reads prompt and output there.
            output_ids: the output, if the request comes again.
            stop_token_id: a token that makes the engine end the request if its specs fail.
        """
        self.remove(slot)
        try:
            automata, code = instantiate(program, self._vocab_size)
            stop = stop_in(self._vocab_size, stop_token_id)
            request = Request(stop, program, automata, code)
            if prompt_ids is not None:
                request.start(prompt_ids, output_ids, self._vocab_size)
            self._put(slot, request)
        except Exception as error:
            self.fail(slot, error, stop_token_id)

    def _put(self, slot: int, request: Request) -> None:
        """Let a request act in an empty slot. This cannot fail."""
        self._requests[slot] = request
        self._admissions[slot] += 1
        self._stale.add(slot)
        if (end_token := stop_in(self._vocab_size, request.program.end_token)) is not None:
            self._end_tokens[slot] = end_token
        if request.code is not None:
            self._with_code.add(slot)

    def remove(self, slot: int) -> None:
        """Let nothing act on a request."""
        self._stop(slot)

    def _stop(self, slot: int) -> None:
        """Let this layer not act on a request."""
        if self._requests.pop(slot, None) is not None:
            self._admissions[slot] += 1  # what the kernel keeps of the slot is out of date
            self._with_code.discard(slot)
            self._end_tokens[slot] = -1
            self._stale.add(slot)

    def fail(self, slot: int, error: Exception, stop_token_id: int | None) -> None:
        """End a request whose specs fail. If its end fails too, it goes on without its specs."""
        ended, stop_token_id = self._requests.get(slot), stop_in(self._vocab_size, stop_token_id)
        self._stop(slot)
        if ended is not None and ended.ends:
            logger.error("Slot %d could not be ended and continues without its specs", slot)
            return
        self.failed_requests += 1
        try:
            if stop_token_id is not None:
                self._put(slot, Request.ending(stop_token_id))
        except Exception:
            logger.exception("The request in slot %d continues without its specs", slot)
        try:
            self._report(slot, error, slot in self._requests)
        except Exception:
            logger.exception("The failure of a request cannot be reported")

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

    def _upload(self, history: History) -> None:
        if self._is_broken:
            self._forget()
        for slot in self._stale & self._requests.keys():
            request = self._requests[slot]
            try:
                if request.read < 0:
                    request.start(*history.read(slot), self._vocab_size)
            except Exception as error:
                self.fail(slot, error, request.stop_token_id)
        if not self._has_room():
            in_use = [one for request in self._requests.values() for one in request.in_tables()]
            self._stale |= self._requests.keys()  # all automata move
            self._tables.rebuild([_FREE, *in_use])
        for slot in self._stale:
            request = self._requests.get(slot, _NOBODY)
            request.write(slot, self._inputs, self._tables)
            admission, end_token = self._admissions[slot], self._end_tokens[slot]
            self._inputs.put(slot, admission=[admission], end_token=[end_token])
            self._counts[:, slot] = Counts.of(request)
        self._device_tables.update()
        self._inputs.upload()
        self._stale.clear()

    def _has_room(self) -> bool:
        """Put new automata into the tables; ``False`` if there is no room, or far too much."""
        tables, requests = self._tables, self._requests
        coming = [requests[slot] for slot in self._stale if slot in requests]
        wanted = [_FREE, *(one for request in coming for one in request.in_tables())]
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
        if not self._requests or self._requests.keys().isdisjoint(slots.tolist()):
            return
        step = logits, history, rows, slots, longest
        self._own, self._has_written = None, False
        try:
            try:
                self._step(*step)
            except Exception:
                if self._has_written:
                    raise
                logger.debug("The state is made again", exc_info=True)
                self._is_broken = True
                self._step(*step)
        except Exception as error:
            self._end_all(error, *step)

    def _step(
        self, logits: torch.Tensor, history: History, rows: LogitsLayout, slots: Ints, longest: int
    ) -> None:
        if self._own is None:
            self._own = self._run_code(logits, history, rows) if self._with_code else []
        if self._stale or self._is_broken:
            self._upload(history)
        counts = Counts(*self._counts[:, slots].max(axis=1).tolist())
        automata: tuple[Any, ...] = ()
        states: torch.Tensor | None = None
        tokens = min(self._vocab_size, logits.shape[1])
        if counts.automata:
            states = self._advance.launch(history, rows, counts.automata)
            starts = self._count_by(counts.automata, len(rows) + 1)
            automata = self._count_by(1, len(rows)), starts, states, len(rows)
        ends = bool((self._end_tokens[slots] >= 0).any())
        forced = find_forced(logits[: len(rows)]) if ends else None
        self._has_written = True
        for additions in self._own:
            write_twice(add, additions, logits)
        if counts.rules:
            batch, sizes = (logits, history, rows), (counts.rules, tokens, longest)
            write_twice(self._scan.launch, *batch, *sizes, penalizes=bool(counts.penalizes))
        if counts.loops:
            batch = logits, history, rows, states
            write_twice(self._loop.launch, *batch, counts.automata, counts.loops, tokens)
        if counts.automata:
            write_twice(self._edit.launch, logits, *automata, allows=bool(counts.allows))
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
                tokens[slot] = history.read(slot)
            prompt_ids, output_ids = tokens[slot]
            if not prompt_ids and not output_ids:  # the engine measures the cost of a step
                continue
            try:
                assert request.code is not None
                additions += request.code.run(prompt_ids, output_ids + drafted, logits, row)
            except Exception as error:
                self.fail(slot, error, request.stop_token_id)
        return additions

    def _end_all(
        self,
        error: Exception,
        logits: torch.Tensor,
        history: History,
        rows: LogitsLayout,
        slots: Ints,
        longest: int,
    ) -> None:
        """End the requests with specs that have rows, in this very step if possible."""
        acting = self._requests.keys() & slots.tolist()
        ended = {slot: self._requests[slot].stop_token_id for slot in acting}
        self._is_broken = True
        for slot, stop_token_id in ended.items():
            self.fail(slot, error, stop_token_id)
        try:
            if not self._has_written:
                self._step(logits, history, rows, slots, longest)
                return
        except Exception:
            logger.debug("All state is made again in the next step", exc_info=True)
            self._is_broken = True
        try:
            for row, slot in enumerate(rows.requests.tolist()):
                if (stop_token_id := ended.get(slot)) is not None:
                    logits[row] = 0  # another token may have been forced
                    logits[row, stop_token_id] = highest_logit(logits.dtype)
        except Exception:
            logger.debug("The requests end one token later", exc_info=True)

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
        realizer.add(0, compile_specs(everything), ())
        row = torch.zeros(1, dtype=torch.int32, device=device)
        logits = torch.zeros((1, columns), device=device)
        for requests in (row, row.long()):
            rows = LogitsLayout(requests, row, row)
            realizer._own = []
            realizer._step(logits, history, rows, np.zeros(1, np.int64), 1)
        for error in errors:
            raise error

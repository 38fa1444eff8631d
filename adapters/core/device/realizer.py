"""Realization on a device that reads the tokens itself: nothing is copied for a step."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ....spec import AllowedTokensSpec, DrySpec, NoRepeatNgramSpec, PromptBiasSpec
from ....spec.kinds.dry import MAX_MATCH
from ..automaton import NO_TIMER, Automaton, AutomatonBuilder, Edit, Ints
from ..automaton.automaton import entered
from ..automaton.folding import fold_together
from ..automaton.history import TokenHistory
from ..automaton.pool import AutomatonPool
from ..callables import Report, RequestCallables, instantiate, log_by
from ..kinds.dry import penalties
from ..kinds.forced_sequence import ending, forced_chain
from ..logits import Additions, Floats, add, highest_logit
from ..parts import Program
from ..program import ProgramOf, compile_specs
from .advance_kernel import (
    AFTER_PROMPT,
    INPUTS,
    NOT_PLACED,
    AdvanceKernel,
    History,
    LogitsLayout,
)
from .dry_kernel import DRY_FIELDS, DryKernel
from .edit_kernel import EditKernel
from .ngram_kernel import NGRAM_FIELDS, ban_ngrams
from .parts import attempt
from .pool import DeviceArray, DevicePool
from .prompt_bias_kernel import WORD, add_prompt_biases, mark_prompt

logger = logging.getLogger(__name__)

_PLACES, _ALLOWS, _NGRAMS, _DRY, _BIASES, _CODE = range(6)
"""The counts of each request: automata, whether one may ALLOW, n-gram rules, rules against
repetitions, biases, own code."""


_ALL = np.iinfo(np.int32).max
"""The window of a rule that has none."""


@lru_cache(maxsize=64)
def _holder(token_ids: tuple[int, ...]) -> Automaton:
    """Build an automaton that never runs: its state 0 brings a token set into the tables.

    Equal tokens share one automaton, so that the tables hold one copy of them.
    """
    builder = AutomatonBuilder()
    builder.add(builder.token_set(token_ids, 0.0))
    return builder.build()


_FREE = forced_chain((), None)


@dataclass(slots=True, eq=False)
class _Request:
    """The parts of a program that act on a request.

    Attributes:
        stop_token_id: a token that makes the engine end the request, if there is one.
        read: of each automaton, how many tokens the host has read, or ``AFTER_PROMPT``, and its
            state and timer then; by default, nothing has been read.
        ngrams: n, the window, the automaton that holds the tokens that may be repeated, and
            whether only the output counts.
        dry: the allowed length, the range, the automaton that holds the breakers, and the penalties
            by length.
        biases: the bias, and the automaton that holds the prompt's tokens to leave out.
        ends: whether the request has failed, and only its stop token acts on it.
    """

    stop_token_id: int | None
    automata: Sequence[Automaton] = ()
    read: Sequence[tuple[int, int, int]] = ()
    ngrams: Sequence[tuple[int, int, Automaton, bool]] = ()
    dry: Sequence[tuple[int, int, Automaton, Floats]] = ()
    biases: Sequence[tuple[float, Automaton]] = ()
    code: RequestCallables | None = None
    ends: bool = False

    def __post_init__(self) -> None:
        self.read = self.read or [
            (0 if each.reads_prompt else AFTER_PROMPT, 0, entered(int(each.timer[0]), NO_TIMER))
            for each in self.automata
        ]

    def in_tables(self) -> list[Automaton]:
        """List the automata that must be in the tables."""
        of_ngrams = (holder for _, _, holder, _ in self.ngrams)
        of_dry = (breakers for _, _, breakers, _ in self.dry)
        return [*self.automata, *of_ngrams, *of_dry, *(holder for _, holder in self.biases)]


@dataclass(frozen=True, slots=True)
class _Part:
    """Rows that a kernel edits, all of them or none: a ``Part``, request by request."""

    logits: torch.Tensor
    of: LogitsLayout

    @property
    def rows(self) -> Ints:
        """The request of each row. Reading it waits for the device."""
        return self.of.requests.cpu().numpy()

    def of_row(self, slot: int) -> "_Part":
        """Select the rows of a request, which follow one another."""
        mine = np.flatnonzero(self.rows == slot)
        at, of = slice(mine[0], mine[-1] + 1), self.of
        return _Part(
            self.logits[at], LogitsLayout(of.requests[at], of.drafts[at], of.token_ids[at])
        )


class _Inputs:
    """A kernel's inputs for each request, ``[most, ..., requests]``, here and on the device.

    Each request has ``fill`` at the indices that it does not need.
    """

    def __init__(self, empty: npt.NDArray[Any], fill: int, device: torch.device) -> None:
        self._host, self._fill = empty, fill
        self._copy = DeviceArray(torch.from_numpy(empty).dtype, device)

    def put(self, slot: int, inputs: list[Any]) -> None:
        """Set the inputs of a request."""
        host, missing = self._host, max(len(inputs) - len(self._host), 0)
        if missing:
            padding = np.full((missing, *host.shape[1:]), self._fill, host.dtype)
            host = self._host = np.concatenate([host, padding])
        host[..., slot] = self._fill
        if inputs:
            host[: len(inputs), ..., slot] = inputs

    def upload(self) -> None:
        """Copy all inputs to the device."""
        self._copy.write(self._host.ravel())

    def first(self, most: int) -> torch.Tensor:
        """Return the requests' first inputs, on the device."""
        return self._copy.tensor[: self._host.size].view(self._host.shape)[:most]


class DeviceRealizer:
    """Realizes programs on the rows of an engine that keeps all tokens where the device reads them.

    Each request has a slot below ``max_requests``. Slots are reused; ``add`` replaces all
    state of the previous request. The adapter calls ``add`` and ``remove`` as requests come and
    go, ``upload`` before the next step, and ``apply`` with the logits. States advance on the
    device, from the engine's own history and the step's draft tokens. Nothing is copied to the
    host, and the host does not wait. The only exception are requests with Python code of their
    own, which needs the tokens.

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
        self._requests: dict[int, _Request] = {}
        self._counts = np.zeros((6, max_requests), np.int32)
        self._tables = AutomatonPool()
        self._device_tables = DevicePool(self._tables, device, transitions=True)
        self._advance = AdvanceKernel(self._device_tables, max_requests, device)
        self._penalize = DryKernel(self._device_tables, device)
        self._edit = EditKernel(self._device_tables, device)
        self._admissions = np.zeros(max_requests, np.int32)
        placed = np.full((1 + INPUTS, max_requests), NOT_PLACED, np.int32)
        self._placed = _Inputs(placed, NOT_PLACED, device)
        self._ngrams = _Inputs(np.zeros((0, NGRAM_FIELDS, max_requests), np.int32), 0, device)
        self._dry = _Inputs(np.zeros((0, DRY_FIELDS, max_requests), np.int32), 0, device)
        self._penalties = _Inputs(np.zeros((0, 1 + MAX_MATCH, max_requests), np.float32), 0, device)
        self._biases = _Inputs(np.zeros((0, max_requests), np.float32), 0, device)
        self._masks = torch.zeros(
            (0, max_requests, -(-vocab_size // WORD)), dtype=torch.int32, device=device
        )
        self._kept_multiples: dict[int, torch.Tensor] = {}
        self._stale: set[int] = set()  # requests whose changes are not on the device yet
        self._own: list[Additions] | None = None  # own code's additions, once it has run in a step
        self.failed_requests = 0

    def __len__(self) -> int:
        return len(self._requests)

    def __contains__(self, slot: int) -> bool:
        """Whether something acts on a request."""
        return slot in self._requests

    def enter(
        self,
        slot: int,
        request: Any,
        stop_token_id: int | None = None,
        prompt_ids: Sequence[int] | None = None,
        output_ids: Sequence[int] = (),
    ) -> bool:
        """Add the program of a request, as ``Realizer.enter`` does; return whether one acts."""
        try:
            program = self._program_of(request)
        except Exception as error:
            self.fail(slot, error, stop_token_id)
        else:
            if program is None:
                self.remove(slot)
            else:
                self.add(slot, program, stop_token_id, prompt_ids, output_ids)
        return slot in self

    def add(
        self,
        slot: int,
        program: Program,
        stop_token_id: int | None = None,
        prompt_ids: Sequence[int] | None = None,
        output_ids: Sequence[int] = (),
    ) -> None:
        """Let a program act on a request, in place of the slot's earlier program.

        Args:
            slot: the slot of the request.
            program: the compiled form of its specs.
            stop_token_id: a token that makes the engine end the request if its specs fail.
            prompt_ids: the prompt, if the host has it. Automata then read prompt and output here.
                Otherwise the device does, token by token where most tokens have edges, which takes
                long for many tokens.
            output_ids: the output, if the request comes again.
        """
        try:
            automata, code = instantiate(program, self._vocab_size)
            read: list[tuple[int, int, int]] = []
            if prompt_ids is not None:
                folded = fold_together(automata, TokenHistory(prompt_ids, output_ids))
                count = len(prompt_ids) + len(output_ids)
                read += [(count, state, timer) for state, timer in folded]
            ngrams = [
                (
                    spec.n,
                    spec.window or _ALL,
                    _holder(spec.allowed_token_ids),
                    spec.output_only,
                )
                for spec in program.ngrams
            ]
            dry = [
                (
                    spec.allowed_length,
                    spec.range or _ALL,
                    _holder(spec.breaker_token_ids),
                    penalties(spec),
                )
                for spec in program.dry
            ]
            biases = [
                (spec.bias, _holder(spec.excluded_token_ids)) for spec in program.prompt_biases
            ]
            self._put(slot, _Request(stop_token_id, automata, read, ngrams, dry, biases, code))
        except Exception as error:
            self.fail(slot, error, stop_token_id)

    def _put(self, slot: int, request: _Request) -> None:
        counts = (
            len(request.automata),
            any(
                np.isin(automaton.edit, (Edit.ALLOW, Edit.BAN_OTHERS)).any()
                for automaton in request.automata
            ),
            len(request.ngrams),
            len(request.dry),
            len(request.biases),
            request.code is not None,
        )
        # From here on, nothing can fail.
        self._requests[slot] = request
        self._admissions[slot] += 1
        self._stale.add(slot)
        self._counts[:, slot] = counts

    def remove(self, slot: int) -> None:
        """Let nothing act on a request."""
        if self._requests.pop(slot, None) is not None:
            self._counts[:, slot] = 0
            self._stale.add(slot)

    def fail(self, slot: int, error: Exception, stop_token_id: int | None) -> None:
        """End a request whose specs fail. If its end fails too, it goes on without its specs."""
        ended = self._requests.get(slot)
        self.remove(slot)
        if ended is not None and ended.ends:
            logger.error("Slot %d, which was to end, goes on without its specs", slot)
            return
        self.failed_requests += 1
        try:
            if stop_token_id is not None:
                self._put(slot, _Request(stop_token_id, (ending(stop_token_id),), ends=True))
        except Exception:
            logger.exception("The request in slot %d goes on without its specs", slot)
        try:
            self._report(slot, error, slot in self._requests)
        except Exception:
            logger.exception("The failure of a request cannot be told")

    def upload(self, history: History) -> None:
        """Copy to the device which requests have come and gone since the last call.

        The engine's history has the prompts of the new requests.
        """
        if self._stale and self._requests:
            self._apply_or_fail(self._upload, history)

    def apply(
        self,
        logits: torch.Tensor,
        history: History,
        rows: LogitsLayout,
        slots: Ints,
        longest: int,
    ) -> None:
        """Edit the logits of the next tokens in place.

        Args:
            logits: ``[rows, columns]`` float32, float16 or bfloat16, with adjacent columns.
            history: the engine's history.
            rows: the layout of the rows.
            slots: ``[requests]``, the slots of the requests that have rows.
            longest: the maximum length of the requests' histories, draft tokens included.
        """
        if self._requests and self._counts[:, slots].any():
            self._own = None
            self._apply_or_fail(self._apply, logits, history, rows, slots, longest)

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
        everything = (
            AllowedTokensSpec((0,)),
            NoRepeatNgramSpec(1),
            DrySpec(1.0),
            PromptBiasSpec(1.0),
        )
        realizer.add(0, compile_specs(everything))
        realizer._upload(history)
        row = torch.zeros(1, dtype=torch.int32, device=device)
        logits = torch.zeros((1, columns), device=device)
        for requests in (row, row.long()):
            rows = LogitsLayout(requests, row, row)
            realizer._apply(logits, history, rows, np.zeros(1, np.int64), 1)
        for error in errors:
            raise error

    def _apply_or_fail(self, step: Callable[..., None], *arguments: Any) -> None:
        """Run a step. If it fails twice, end requests until it succeeds.

        The newest requests are ended first: the device may have no memory for their state.
        Otherwise the failure is a bug in logitport.
        """
        requests = [*(self._stale & self._requests.keys()), *(self._requests.keys() - self._stale)]
        try:
            try:
                step(*arguments)
            except Exception:
                step(*arguments)  # a brief shortage must not end any request
        except Exception as error:
            for slot in requests * 2:  # if an end fails, the request goes on without it
                if (request := self._requests.get(slot)) is None:
                    continue
                self.fail(slot, error, request.stop_token_id)
                try:
                    self._tables.rebuild(())  # they may have been too full
                    self._stale |= self._requests.keys()
                    step(*arguments)
                    return
                except Exception:
                    logger.debug("It is not enough that slot %d is ended", slot, exc_info=True)

    def _apply(
        self, logits: torch.Tensor, history: History, rows: LogitsLayout, slots: Ints, longest: int
    ) -> None:
        """Do the remaining work of this step. If this raises, no kernel has been launched."""
        if self._own is None:
            has_code = self._counts[_CODE, slots].any()
            self._own = self._run_code(logits, history, rows, slots) if has_code else []
        if self._stale:
            self._upload(history)
        places, allows, ngrams, dry, biases, _ = self._counts[:, slots].max(axis=1).tolist()
        of_rows: dict[int, Exception] = {}
        failed: dict[int, Exception] = {}
        part = _Part(logits, rows)
        for additions in self._own:
            attempt(of_rows, add, additions, logits)
        if ngrams:
            attempt(failed, self._ban_ngrams, part, history, ngrams, longest)
        if dry:
            attempt(failed, self._penalize_repetitions, part, history, longest)
        if biases:
            attempt(failed, self._add_biases, part, biases)
        if places:
            attempt(failed, self._run_automata, part, history, places, bool(allows))
        if of_rows or failed:
            requests = part.rows
            failed |= {int(requests[row]): error for row, error in of_rows.items()}
            for slot, error in failed.items():
                if (request := self._requests.get(slot)) is not None:
                    self.fail(slot, error, request.stop_token_id)
                    _force_end(part.of_row(slot).logits, request.stop_token_id)

    def _ban_ngrams(self, part: _Part, history: History, ngrams: int, longest: int) -> None:
        rules, tables = self._ngrams.first(ngrams), self._device_tables
        ban_ngrams(part.logits, history, part.of, rules, tables, self._vocab_size, longest)

    def _penalize_repetitions(self, part: _Part, history: History, longest: int) -> None:
        rules, values = self._dry.first(1)[0], self._penalties.first(1)[0]
        self._penalize.launch(
            part.logits, history, part.of, rules, values, self._vocab_size, longest
        )

    def _add_biases(self, part: _Part, biases: int) -> None:
        values = self._biases.first(biases)
        add_prompt_biases(part.logits, part.of, values, self._masks, self._vocab_size)

    def _run_automata(self, part: _Part, history: History, places: int, allows: bool) -> None:
        rows = len(part.of)
        placed = self._placed.first(1 + INPUTS * places)
        states = self._advance.launch(history, part.of, placed, self._state_of(_FREE))
        starts = self._multiples(places, rows + 1)
        self._edit.launch(
            part.logits, self._multiples(1, rows), starts, states, rows, allows=allows
        )

    def _multiples(self, factor: int, count: int) -> torch.Tensor:
        """Return the first ``count`` or more multiples of ``factor``, cached if possible."""
        multiples = self._kept_multiples.get(factor)
        if multiples is None or len(multiples) < count:
            multiples = torch.arange(2 * count, dtype=torch.int32, device=self._device) * factor
            self._kept_multiples[factor] = multiples
        return multiples

    def _run_code(
        self, logits: torch.Tensor, history: History, rows: LogitsLayout, slots: Ints
    ) -> list[Additions]:
        """Run the requests' own code, one row after the other. This waits for the device."""
        tokens: dict[int, tuple[list[int], list[int]]] = {}
        for slot in slots[self._counts[_CODE, slots] != 0].tolist():
            length, prompt = int(history.lengths[slot]), int(history.prompt_lengths[slot])
            if not length:  # no request: the engine measures the cost of a step
                continue
            ids = history.token_ids[slot, :length].tolist()
            tokens[slot] = ids[:prompt], ids[prompt:]
        drafts, row_tokens = rows.drafts.tolist(), rows.token_ids.tolist()
        additions: list[Additions] = []
        for row, slot in enumerate(rows.requests.tolist()):
            if slot not in tokens:
                continue
            request = self._requests[slot]
            drafted = row_tokens[row + 1 - drafts[row] : row + 1]
            if request.code is None or min(drafted, default=0) < 0:  # a gap, not a draft
                continue
            prompt_ids, output_ids = tokens[slot]
            try:
                additions += request.code.run(prompt_ids, output_ids + drafted, logits, row)
            except Exception as error:
                self.fail(slot, error, request.stop_token_id)
                del tokens[slot]
        return additions

    def _upload(self, history: History) -> None:
        for slot in self._stale & self._requests.keys():
            request = self._requests[slot]
            try:
                if request.biases:
                    self._make_masks(len(request.biases))
            except Exception as error:
                self.fail(slot, error, request.stop_token_id)
        if not self._has_room():
            in_use = [one for request in self._requests.values() for one in request.in_tables()]
            self._stale |= self._requests.keys()  # all automata move
            self._tables.rebuild([_FREE, *in_use])
        for slot in self._stale:
            self._lay_out(slot)
        self._device_tables.update()
        for inputs in (self._placed, self._ngrams, self._dry, self._penalties, self._biases):
            inputs.upload()
        for slot in self._stale & self._requests.keys():
            for i, (_, holder) in enumerate(self._requests[slot].biases):
                excluded = self._state_of(holder)
                mark_prompt(self._masks, i, slot, history, self._device_tables, excluded)
        self._stale.clear()

    def _make_masks(self, biases: int) -> None:
        """Make room for ``biases`` masks of each request."""
        if len(self._masks) < biases:
            masks = self._masks.new_zeros((biases, *self._masks.shape[1:]))
            masks[: len(self._masks)] = self._masks
            self._masks = masks

    def _has_room(self) -> bool:
        """Put new automata into the tables; ``False`` if there is no room, or far too much."""
        tables, requests = self._tables, self._requests
        coming = [requests[slot] for slot in self._stale if slot in requests]
        wanted = [_FREE, *(one for request in coming for one in request.in_tables())]
        return all(tables.base_of(automaton) is not None for automaton in wanted) and not (
            tables.is_mostly_unused(one for each in requests.values() for one in each.in_tables())
        )

    def _lay_out(self, slot: int) -> None:
        """Write the kernels' inputs for a request."""
        request = self._requests.get(slot, _NOBODY)
        placed = [self._admissions[slot]]
        for one, (read, state, timer) in zip(request.automata, request.read, strict=True):
            placed += [self._state_of(one), read, state, timer]
        self._placed.put(slot, placed)
        ngrams = [
            (n, window, self._state_of(holder), output_only)
            for n, window, holder, output_only in request.ngrams
        ]
        self._ngrams.put(slot, ngrams)
        dry = [
            (allowed, window, self._state_of(holder)) for allowed, window, holder, _ in request.dry
        ]
        self._dry.put(slot, dry)
        self._penalties.put(slot, [values for *_, values in request.dry])
        self._biases.put(slot, [bias for bias, _ in request.biases])

    def _state_of(self, automaton: Automaton) -> int:
        base = self._tables.base_of(automaton)
        assert base is not None  # automata in use are kept
        return base


_NOBODY = _Request(None)


def _force_end(rows: torch.Tensor, stop_token_id: int | None) -> None:
    """End a request in this very step, because it has only part of its edits."""
    try:
        if stop_token_id is not None:
            rows[:] = 0  # another token may have been forced
            rows[:, stop_token_id] = highest_logit(rows.dtype)
    except Exception:
        logger.debug("It ends one token later", exc_info=True)

"""Realization on the host: the requests of a batch, their programs, and their logits' edits."""

import logging
from collections.abc import Mapping, Sequence
from functools import singledispatch
from typing import Any

import numpy as np
import torch

from ....spec import SpecError
from ..callables import Report, RequestCallables, instantiate, log_by
from ..kinds.forced_sequence import ending
from ..logits import Additions, joined
from ..program import Program, ProgramOf
from .batch import FOLDED, AutomatonBatch
from .editor import Editor
from .ngrams import LENGTH, NgramBatch
from .numpy_editor import NumpyEditor
from .prompt_biases import PromptBiases
from .state_table import Failures, Request, StateTable
from .torch_editor import TorchEditor

logger = logging.getLogger(__name__)


class Realizer:
    """Realizes programs on the rows of one engine's batch.

    An adapter reports which request is in which row, and passes the logits. A failure of a
    request's specs never raises. It ends this request and affects no other.

    Args:
        vocab_size: the number of tokens. Logits may have more columns, which are not edited,
            except that ALLOW excludes them.
        program_of: returns the program of a request that ``enter`` is given, or ``None``. If it
            raises, the request is ended. By default ``enter`` is given the program itself.
        report: called for each request that fails; by default it logs a line.

    Attributes:
        failed_requests: the number of requests that were ended because their specs failed.
    """

    def __init__(
        self,
        vocab_size: int,
        program_of: ProgramOf = lambda program: program,
        report: Report | None = None,
    ) -> None:
        self._vocab_size = vocab_size
        self._program_of = program_of
        self._report = report or log_by("row")
        self._requests: dict[int, Request] = {}
        self._entered: dict[int, tuple[Any, Any]] = {}  # request and output, by row, for ``sync``
        self._with_code: dict[Request, RequestCallables] = {}
        self._automata = AutomatonBatch()
        self._ngrams = NgramBatch(vocab_size)
        self._prompt_biases = PromptBiases(vocab_size)
        self._editor: Editor | None = None  # made when the device is known
        self._failed: Failures = {}  # in this step
        self._unended: list[Request] = []  # their end has failed, and is tried again
        self._own: list[Additions] | None = None  # own code's additions, once it has run in a step
        self.failed_requests = 0

    def __len__(self) -> int:
        return len(self._requests)

    @property
    def rows(self) -> list[int]:
        """The rows that have a program, in any order."""
        return list(self._requests)

    @property
    def outputs(self) -> list[Sequence[int]]:
        """The output ids of the requests that have a program, as ``add`` was given them."""
        return [request.output_ids for request in self._requests.values()]

    def enter(
        self,
        row: int,
        request: Any,
        prompt_ids: Sequence[int] | None,
        output_ids: Sequence[int],
        stop_token_id: int | None = None,
    ) -> None:
        """Put a request, as ``program_of`` takes it, into a row, and ``add`` its program.

        Without a program, the row stays empty. If its specs cannot be realized, the request ends.
        """
        try:
            program = self._program_of(request)
            if program is not None and program.reads_prompt and prompt_ids is None:
                raise SpecError("The specs look at the prompt, which is one of embeddings")
        except Exception as error:
            self.fail(row, error, output_ids, stop_token_id)
        else:
            if program is None:
                self.remove(row)
            else:
                self.add(row, program, prompt_ids, output_ids, stop_token_id)
        self._entered[row] = request, output_ids

    def sync(self, row: int, request: Any, output_ids: list[int]) -> bool:
        """Follow a request whose whole output the engine passes at each step.

        Returns:
            Whether an equal request has entered this row, and its output is unchanged or one token
            longer. That token is appended. Otherwise the request must ``enter`` anew.
        """
        entered, known = self._entered.get(row, (None, None))
        if known is None or entered != request:
            return False
        count = len(known)
        if len(output_ids) - count not in (0, 1) or output_ids[:count] != known:
            return False
        known += output_ids[count:]
        return True

    def append(self, token_ids: Sequence[int]) -> None:
        """Append the newest tokens, given by row, to the outputs of the requests that entered."""
        for row, (_, output_ids) in self._entered.items():
            output_ids.append(token_ids[row])

    def truncate(self, rows: int) -> None:
        """Remove the requests that have entered row ``rows`` or a later row."""
        for row in [row for row in self._entered if row >= rows]:
            self.remove(row)

    def add(
        self,
        row: int,
        program: Program,
        prompt_ids: Sequence[int] | None,
        output_ids: Sequence[int],
        stop_token_id: int | None = None,
    ) -> None:
        """Put a request into a row, in place of any that is there.

        Args:
            row: the row of the logits.
            program: the compiled form of the request's specs.
            prompt_ids: the prompt's token ids; ``None`` for a prompt of embeddings.
            output_ids: the output's token ids so far. The engine keeps appending to this object;
                -1 stands for a token that is not known yet. The engine may take tokens back. Before
                the next ``apply`` it may put as many others in their place, or one more. This is
                noticed if the formerly last token differs now, and an automaton has read it. It is
                not noticed if that token is the same again, or was forced.
            stop_token_id: a token that makes the engine end the request if its specs fail.
        """
        self.remove(row)
        request = Request(
            () if prompt_ids is None else prompt_ids,
            output_ids,
            row=row,
            stop_token_id=stop_token_id,
        )
        self._requests[row] = request
        try:
            automata, code = instantiate(program, self._vocab_size)
            if code is not None:
                self._with_code[request] = code
            self._automata.start(request, automata)
            if program.prompt_biases:
                self._prompt_biases.start(request, program.prompt_biases)
            if program.history_rules:
                self._ngrams.start(request, program.history_rules)
        except Exception as error:
            self._fail(request, error)
        finally:
            request.drop_arrays()

    def remove(self, row: int) -> None:
        """Remove the request in a row, if there is one."""
        self._entered.pop(row, None)
        request = self._requests.pop(row, None)
        if request is not None:
            self._stop(request)

    def _stop(self, request: Request) -> None:
        """Let nothing act on a request any more, whatever fails."""
        self._with_code.pop(request, None)
        while request.entries:
            entry = request.entries.pop()
            try:
                entry.table.delete(entry.slot)
            except Exception:
                _delete(entry.table, entry.slot)
        try:
            self._automata.give_back()
        except Exception:
            logger.debug("No memory to give memory back", exc_info=True)

    def move(self, source: int, destination: int) -> None:
        """Move the request in row ``source``; a request in ``destination`` is removed."""
        if source != destination:
            self.remove(destination)
            self.rearrange({source: destination})

    def swap(self, a: int, b: int) -> None:
        """Exchange the requests in two rows."""
        self.rearrange({a: b, b: a})

    def rearrange(self, new_rows: Mapping[int, int]) -> None:
        """Move several requests at once.

        Args:
            new_rows: the new row for each current row. If a new row has a request already, that
                request must move as well.
        """
        entered = {new: self._entered.pop(row, None) for row, new in new_rows.items()}
        self._entered |= {row: each for row, each in entered.items() if each is not None}
        moving = {row: self._requests.pop(row, None) for row in new_rows}
        for row, request in moving.items():
            if request is not None:
                request.row = new_rows[row]
                self._requests[request.row] = request
                for entry in request.entries:
                    entry.table.set_row(entry.slot, request.row)

    def apply(self, logits: Any) -> None:
        """Edit the logits of the next tokens in place.

        Args:
            logits: ``[rows, columns]``, of a floating-point type: a torch tensor, a numpy array, or
                another array that ``editor_for`` has an editor for.
        """
        if not self._requests:
            return
        self._own = None
        try:
            try:
                self._apply(logits)
            except Exception:
                self._apply(logits)  # a brief shortage must not end any request
        except Exception as error:
            self._end_until_it_works(logits, error)

    def _end_until_it_works(self, logits: Any, error: Exception) -> None:
        """End requests with specs until it works, after a bug in logitport or lack of memory."""
        self._editor = None
        requests = list(reversed(self._requests.values()))  # the newest first
        for request in requests + requests:  # if an end fails, the request goes on without it
            self._fail(request, error)
            try:
                self._apply(logits)
                return
            except Exception:
                logger.debug("It is not enough that row %d is ended", request.row, exc_info=True)

    def _apply(self, logits: Any) -> None:
        """Do the remaining work of this step. If this raises, the editor has done nothing."""
        while self._unended:
            request = self._unended.pop()
            if self._requests.get(request.row) is request:
                try:
                    self._end(request)
                except Exception as error:
                    self._fail(request, error)
        self._apply_update(logits)
        if self._own is None:
            own: list[Additions] = []
            failed = self._run_code(logits, own) if self._with_code else None
            self._own = own
            if failed:
                for request, error in failed.items():
                    self._fail(request, error)
                self._apply_update(logits)
        # Not sooner: if joining fails, the code has run, and must not run again.
        additions = [joined(self._own)] if self._own else []
        if len(self._prompt_biases):
            additions += self._prompt_biases.additions()
        if len(self._ngrams):
            additions += self._ngrams.additions()
        assert self._editor is not None  # ``_apply_update`` has made it
        for row, error in self._editor.apply(logits, additions).items():
            if (request := self._requests.get(row)) is not None:
                self._fail(request, error)
                self._force_end(request, logits)

    def _force_end(self, request: Request, logits: Any) -> None:
        """End a request in this very step, because it has only part of its edits."""
        assert self._editor is not None
        if request.stop_token_id is not None:
            try:
                self._editor.force(logits, request.row, request.stop_token_id)
            except Exception:
                logger.debug("It ends one token later", exc_info=True)

    def _apply_update(self, logits: Any) -> None:
        """Bring all states and the editor's plan up to date."""
        automata, failed = self._automata, self._failed
        automata.advance(failed)
        if len(self._ngrams):
            self._ngrams.advance(failed)
        while failed:
            self._fail(*failed.popitem())
        if self._editor is None:
            self._editor = editor_for(logits, automata, self._vocab_size)
            automata.changed = True
        if automata.moved or automata.changed:
            self._editor.update()
            automata.moved = False

    def _run_code(self, logits: Any, additions: list[Additions]) -> Failures:
        """Run the requests' own code, one request after the other."""
        assert self._editor is not None  # ``_apply_update`` has made it
        failed: Failures = {}
        with self._editor.as_tensor(logits) as tensor:
            for request, code in self._with_code.items():
                try:
                    prompt_ids, output_ids = request.prompt_ids, request.output_ids
                    additions += code.run(prompt_ids, output_ids, tensor, request.row)
                except Exception as error:
                    failed[request] = error
        return failed

    def fail(
        self, row: int, error: Exception, output_ids: Sequence[int], stop_token_id: int | None
    ) -> None:
        """End the request in a row, because the adapter could not make a program of its specs."""
        self.remove(row)
        self._requests[row] = request = Request(
            (), output_ids, row=row, stop_token_id=stop_token_id
        )
        self._fail(request, error)

    def _fail(self, request: Request, error: Exception) -> None:
        """End a request. If its end fails too, it goes on without its specs."""
        self._stop(request)
        if request.ends:
            logger.error("Row %d, which was to end, goes on without its specs", request.row)
            self._requests.pop(request.row, None)
            return
        self.failed_requests += 1
        request.ends = request.stop_token_id is not None
        if not request.ends:
            self._requests.pop(request.row, None)
        try:
            self._end(request)
        except Exception:  # the next step tries once more
            self._unended.append(request)
        try:
            self._report(request.row, error, request.ends)
        except Exception:
            logger.exception("The failure of a request cannot be told")

    def _end(self, request: Request) -> None:
        if request.stop_token_id is not None:
            self._automata.start(request, [ending(request.stop_token_id)])


def _delete(table: StateTable, slot: int) -> None:
    """Free a slot after the table's own ``delete`` has failed."""
    if slot >= 0:
        StateTable.delete(table, slot)
        if slot < len(table):  # the slot's new entry is read anew
            if isinstance(table, AutomatonBatch):
                table.values[FOLDED, slot] = -2
            elif isinstance(table, NgramBatch):
                table.values[LENGTH, slot] = -2


@singledispatch
def editor_for(logits: Any, automata: AutomatonBatch, vocab_size: int) -> Editor:
    """Make the editor for a kind of array. Adapters register editors for their engines' arrays.

    Args:
        logits: an array; only its type and its device matter.
        automata: the automata to follow.
        vocab_size: the number of tokens.

    Raises:
        TypeError: if there is no editor for this kind of array.
    """
    raise TypeError(f"Expected logits that there is an editor for, got {type(logits).__name__}")


@editor_for.register
def _(logits: np.ndarray, automata: AutomatonBatch, vocab_size: int) -> Editor:
    return NumpyEditor(automata, vocab_size)


@editor_for.register
def _(logits: torch.Tensor, automata: AutomatonBatch, vocab_size: int) -> Editor:
    if logits.device.type == "cuda":  # the type of ROCm devices, too
        try:
            from .triton_editor import TritonEditor
        except ImportError as error:
            logger.warning("No Triton (%s): logits are edited with torch operations", error)
        else:
            return TritonEditor(automata, vocab_size, logits.device)
    return TorchEditor(automata, vocab_size)

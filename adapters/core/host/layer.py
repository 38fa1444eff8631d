"""A layer of edits on the host: the requests of a batch, their programs, their logits' edits."""

import logging
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np

from ....spec import AllowedTokensSpec, SpecError
from ..automaton import UnknownTokenError
from ..automaton.folding import fold_together
from ..callables import Report, RequestCallables, instantiate, log_by, stop_in
from ..kinds.forced_sequence import ending
from ..kinds.prompt_bias import bias_towards
from ..parts import Program
from ..program import ProgramOf, compile_specs
from .advance import Automata
from .editors import Editor, Edits
from .history_rules import HistoryRules
from .last_resort import LastResort
from .registry import check_logits, editor_for
from .requests import Outputs, Request
from .warm_up import compile_loops, wait_for_loops

logger = logging.getLogger(__name__)


class Layer:
    """Realizes programs on the rows of one engine's batch; see ``Realizer``.

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
        self._editor: Editor | None = None  # made when the device is known
        self._with_code: dict[Request, RequestCallables] = {}
        self._last_resort = LastResort()
        self._has_run = False  # the requests' own code, in this step
        self.failed_requests = 0
        self._forget()
        compile_loops()

    def _forget(self) -> None:
        """Begin without any state."""
        self._automata = Automata()
        self._outputs = Outputs()
        self._edits = Edits(self._automata, self._vocab_size)
        self._is_broken = False  # the state must be made again from the tokens

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
            output_ids: the output's token ids so far, and -1 for a token that is not known yet. The
                engine may append tokens to this object and take tokens back; if it puts as many in
                their place, or one more, then another token than before must be where the last was.
            stop_token_id: a token that makes the engine end the request if its specs fail.
        """
        self.remove(row)
        stop = stop_in(self._vocab_size, stop_token_id)
        prompt = () if prompt_ids is None else prompt_ids
        self._requests[row] = request = Request(prompt, output_ids, row, stop)
        try:
            if program.reads_prompt and prompt_ids is None:
                raise SpecError("The specs read the prompt, which has embeddings and no token ids")
            automata, code = instantiate(program, self._vocab_size)
            if code is not None:
                self._with_code[request] = code
            self._last_resort.put(request, stop_in(self._vocab_size, program.end_token))
            request.rules, request.automata = program.history_rules, automata
            if program.prompt_biases:
                biases = bias_towards(
                    program.prompt_biases, request.prompt_array(), self._vocab_size
                )
                request.automata = [*automata, biases]
            self._try_to_place(request)
        except Exception as error:
            self._fail(request, error)
        finally:
            request.drop_arrays()

    def _try_to_place(self, request: Request) -> None:
        """Place a request; a brief shortage must not end it."""
        try:
            self._place(request)
        except UnknownTokenError:
            raise
        except Exception:
            self._place(request)

    def _place(self, request: Request) -> None:
        """Let a request's automata and rules act, as its tokens say; all of them, or none."""
        if self._is_broken:
            return  # the next step makes all state again
        try:
            places, rules = fold_together(request.automata, request), None
            if request.rules:
                prompt, output = request.prompt_array(), request.output_array()
                rules = HistoryRules(request.rules, prompt, output, request.automata)
            follow = self._outputs.prepare(request) if request.reads_output else None
            request.index = self._automata.add(request, request.automata, places)
            if rules is not None:
                self._edits.rules[request] = rules
            if follow is not None:
                self._outputs.add(*follow)
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
        self._edits.rules.pop(request, None)
        self._last_resort.remove(request)
        self._outputs.remove(request)
        if self._with_code.pop(request, None) is not None:
            self._edits.own = [each for each in self._edits.own if each[0] is not request]
        index, request.index = request.index, -1
        if self._is_broken:
            self._automata.clear()
        if index < 0 or self._is_broken:
            return
        moved = self._automata.remove(index)
        if moved is not request:
            moved.index = index
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
        self._automata.generation += 1

    def warm_up(self, logits: Any) -> None:
        """Have Triton compile, if it is to edit logits like these, so that no request waits for it.

        This uses a realizer of its own, as ``DeviceRealizer.warm_up`` does. Where the host edits,
        nothing is done: the loops are compiled beside what else a worker does when it starts.
        """
        if editor_for(logits).compiles:
            layer = Layer(self._vocab_size)
            layer.add(0, compile_specs((AllowedTokensSpec((0,)),)), [], [])
            layer.apply(logits)

    def apply(self, logits: Any) -> None:
        """Edit the logits of the next tokens in place.

        If a step fails before it has edited any logit, all state is made again from the tokens, and
        the step is tried once more. If it fails again, or later, all requests with specs end.

        Args:
            logits: ``[rows, columns]``, of a floating-point type: a torch tensor, a numpy array, or
                another array that ``editor_for`` has an editor for.
        """
        if not self._requests:
            return
        wait_for_loops()
        self._has_run = False
        try:
            try:
                self._step(logits)
            except Exception:
                if self._editor is not None and self._editor.has_written:
                    raise
                logger.debug("The state is made again", exc_info=True)
                self._is_broken = True
                self._step(logits)
        except Exception as error:
            self._end_all(logits, error)

    def _step(self, logits: Any) -> None:
        if self._editor is None:
            check_logits(logits)
            self._editor = editor_for(logits)
        self._editor.has_written = False
        if self._with_code and not self._has_run:
            self._run_code(logits, self._editor)
            self._has_run = True
        if self._is_broken:
            self._rebuild()
        automata = self._automata
        if self._outputs.requests:
            for request, error in self._outputs.read(automata, self._edits.rules):
                self._fail(request, error)
            if automata.advance():
                failed = np.flatnonzero(automata.failed[: len(automata)]).tolist()
                for request in [automata.requests[i] for i in failed]:
                    self._fail(request, UnknownTokenError())
        for request, rules in self._edits.rules.items():
            rules.follow(automata, request.index)
        self._last_resort.look(logits, self._editor)
        if automata.requests:
            self._editor.apply(logits, self._edits)
        self._last_resort.apply(logits, self._editor, automata)

    def _run_code(self, logits: Any, editor: Editor) -> None:
        """Run the requests' own code, one request after the other."""
        failed: list[tuple[Request, Exception]] = []
        self._edits.own = []
        is_read = any(code.reads_logits for code in self._with_code.values())
        with editor.as_tensor(logits) if is_read else nullcontext(logits) as tensor:
            for request, code in self._with_code.items():
                try:
                    prompt_ids, output_ids = request.prompt_ids, request.output_ids
                    for added in code.run(prompt_ids, output_ids, tensor, request.row):
                        tokens = added.cells.token_ids.astype(np.int32)
                        self._edits.own.append((request, (tokens, added.values)))
                except Exception as error:
                    failed.append((request, error))
        for request, error in failed:
            self._fail(request, error)

    def _rebuild(self) -> None:
        """Make all state again from the requests' tokens."""
        own = self._edits.own
        self._forget()
        self._edits.own = own
        for request in self._requests.values():
            request.index = -1
        for request in list(self._requests.values()):
            try:
                self._try_to_place(request)
            except Exception as error:
                self._fail(request, error)
        if self._is_broken:  # an end failed, so that the requests after it were not placed
            raise RuntimeError("The state of a step could not be made")

    def _end_all(self, logits: Any, error: Exception) -> None:
        """End all requests with specs, in this very step if possible."""
        has_written = self._editor is not None and self._editor.has_written
        self._editor, self._is_broken = None, True
        for request in list(self._requests.values()):
            self._fail(request, error)
        try:
            if not has_written:
                self._step(logits)
                return
        except Exception:
            logger.debug("All state is made again in the next step", exc_info=True)
            self._editor, self._is_broken = None, True
        for request in self._requests.values():
            try:
                if request.stop_token_id is not None:
                    editor_for(logits).force(logits, request.row, request.stop_token_id)
            except Exception:
                logger.debug("Row %d ends one token later", request.row, exc_info=True)

    def fail(
        self, row: int, error: Exception, output_ids: Sequence[int], stop_token_id: int | None
    ) -> None:
        """End the request in a row, because the adapter could not make a program of its specs."""
        self.remove(row)
        stop = stop_in(self._vocab_size, stop_token_id)
        self._requests[row] = request = Request((), output_ids, row, stop)
        self._fail(request, error)

    def _fail(self, request: Request, error: Exception) -> None:
        """End a request. If its end fails too, it goes on without its specs."""
        self._stop(request)
        if request.ends:
            logger.error("Row %d could not be ended and continues without its specs", request.row)
            self._requests.pop(request.row, None)
            return
        self.failed_requests += 1
        request.rules = ()
        if request.stop_token_id is None:
            self._requests.pop(request.row, None)
        else:
            request.ends = True
            try:
                request.automata = [ending(request.stop_token_id)]
                self._try_to_place(request)
            except Exception:  # the next step tries once more
                self._is_broken = True
        try:
            self._report(request.row, error, request.ends)
        except Exception:
            logger.exception("The failure of a request cannot be reported")

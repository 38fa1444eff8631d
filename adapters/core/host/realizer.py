"""Realization on the host: the requests of a batch, their programs, and their logits' edits."""

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np

from ....spec import (
    AllowedTokensSpec,
    DrySpec,
    NoLoopSpec,
    NoRepeatNgramSpec,
    SpecError,
    ThinkingBudgetSpec,
    TriggerSpec,
)
from ..automaton import Lane, UnknownTokenError
from ..automaton.automata import Automata
from ..automaton.history import Continued, check_continued
from ..callables import Report, RequestCallables, stop_in
from ..kinds.prompt_bias import bias_towards
from ..layer import Layer, Made, Tokens
from ..logits import write_twice
from ..parts import Acting, Mark, Program
from ..program import ProgramOf, compile_specs
from ..warm_up import compile_loops, wait_for_loops
from .editors import Editor, Edits
from .history_rules import HistoryRules
from .last_resort import LastResort
from .registry import check_logits, editor_for
from .requests import Outputs, Request

logger = logging.getLogger(__name__)


class Realizer(Layer):
    """Realizes programs on the rows of one engine's batch.

    The output ids of a request are its engine's object. The engine may append tokens to it, -1 for
    one that is not known yet, and take tokens back. If it puts as many in their place, or one more,
    then another token than before must be where the last was.

    ALLOW excludes the columns of logits that are beyond the vocabulary; nothing else edits these.
    """

    numbered = "row"

    def __init__(
        self,
        vocab_size: int,
        program_of: ProgramOf = lambda program: program,
        report: Report | None = None,
    ) -> None:
        super().__init__(vocab_size, program_of, report)
        self._editor: Editor | None = None  # made when the device is known
        self._with_code: dict[Request, RequestCallables] = {}
        self._last_resort = LastResort()
        self._forget()
        compile_loops(take_steps)

    def _forget(self) -> None:
        """Begin without any state."""
        self._automata = Automata()
        self._outputs = Outputs()
        self._edits = Edits(self._automata, self._vocab_size)
        self._is_broken = False

    def _layer_of_guards(self) -> "Realizer":
        return Realizer(self._vocab_size, report=self._report_guard)

    @property
    def rows(self) -> list[int]:
        """The rows that have a program, in any order."""
        return list(self._requests)

    @property
    def outputs(self) -> list[Sequence[int]]:
        """The output ids of the requests that have a program, as ``enter`` was given them."""
        return [output for row, (_, output) in self._entered.items() if row in self._requests]

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

    def read_again(self, row: int) -> None:
        """Read the whole output of a row at the next step: more than its end may have changed."""
        self._outputs.forget(self._requests.get(row))

    def truncate(self, rows: int) -> None:
        """Remove the requests that have entered row ``rows`` or a later row."""
        for row in [row for row in self._entered if row >= rows]:
            self.remove(row)

    def _start(
        self, number: int, program: Program, made: Made, tokens: Tokens, stop: int | None
    ) -> None:
        (lanes, code), (prompt_ids, output_ids) = made, tokens
        if prompt_ids is None:
            check_continued(program.continued, None)
            if program.reads_prompt:
                raise SpecError("The specs read the prompt, which has embeddings and no token ids")
        prompt_ids = () if prompt_ids is None else prompt_ids
        end = stop_in(self._vocab_size, program.end_token)
        request = Request(prompt_ids, output_ids, number, stop, end, lanes, program.since)
        try:
            for phase, specs in program.prompt_biases.items():
                prompt = request.prompt_array()
                lanes.append(Lane(bias_towards(specs, prompt, self._vocab_size), phase))
            request.rules = program.history_rules
            request.chain = next(iter(program.chains), None)
            if request.chain is not None and not request.chain.temperature:
                raise SpecError("A chain needs the request's temperature, which has not been given")
            if code is not None:
                self._with_code[request] = code
            self._put(request)
        finally:
            request.drop_arrays()

    def _start_end(self, number: int, stop: int) -> None:
        self._put(Request((), (), number, stop, lanes=self._ending(stop), ends=True))

    def _put(self, request: Request) -> None:
        """Let a request act, as its tokens say."""
        self._requests[request.row] = request
        if self._is_broken:
            return  # the next step makes all state again
        try:
            self._place(request)
        except (UnknownTokenError, SpecError):
            raise
        except Exception:
            logger.debug("The next step makes the state again", exc_info=True)
            self._is_broken = True

    def _place(self, request: Request) -> None:
        """Make a request's state from its tokens, and let it act."""
        try:
            rules = None
            if request.rules:
                prompt, output = request.prompt_array(), request.output_array()
                stop = request.stop_token_id
                rules = HistoryRules(request.rules, prompt, output, request.lanes, stop)
            self._is_broken = True  # if the rest fails: what others have may be half changed
            try:
                automata = self._automata
                own = request.lanes, request.since, request, rules and rules.watch
                request.index = automata.add(request, *own)
            except (UnknownTokenError, SpecError):
                self._is_broken = False  # this request alone has failed
                raise
            if rules is not None:
                self._edits.rules[request] = rules
            if request.chain is not None:
                self._edits.chains[request] = request.chain
            if request.reads_output:
                self._outputs.add(request)
            self._is_broken = False
        finally:
            request.drop_arrays()

    def _stop(self, number: int, request: Request) -> None:
        self._edits.rules.pop(request, None)
        self._edits.chains.pop(request, None)
        self._outputs.remove(request)
        if self._with_code.pop(request, None) is not None and self._own is not None:
            self._own = self._edits.own = [each for each in self._own if each[0] is not request]
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
            self._is_broken = True

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
        for by_row in (self._entered, self._requests):
            moving = {new: by_row.pop(row, None) for row, new in new_rows.items()}
            by_row |= {row: each for row, each in moving.items() if each is not None}
        for row in new_rows.values():
            if row in self._requests:
                self._requests[row].row = row
        self._automata.generation += 1
        if self._guards is not None:
            self._guards.rearrange(new_rows)

    def warm_up(self, logits: Any) -> None:
        """Have Triton compile, if it is to edit logits like these, so that no request waits for it.

        This uses a realizer of its own, as ``DeviceRealizer.warm_up`` does. Where the host edits,
        nothing is done: the loops are compiled beside what else a worker does when it starts.
        """
        if editor_for(logits).compiles:
            realizer = Realizer(self._vocab_size)
            realizer.add(0, compile_specs((AllowedTokensSpec((0,)),)), [], [])
            realizer.apply(logits)

    def apply(self, logits: Any) -> None:
        """Edit the logits of the next tokens in place.

        If a step fails before it has edited any logit, all state is made again from the tokens, and
        the step is tried once more. If it fails again, or later, all requests with specs end.

        Args:
            logits: ``[rows, columns]``, of a floating-point type: a torch tensor, a numpy array, or
                another array that ``editor_for`` has an editor for.
        """
        if self._requests:
            wait_for_loops()
            self._apply(logits)
        if self._guards is not None:
            self._guards.apply(logits)

    @property
    def _has_written(self) -> bool:
        return self._edits.has_written

    def _step(self, step: Any) -> None:
        self._edits.has_written = False
        if self._editor is None or self._is_broken:
            check_logits(step)
            self._editor = editor_for(step)
        if self._is_broken:
            self._rebuild()
        if self._with_code and self._own is None:
            self._run_code(step, self._editor)
        automata = self._automata
        if self._outputs.requests:
            self._fail(self._outputs.read(automata, self._edits.rules))
            if automata.advance():
                failed = np.flatnonzero(automata.failed[: len(automata)]).tolist()
                self._fail([(automata.requests[i], UnknownTokenError()) for i in failed])
        self._follow_history()
        self._last_resort.look(step, self._editor, automata)
        if automata.requests:
            shaped = self._edits.shape(step, self._editor)
            drawn = self._edits.draw(step, self._editor, shaped)
            self._edits.own = [*(self._own or ()), *drawn]
            self._editor.apply(step, self._edits)
            if shaped:
                write_twice(self._edits.write_shaped, step, self._editor, shaped)
            self._edits.own = []  # it has requests
        self._last_resort.apply(step, self._editor)

    def _follow_history(self) -> None:
        """Let history rules follow the automata; a grammar without a way on ends its request."""
        failed: list[tuple[Request, Exception]] = []
        for request, rules in self._edits.rules.items():
            try:
                rules.follow(self._automata, request.index)
            except SpecError as error:
                failed.append((request, error))
        self._fail(failed)

    def _rebuild(self) -> None:
        """Make all state again from the requests' tokens."""
        failed: list[tuple[Request, Exception]] = []
        self._forget()
        for request in self._requests.values():
            request.index = -1
        for request in self._requests.values():
            try:
                self._place(request)
            except Exception as error:
                if self._is_broken:
                    raise
                failed.append((request, error))
        self._fail(failed)

    def _run_code(self, logits: Any, editor: Editor) -> None:
        """Run the requests' own code, one request after the other."""
        failed: list[tuple[Request, Exception]] = []
        own = list[Any]()
        is_read = any(code.reads_logits for code in self._with_code.values())
        with editor.as_tensor(logits) if is_read else nullcontext(logits) as tensor:
            for request, code in self._with_code.items():
                try:
                    prompt_ids, output_ids = request.prompt_ids, request.output_ids
                    if isinstance(output_ids, Continued):  # code may need a list
                        output_ids = output_ids.whole()
                    for added in code.run(prompt_ids, output_ids, tensor, request.row):
                        tokens = added.token_ids.astype(np.int32)
                        own.append((request, (tokens, added.values)))
                except Exception as error:
                    failed.append((request, error))
        self._own = own
        self._fail(failed)

    def _fail(self, failed: Iterable[tuple[Request, Exception]]) -> None:
        """End requests within a step.

        Raises:
            RuntimeError: if that has left no state to go on with.
        """
        for request, error in failed:
            self.fail(request.row, error, request.stop_token_id)
        if self._is_broken:
            raise RuntimeError("The state of a step has to be made again")

    def _acting(self, step: Any) -> Collection[int]:
        return self._requests.keys()

    def _force(self, stops: Mapping[int, int | None], step: Any) -> None:
        for row, stop in stops.items():
            if stop is not None and row in self._requests:
                editor_for(step).force(step, row, stop)


def take_steps() -> None:
    """Take two steps with a little batch, which run each loop."""
    rules = NoRepeatNgramSpec(2), DrySpec(1.0), NoLoopSpec(2), NoLoopSpec(2, then_token_ids=(2,))
    realizer, output_ids = Realizer(4), [1]
    thinking = ThinkingBudgetSpec(1, (1,), (2, 3))  # it reads the prompt
    program = compile_specs((TriggerSpec((1,), (2,)), thinking, *rules))
    mark = Program((Acting(Mark("", 1, top_p=0.5, width=1)),))
    realizer.add(0, program.then(mark), [1, 0], output_ids)
    for dtype in (np.float32, np.float64):
        for layer in (realizer, realizer._guards):
            layer._step(np.zeros((1, 4), dtype))
        output_ids.append(2)

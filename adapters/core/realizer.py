"""One batch's requests, whatever acts on them, and the edits of their logits."""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch

from .automata import Automata
from .compile import Program, ending, prompt_bias
from .edits import Additions, Editor
from .ngrams import Ngrams
from .own_code import OwnCode, Report, log_by, started
from .slots import FOLDED, Failures, Request, Slots
from .torch_editor import TorchEditor

logger = logging.getLogger(__name__)


class Realizer:
    """Realizes programs on the rows of one engine's batch.

    An adapter tells it which request is in which row and hands it the logits. It never raises for
    what a request's specs do: such a request is ended, and the others do not notice.

    Args:
        vocab_size: number of tokens; logits may have more columns, which are left alone but for
            what ALLOW excludes.
        on_failure: called with the row and the reason, where an engine can end a request by other
            means than a stop token.
        report: called for each request that fails; by default a line is logged.

    Attributes:
        editor: what edits where nothing faster does.
        failed_requests: how many requests were ended because something of theirs failed.
    """

    editor: ClassVar[type[Any]] = TorchEditor

    def __init__(
        self,
        vocab_size: int,
        on_failure: Callable[[int, Exception], None] | None = None,
        report: Report | None = None,
    ) -> None:
        self._vocab_size = vocab_size
        self._on_failure = on_failure
        self._report = report or log_by("row")
        self._requests: dict[int, Request] = {}
        self._with_code: dict[Request, OwnCode] = {}
        self._automata = Automata()
        self._ngrams = Ngrams(vocab_size)
        self._editor: Editor | None = None  # made when the device is known
        self._failed: Failures = {}  # of this step
        self._unended: list[Request] = []  # whose end has failed, to be tried again
        self._has_edited = False  # in this step
        self.failed_requests = 0

    def __len__(self) -> int:
        return len(self._requests)

    @property
    def rows(self) -> list[int]:
        """The rows on which something acts, in no order."""
        return list(self._requests)

    @property
    def outputs(self) -> list[Sequence[int]]:
        """The output ids of the requests on which something acts, as ``add`` was given them."""
        return [request.output_ids for request in self._requests.values()]

    def overruled_edits(self) -> int:
        """How many edits lost to others that contradict them; see ``edits``. Waits on a device."""
        return 0 if self._editor is None else self._editor.overruled()

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
            row: row of the logits.
            program: what the request's specs compile to.
            prompt_ids: the prompt's token ids; ``None`` for a prompt of embeddings.
            output_ids: the output's token ids so far. The engine goes on appending to this very
                object; -1 stands for a token that it has not told yet. It may take tokens back.
                If it puts as many others in their place, or one more, before the next ``apply``,
                this is noticed by the token that was the last one before, where an automaton has
                looked at it. It is not where that one is the same again, or was a forced one.
            stop_token_id: a token that makes the engine end the request, for when its specs fail.
        """
        self.remove(row)
        request = Request(row, () if prompt_ids is None else prompt_ids, output_ids, stop_token_id)
        self._requests[row] = request
        try:
            automata, code = started(program, self._vocab_size)
            if code is not None:
                self._with_code[request] = code
            automata += [
                prompt_bias(spec, request.prompt_ids, self._vocab_size)
                for spec in program.prompt_biases
            ]
            self._automata.start(request, automata)
            if program.ngrams:
                self._ngrams.start(request, program.ngrams)
        except Exception as error:
            self._fail(request, error)

    def remove(self, row: int) -> None:
        """Forget the request in a row, if there is one."""
        request = self._requests.pop(row, None)
        if request is not None:
            self._stop(request)

    def _stop(self, request: Request) -> None:
        """Let nothing act on a request any more, whatever fails."""
        self._with_code.pop(request, None)
        while request.handles:
            handle = request.handles.pop()
            try:
                handle.home.delete(handle.slot)
            except Exception:
                _delete(handle.home, handle.slot)
        try:
            self._automata.give_back()
        except Exception:
            logger.debug("No memory to give memory back", exc_info=True)

    def move(self, source: int, destination: int) -> None:
        """Move the request in row ``source``; one in ``destination`` is forgotten."""
        if source != destination:
            self.remove(destination)
            self.rearrange({source: destination})

    def swap(self, a: int, b: int) -> None:
        """Exchange two rows."""
        self.rearrange({a: b, b: a})

    def rearrange(self, new_rows: Mapping[int, int]) -> None:
        """Move several requests at once.

        Args:
            new_rows: where to, by the row that a request is in. Nothing may be in a row that one
                moves to, unless it moves as well.
        """
        moving = {row: self._requests.pop(row, None) for row in new_rows}
        for row, request in moving.items():
            if request is not None:
                request.row = new_rows[row]
                self._requests[request.row] = request
                for handle in request.handles:
                    handle.home.set_row(handle.slot, request.row)

    def apply(self, logits: torch.Tensor) -> None:
        """Edit the logits of the next tokens in place.

        Args:
            logits: ``[rows, columns]`` float32, float16 or bfloat16.
        """
        if not self._requests:
            return
        self._has_edited = False
        try:
            try:
                self._apply(logits)
            except Exception:
                if self._has_edited:
                    raise
                self._apply(logits)  # nobody has to pay for what was short for a moment
        except Exception as error:  # a defect of ours: only those that use us may pay for it
            try:
                for request in list(self._requests.values()):
                    self._fail(request, error)
                self._editor = None
                self._apply(logits)
            except Exception:
                self._end_plainly(logits)

    def _end_plainly(self, logits: torch.Tensor) -> None:
        """Where a device's own kernels fail, or cannot be compiled, ``editor`` may not."""
        try:
            self._editor = editor = self.editor(self._automata)
            editor.update()
            self._apply(logits)
        except Exception:
            logger.exception("Requests that should have been ended go on without their specs")
            for row in self.rows:
                self.remove(row)
        else:
            logger.warning("Logits are edited by %s from now on", self.editor.__name__)

    def _apply(self, logits: torch.Tensor) -> None:
        while self._unended:
            if self._requests.get(self._unended[-1].row) is self._unended[-1]:
                self._end(self._unended[-1])
            self._unended.pop()
        self._follow(logits)
        additions: list[Additions] = []
        if self._with_code:
            self._has_edited = True
            failed = self._run_code(logits, additions)
            for request, error in failed.items():
                self._fail(request, error)
            if failed:
                self._follow(logits)
        assert self._editor is not None  # made as it followed
        if len(self._ngrams):
            additions += self._ngrams.bans()
        self._has_edited = True
        self._editor.apply(logits, additions)

    def _follow(self, logits: torch.Tensor) -> None:
        """Bring all states up to date, and what is laid out for the editor."""
        automata, failed = self._automata, self._failed
        automata.advance(failed)
        if len(self._ngrams):
            self._ngrams.advance(failed)
        while failed:
            self._fail(*failed.popitem())
        if self._editor is None:
            self._editor = _editor(automata, logits.device)
            automata.changed = True
        if automata.moved or automata.changed:
            self._editor.update()
            automata.moved = False

    def _run_code(self, logits: torch.Tensor, additions: list[Additions]) -> Failures:
        """Call what is not batched, one request after the other."""
        failed: Failures = {}
        for request, code in self._with_code.items():
            try:
                additions += code.run(request.prompt_ids, request.output_ids, logits, request.row)
            except Exception as error:
                failed[request] = error
        return failed

    def fail(
        self, row: int, error: Exception, output_ids: Sequence[int], stop_token_id: int | None
    ) -> None:
        """End the request in a row: the adapter could not make a program of its specs."""
        self.remove(row)
        self._requests[row] = request = Request(row, (), output_ids, stop_token_id)
        self._fail(request, error)

    def _fail(self, request: Request, error: Exception) -> None:
        self.failed_requests += 1
        self._stop(request)
        ends = request.stop_token_id is not None
        if not ends:
            self._requests.pop(request.row, None)
        try:
            self._end(request)
        except Exception:  # it is tried once more in the next step
            self._unended.append(request)
        try:
            self._report(request.row, error, ends)
            if self._on_failure is not None:
                self._on_failure(request.row, error)
        except Exception:
            logger.exception("The failure of a request cannot be told")

    def _end(self, request: Request) -> None:
        if request.stop_token_id is not None:
            self._automata.start(request, [ending(request.stop_token_id)])


def _delete(home: Slots, slot: int) -> None:
    """Free a slot whose own way of being freed has failed."""
    if slot >= 0:
        Slots.delete(home, slot)
        if slot < len(home):
            home.values[FOLDED, slot] = -2  # whoever is there now is read anew


def _editor(automata: Automata, device: torch.device) -> Editor:
    """The editor for a device; ROCm's are called ``cuda``, too."""
    if device.type == "cuda":
        try:
            from .triton_editor import TritonEditor
        except ImportError as error:
            logger.warning("No Triton (%s): logits are edited with torch operations", error)
        else:
            return TritonEditor(automata, device)
    return TorchEditor(automata)

"""One batch's requests, whatever acts on them, and the edits of their logits."""

import logging
from collections.abc import Callable, Mapping, Sequence

import torch

from .automata import Automata
from .compile import Program, ending
from .edits import Additions, Editor
from .ngrams import Ngrams
from .own_code import OwnCode, Report, log_by, started
from .prompt_biases import PromptBiases
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
        failed_requests: how many requests were ended because something of theirs failed.
    """

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
        self._prompt_biases = PromptBiases(vocab_size)
        self._editor: Editor | None = None  # made when the device is known
        self._failed: Failures = {}  # of this step
        self._unended: list[Request] = []  # whose end has failed, to be tried again
        self._own: list[Additions] | None = None  # what own code adds, once it has run in a step
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
            self._automata.start(request, automata)
            if program.prompt_biases:
                self._prompt_biases.start(request, program.prompt_biases)
            if program.ngrams:
                self._ngrams.start(request, program.ngrams)
        except Exception as error:
            self._fail(request, error)
        finally:
            request.drop_arrays()

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
        self._own = None
        try:
            try:
                self._apply(logits)
            except Exception:
                self._apply(logits)  # nobody has to pay for what was short for a moment
        except Exception as error:
            self._end_until_it_works(logits, error)

    def _end_until_it_works(self, logits: torch.Tensor, error: Exception) -> None:
        """A defect of ours, or no memory for them all: only those that use us may pay for it."""
        self._editor = None
        requests = list(reversed(self._requests.values()))  # the newest first
        for request in requests + requests:  # where their ends fail, they go on without them
            self._fail(request, error)
            try:
                self._apply(logits)
                return
            except Exception:
                logger.debug("It is not enough that row %d is ended", request.row, exc_info=True)

    def _apply(self, logits: torch.Tensor) -> None:
        """Do what has not been done in this step. Where it raises, the editor has done nothing."""
        while self._unended:
            request = self._unended.pop()
            if self._requests.get(request.row) is request:
                try:
                    self._end(request)
                except Exception as error:
                    self._fail(request, error)
        self._follow(logits)
        if self._own is None:
            own: list[Additions] = []
            failed = self._run_code(logits, own) if self._with_code else None
            self._own = own
            if failed:
                for request, error in failed.items():
                    self._fail(request, error)
                self._follow(logits)
        additions = self._own + self._prompt_biases.additions()
        if len(self._ngrams):
            additions += self._ngrams.bans()
        assert self._editor is not None  # made as it followed
        for row, error in self._editor.apply(logits, additions).items():
            if (request := self._requests.get(row)) is not None:
                self._fail(request, error)
                self._force_end(request, logits)

    def _force_end(self, request: Request, logits: torch.Tensor) -> None:
        """End a request that has only part of its edits in this very step."""
        assert self._editor is not None
        if request.stop_token_id is not None:
            try:
                self._editor.force(logits, request.row, request.stop_token_id)
            except Exception:
                logger.debug("It ends one token later", exc_info=True)

    def _follow(self, logits: torch.Tensor) -> None:
        """Bring all states up to date, and what is laid out for the editor."""
        automata, failed = self._automata, self._failed
        automata.advance(failed)
        if len(self._ngrams):
            self._ngrams.advance(failed)
        while failed:
            self._fail(*failed.popitem())
        if self._editor is None:
            self._editor = self._make_editor(logits)
            automata.changed = True
        if automata.moved or automata.changed:
            self._editor.update()
            automata.moved = False

    def _make_editor(self, logits: torch.Tensor) -> Editor:
        return _editor(self._automata, logits.device)

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
        """End a request; one that was to end already is let go."""
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
        except Exception:  # it is tried once more in the next step
            self._unended.append(request)
        try:
            self._report(request.row, error, request.ends)
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

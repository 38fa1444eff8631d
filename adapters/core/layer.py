"""What the realizers of host and device share: requests, their failures, and the guard's layer."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from ...spec import AllowedTokensSpec
from .automaton import Lane
from .automaton.history import continued
from .callables import Report, RequestCallables, instantiate, log_by, stop_in
from .kinds.simple import ending
from .parts import Program
from .program import ProgramOf, compile_specs

logger = logging.getLogger(__name__)

Made = tuple[list[Lane], RequestCallables | None]
"""What ``instantiate`` returns."""
Tokens = tuple[Sequence[int] | None, Sequence[int]]
"""The token ids of prompt and output, as ``Layer.add`` takes them."""


class Layer(ABC):
    """Realizes the programs of a batch, and the operator's guards in a layer of their own.

    A guard's layer edits last. So what an operator forbids wins over what a client forces, and a
    guard acts on a request whose own specs have failed.

    An adapter reports which request has which number, and passes the logits. A failure of a
    request's specs never raises. It ends this request and affects no other. What fails is not tried
    again by itself: the next step makes all state again from the tokens.

    Args:
        vocab_size: the number of tokens. Logits may have more columns.
        program_of: returns the program of a request that ``enter`` is given, or ``None``. If it
            raises, the request is ended. By default ``enter`` is given the program itself.
        report: called for each request that fails; by default it logs a line.

    Attributes:
        numbered: what a request's number counts: rows or slots.
        failed_requests: the number of requests that were ended because their specs failed.
    """

    numbered: ClassVar[str]
    _is_guard = False

    def __init__(
        self,
        vocab_size: int,
        program_of: ProgramOf = lambda program: program,
        report: Report | None = None,
    ) -> None:
        self._vocab_size = vocab_size
        self._program_of = program_of
        self._report = report or log_by(self.numbered)
        self._requests: dict[int, Any] = {}
        self._entered: dict[int, tuple[Any, Any]] = {}  # request and output
        self._guards: Any = None  # made with the first guard
        self._is_broken = False  # the state must be made again from the tokens
        self._own: Any = None  # additions of requests' own code, once it has run in a step
        self.failed_requests = 0

    def __len__(self) -> int:
        return len(self._requests)

    def __contains__(self, number: int) -> bool:
        """Whether something acts on a request."""
        return number in self._requests

    def enter(
        self,
        number: int,
        request: Any,
        prompt_ids: Sequence[int] | None = None,
        output_ids: Sequence[int] = (),
        stop_token_id: int | None = None,
    ) -> bool:
        """Put a request, as ``program_of`` takes it, into a row or slot, and ``add`` its program.

        Without a program, the place stays empty. If its specs cannot be realized, the request ends.

        Returns:
            Whether something acts on the request.
        """
        self.remove(number)  # an engine may leave a request in its slot until another one comes
        try:
            program = self._program_of(request)
        except Exception as error:
            self.fail(number, error, stop_token_id)
        else:
            if program is not None:
                self.add(number, program, prompt_ids, output_ids, stop_token_id)
        self._entered[number] = request, output_ids
        return number in self

    def add(
        self,
        number: int,
        program: Program,
        prompt_ids: Sequence[int] | None = None,
        output_ids: Sequence[int] = (),
        stop_token_id: int | None = None,
        made: Made | None = None,
    ) -> None:
        """Let a program act on a request, in place of any that is there.

        Args:
            number: the row or slot of the request.
            program: the compiled form of its specs.
            prompt_ids: the prompt's token ids; ``None`` for a prompt that the host does not have.
            output_ids: the output's token ids so far; see ``Realizer`` for what an engine may do to
                this object.
            stop_token_id: a token that makes the engine end the request if its specs fail.
            made: what ``instantiate`` has returned for the program, if it has been called.
        """
        if number < 0:  # no logits would be edited
            raise IndexError(f"Expected a {self.numbered} from 0, got {number}")
        self.remove(number)
        stop = stop_in(self._vocab_size, stop_token_id)
        try:
            tokens = continued(prompt_ids, output_ids, program.continued)
            if program.guard is not None and self._guards is None:
                self._guards = self._layer_of_guards()
                self._guards._is_guard = True
            lanes, code = made or instantiate(program, self._vocab_size)
            self._start(number, program, ([*lanes], code), tokens, stop)
        except Exception as error:
            self.fail(number, error, stop)
        if (guard := program.guard) is not None and self._guards is not None:
            # A client's `ignore_eos` takes its own token away.
            stop = stop if guard.end_token is None else guard.end_token
            guard = replace(guard, continued=program.continued)
            self._guards.add(number, guard, prompt_ids, output_ids, stop)

    def _ending(self, stop: int) -> tuple[Lane, ...]:
        """Return what ends a request that has failed: it forces a token.

        Another one may have been forced before a guard's layer, so none is left besides.
        """
        alone = compile_specs((AllowedTokensSpec((stop,)),)).lanes if self._is_guard else ()
        return Lane(ending(stop)), *alone

    @abstractmethod
    def _layer_of_guards(self) -> "Layer":
        """Make the layer of guards, which calls ``_report_guard``."""

    @abstractmethod
    def _start(
        self, number: int, program: Program, made: Made, tokens: Tokens, stop: int | None
    ) -> None:
        """Let what a program has been ``made`` act on a request; what fails ends it."""

    @abstractmethod
    def _start_end(self, number: int, stop: int) -> None:
        """Force a token at each step from now on; the next step tries again what fails."""

    @abstractmethod
    def _stop(self, number: int, request: Any) -> None:
        """Let nothing act on a request that is no longer in ``_requests``. This cannot fail."""

    def remove(self, number: int) -> None:
        """Remove the request in a row or slot, if there is one."""
        self._entered.pop(number, None)
        self._drop(number)
        if self._guards is not None:
            self._guards.remove(number)

    def _drop(self, number: int) -> Any:
        """Remove a request from this layer, and return it."""
        request = self._requests.pop(number, None)
        if request is not None:
            self._stop(number, request)
        return request

    def fail(self, number: int, error: Exception, stop_token_id: int | None) -> None:
        """End a request whose specs fail. If its end fails too, it goes on without its specs."""
        failed, stop = self._drop(number), stop_in(self._vocab_size, stop_token_id)
        if failed is not None and failed.ends:
            what = "%s %d could not be ended and continues without its specs"
            logger.error(what, self.numbered.capitalize(), number)
            return
        self.failed_requests += 1
        if stop is not None:
            try:
                self._start_end(number, stop)
            except Exception:
                self._is_broken = True
        try:
            self._report(number, error, number in self._requests)
        except Exception:
            logger.exception("The failure of a request cannot be reported")

    def _report_guard(self, number: int, error: Exception, ends: bool) -> None:
        """Count and report a request whose guard has failed; one counts once."""
        request = self._requests.get(number)
        self.failed_requests += request is None or not request.ends
        self._report(number, error, ends)

    def _apply(self, step: Any) -> None:
        """Make a step. After a failure, make it again from the tokens, once; then end requests.

        Once a logit may have been edited, a step that fails is not made again.
        """
        self._own = None
        try:
            try:
                self._step(step)
            except Exception:
                if self._has_written:
                    raise
                logger.debug("The state is made again", exc_info=True)
                self._is_broken = True
                self._step(step)
        except Exception as error:
            self._end(error, step)

    @property
    @abstractmethod
    def _has_written(self) -> bool:
        """Whether any logit may have been edited in this step."""

    @abstractmethod
    def _step(self, step: Any) -> None:
        """Make all state again if it ``_is_broken``, read the newest tokens, and edit the logits.

        Own code runs if ``_own`` is ``None``.
        """

    def _end(self, error: Exception, step: Any) -> None:
        """End all requests of a step, in this very step if possible."""
        has_written, self._is_broken = self._has_written, True
        stops = {each: self._requests[each].stop_token_id for each in self._acting(step)}
        for number, stop_token_id in stops.items():
            self.fail(number, error, stop_token_id)
        try:
            if not has_written:
                self._step(step)
                return
        except Exception:
            logger.debug("All state is made again in the next step", exc_info=True)
            self._is_broken = True
        try:
            self._force(stops, step)
        except Exception:
            logger.debug("The requests end one token later", exc_info=True)

    @abstractmethod
    def _acting(self, step: Any) -> Collection[int]:
        """List the requests of a step that have a program."""

    @abstractmethod
    def _force(self, stops: Mapping[int, int | None], step: Any) -> None:
        """Force tokens by request, whatever the edits were."""

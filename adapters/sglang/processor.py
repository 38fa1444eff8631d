"""The processor that SGLang's workers call."""

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import Policy, admit, bind_draw, guard_of, policy_of
from ..core import Program, Realizer, failing, log_failure
from .admission import REFUSED
from .backend import BACKEND, END_TOKEN, GUARD, KEY
from .native import GRAMMARS
from .worker import (
    WITH_DRAFTS,
    abort,
    check_tokens_in_time,
    delay_sampling,
    stage,
    stop_token_of,
)

if TYPE_CHECKING:
    import torch
    from sglang.srt.managers.schedule_batch import Req

logger = logging.getLogger(__name__)

Params = Mapping[str, Any] | None
"""A request's ``custom_params``, one object for its whole life. ``__req__`` is the request."""


@cache
def processor() -> "LogitportProcessor":
    """Return this process's processor. ``PROCESSOR`` names this function, called per batch."""
    return LogitportProcessor()


class LogitportProcessor:
    """Realizes the specs that requests carry in ``custom_params["logitport"]``.

    SGLang calls it with the rows of requests that name it, in the order of the batch. New requests
    are prefilled in a batch of their own and later join the running requests. SGLang does not
    report when, so a call's requests are compared with those of earlier calls.
    """

    def __init__(self) -> None:
        delay_sampling()
        self._batches: list[Batch] = []

    def __call__(
        self, logits: "torch.Tensor", custom_param_list: Sequence[Params] | None = None
    ) -> "torch.Tensor":
        """Edit the logits in place.

        Args:
            logits: ``[rows, vocabulary]``, a copy that SGLang writes back.
            custom_param_list: the ``custom_params`` of the request in each row.
        """
        params = custom_param_list or ()
        try:
            try:
                self._batch(params, logits.shape[1]).realizer.apply(logits)
            except Exception:  # the requests are enough to compose a new batch
                self._batches.clear()
                self._batch(params, logits.shape[1]).realizer.apply(logits)
        except Exception:  # a bug in logitport: it may end only requests with specs
            logger.exception("Requests with specs are ended")
            self._batches.clear()
            for each in params:
                if each is not None and (KEY in each or GUARD in each):
                    abort(each["__req__"], "logitport: its specs cannot be realized")
        return logits

    def _batch(self, params: Sequence[Params], vocab_size: int) -> "Batch":
        keys = list(map(id, params))
        for batch in self._batches:
            if batch.is_made_of(keys):
                return batch
        batch = max(self._batches, key=lambda each: each.shared_with(keys), default=None)
        if batch is None or not batch.shared_with(keys):
            batch = Batch(vocab_size)
        others = [each for each in self._batches if each is not batch]
        for other in others:
            other.forget(keys)
        batch.compose(keys, params)
        self._batches = [batch, *filter(len, others)]
        return batch


def refuse(
    logits: "torch.Tensor", custom_param_list: Sequence[Params] | None = None
) -> "torch.Tensor":
    """End the requests of processors that are not admitted. SGLang calls this instead of them."""
    for params in custom_param_list or ():
        if params is not None:
            abort(params["__req__"], REFUSED)
    return logits


class Member(NamedTuple):
    """A request with specs, in a batch.

    Attributes:
        row: the row of the logits.
        req: the request, a weak reference.
        output_ids: the object that holds the request's output.
        payload: the request's payload; ``None`` if the guard alone acts.
        guard: the guard's payload, if there is a guard.
        end_token: see ``Program``; anything, if no front end has checked the request.
    """

    row: int
    req: "Req"
    output_ids: Sequence[int]
    payload: Any
    guard: Any
    end_token: Any

    def has_ended(self) -> bool:
        """Whether the request is finished, or gone."""
        try:
            return self.req.finished()
        except ReferenceError:
            return True


class Batch:
    """Requests that SGLang runs together."""

    def __init__(self, vocab_size: int) -> None:
        self.realizer = Realizer(vocab_size, partial(_program_of, vocab_size), self._abort)
        self._keys: list[int] | None = None
        self._params: Sequence[Params] = ()  # kept, so that no other object gets one of the keys
        self._members: dict[int, Member] = {}

    def __len__(self) -> int:
        """Count the requests with specs."""
        return len(self._members)

    def is_made_of(self, keys: list[int]) -> bool:
        """Whether the batch has these requests, row by row, and the same output objects."""
        return keys == self._keys and all(
            each.req.output_ids is each.output_ids for each in self._members.values()
        )

    def shared_with(self, keys: Sequence[int]) -> int:
        """Count how many of these requests are in the batch."""
        return len(self._members.keys() & keys)

    def forget(self, keys: Sequence[int]) -> None:
        """Remove these requests, which now run in another batch, and requests that have ended."""
        ended = {key for key, member in self._members.items() if member.has_ended()}
        if leaving := self._members.keys() & ended.union(keys):
            self._remove(leaving)
            self._keys = None

    def compose(self, keys: list[int], params: Sequence[Params]) -> None:
        """Make the batch consist of these requests, row by row."""
        self._keys, self._params = keys, params
        members = {
            key: Member(row, req, req.output_ids, *map(each.get, (KEY, GUARD, END_TOKEN)))
            for row, (key, each) in enumerate(zip(keys, params, strict=True))
            if each is not None and (KEY in each or GUARD in each)
            for req in [each["__req__"]]
        }
        self._remove(
            key
            for key, old in self._members.items()
            if key not in members or members[key].output_ids is not old.output_ids
        )
        stay = self._members
        self._members = members
        self.realizer.rearrange({old.row: members[key].row for key, old in stay.items()})
        times = Counter(keys)
        for key, member in members.items():
            if times[key] > 1:
                abort(member.req, f"logitport: {WITH_DRAFTS}")
            elif key not in stay:
                self._enter(member)

    def _abort(self, row: int, error: Exception, ends: bool) -> None:
        """End the failed request in a row, even if it ignores stop tokens."""
        for member in self._members.values():
            if member.row == row:
                log_failure(f"request {member.req.rid}", error, ends=True)
                abort(member.req, f"logitport: {error}")

    def _remove(self, keys: Iterable[int]) -> None:
        for key in list(keys):
            self.realizer.remove(self._members.pop(key).row)

    def _enter(self, member: Member) -> None:
        req = member.req
        # For a prompt of embeddings, SGLang makes up ids.
        prompt_ids = None if req.input_embeds is not None else req.origin_input_ids_unpadded
        self.realizer.enter(member.row, member, prompt_ids, req.output_ids, stop_token_of(req))


@cache
def _policy() -> Policy | None:
    """Return the policy of this process, for the profiles of marks."""
    return policy_of(None)


def _program_of(vocab_size: int, member: Member) -> Program | None:
    """Return the program that acts on a request here, with the mark of its text."""
    program = _unmarked_program_of(vocab_size, member)
    policy = _policy() if stage().generates else None  # elsewhere, no text is marked
    params = member.req.sampling_params
    return bind_draw(program, policy, params, after={}, grammars=GRAMMARS)


def _unmarked_program_of(vocab_size: int, member: Member) -> Program | None:
    """Return the program of a request, which a front end may not have checked, if it acts here."""
    ends = tuple(getattr(member.req, "eos_token_ids", None) or ())
    tokenizer = member.req.tokenizer
    backend = BACKEND.for_tokenizer(tokenizer, vocab_size, end_tokens=lambda: ends).preload()
    guard = None
    if member.guard is not None:
        guard = guard_of(backend, vocab_size, member.guard)
        if guard is not None and isinstance(member.end_token, int):
            guard = replace(guard, end_token=member.end_token)
    if member.payload is None:
        return guard
    try:
        checked, program = admit(backend, member.payload, vocab_size)
        if not checked.is_active(stage()):
            return guard
        check_tokens_in_time(checked.specs, program, backend.vocabulary)
    except Exception as error:
        if guard is None:
            raise
        return failing(error, guard)
    return replace(program, guard=guard)

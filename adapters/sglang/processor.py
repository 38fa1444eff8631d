"""The processor that SGLang calls, in its workers."""

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from ..core import Realizer, admitted
from .admission import REFUSED
from .back_end import BACK_END, KEY
from .worker import (
    WITH_DRAFTS,
    abort,
    check_tokens_in_time,
    stage,
    stop_token_of,
    tell_tokens_in_time,
)

if TYPE_CHECKING:
    import torch
    from sglang.srt.managers.schedule_batch import Req

logger = logging.getLogger(__name__)

Params = Mapping[str, Any] | None
"""A request's ``custom_params``: one object for all its life, with the request as ``__req__``."""


@cache
def processor() -> "LogitportProcessor":
    """The one of this process: what ``PROCESSOR`` names, and SGLang asks for with each batch."""
    return LogitportProcessor()


class LogitportProcessor:
    """Realizes the specs that requests carry in ``custom_params["logitport"]``.

    SGLang calls it with the rows of those that name it, in the order of its batch. A request is
    prefilled in a batch with others that are new, in chunks or at once, and later joins those that
    run; nobody says when, so who comes along is compared with who came before.
    """

    def __init__(self) -> None:
        tell_tokens_in_time()
        self._batches: list[Batch] = []

    def __call__(
        self, logits: "torch.Tensor", custom_param_list: Sequence[Params] | None = None
    ) -> "torch.Tensor":
        """Edit the logits in place.

        Args:
            logits: ``[rows, vocabulary]``, a copy that SGLang writes back.
            custom_param_list: whose they are.
        """
        params = custom_param_list or ()
        try:
            try:
                self._batch(params, logits.shape[1]).realizer.apply(logits)
            except Exception:  # it could not be composed; the requests are enough to try again
                self._batches.clear()
                self._batch(params, logits.shape[1]).realizer.apply(logits)
        except Exception:  # a defect of ours: only those that use us may pay for it
            logger.exception("Requests with specs are ended")
            self._batches.clear()
            for each in params:
                if each is not None and KEY in each:
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
        for other in self._batches:
            if other is not batch:
                other.forget(keys)
        batch.compose(keys, params)
        self._batches = [batch, *(each for each in self._batches if each is not batch and each)]
        return batch


def refuse(
    logits: "torch.Tensor", custom_param_list: Sequence[Params] | None = None
) -> "torch.Tensor":
    """What stands in for processors that are not admitted: their requests are ended."""
    for params in custom_param_list or ():
        if params is not None:
            abort(params["__req__"], REFUSED)
    return logits


@dataclass(slots=True)
class Member:
    """A request with specs, in a batch.

    Attributes:
        row: of the logits.
        req: the request, a weak reference.
        output_ids: the object that holds its output.
        payload: what the request carries.
    """

    row: int
    req: "Req"
    output_ids: Sequence[int]
    payload: Any

    def has_ended(self) -> bool:
        """Whether the request is finished, or gone."""
        try:
            return self.req.finished()
        except ReferenceError:
            return True


class Batch:
    """Requests that SGLang runs together.

    Args:
        vocab_size: number of tokens.
    """

    def __init__(self, vocab_size: int) -> None:
        self.realizer = Realizer(vocab_size, self._abort)
        self._vocab_size = vocab_size
        self._keys: list[int] | None = None
        self._params: Sequence[Params] = ()  # held, so that no other object gets one of the keys
        self._members: dict[int, Member] = {}

    def __len__(self) -> int:
        """How many requests have specs."""
        return len(self._members)

    def is_made_of(self, keys: list[int]) -> bool:
        """Whether these are its requests, row by row, and their outputs are where they were."""
        return keys == self._keys and all(
            member.req.output_ids is member.output_ids for member in self._members.values()
        )

    def shared_with(self, keys: Sequence[int]) -> int:
        """How many of these requests are here."""
        return len(self._members.keys() & keys)

    def forget(self, keys: Sequence[int]) -> None:
        """Let go of these requests, which run with others now, and of those that have ended."""
        ended = {key for key, member in self._members.items() if member.has_ended()}
        if leaving := self._members.keys() & ended.union(keys):
            self._remove(leaving)
            self._keys = None

    def compose(self, keys: list[int], params: Sequence[Params]) -> None:
        """Be made of these requests, row by row."""
        self._keys, self._params = keys, params
        members = {
            key: Member(row, each["__req__"], each["__req__"].output_ids, each[KEY])
            for row, (key, each) in enumerate(zip(keys, params, strict=True))
            if each is not None and KEY in each
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
                self._add(member)

    def _abort(self, row: int, error: Exception) -> None:
        """What has failed in a row is ended, even if it ignores stop tokens."""
        for member in self._members.values():
            if member.row == row:
                abort(member.req, f"logitport: {error}")

    def _remove(self, keys: Iterable[int]) -> None:
        for key in list(keys):
            member = self._members.pop(key, None)
            if member is not None:
                self.realizer.remove(member.row)

    def _add(self, member: Member) -> None:
        req = member.req
        try:
            payload, program = admitted(BACK_END, member.payload, self._vocab_size)
            if not payload.acts_on(stage()):
                return
            check_tokens_in_time(payload.specs, program)
        except Exception as error:
            logger.error(
                "The request %s is ended: its specs cannot be realized: %s", req.rid, error
            )
            abort(req, f"logitport: {error}")
        else:
            # For a prompt of embeddings, SGLang makes up ids.
            prompt_ids = None if req.input_embeds is not None else req.origin_input_ids_unpadded
            self.realizer.add(member.row, program, prompt_ids, req.output_ids, stop_token_of(req))

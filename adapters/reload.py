"""Reload: the policy of a file that changes is replaced without a restart, between two requests.

Only a process that admits requests reads the file again. What acts on a request goes to the workers
with it, so that they need neither the file nor the policy.
"""

import logging
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Lock, Thread
from time import monotonic
from typing import Any, Generic, TypeVar

from ..spec.errors import shown
from .files import state_of
from .metrics import change_policy, count_by, show_reload
from .policy import Policy

logger = logging.getLogger(__name__)

EVERY_S = 1.0
"""How often a file is looked at, at most: when a request comes, or a scrape of the metrics."""

REFUSED = set[str]()
"""The files that are wrong as they are now: what they said before goes on."""

REQUEST: ContextVar[dict[Any, Any] | None] = ContextVar("logitport_request", default=None)
"""What the current request has seen of each ``Live``, and what is noted of it."""


def reload_of(policy: Policy) -> dict[str, str]:
    """Say whether a policy's file, where it is read again, is refused as it is now."""
    if policy.source is None:
        return {}
    return {"reload": "refused" if policy.source[0] in REFUSED else "on"}


@contextmanager
def one_policy() -> Generator[dict[Any, Any]]:
    """Let the caller's block see one policy, whatever changes meanwhile: it admits one request.

    A block within another one is part of its request, and so are tasks that the block begins.
    """
    if (seen := REQUEST.get()) is not None:
        yield seen
        return
    token = REQUEST.set(seen := {})
    try:
        yield seen
    finally:
        REQUEST.reset(token)


Made = TypeVar("Made")


class Live(Generic[Made]):
    """What an engine makes of its policy, made again when the policy's file has changed.

    A thread reads the new file, so that no request waits. A file that is wrong changes nothing.

    Args:
        make: reads the policy, and makes something of it.
        policy_in: returns the policy in what was made.
        check: checks what was made of a changed file, where the start of the engine checks the
            first; raises what it finds.

    Raises:
        Exception: that of ``make``.
    """

    def __init__(
        self,
        make: Callable[[], Made],
        policy_in: Callable[[Made], Policy | None],
        check: Callable[[Made], None] = lambda made: None,
    ) -> None:
        self._make, self._policy_in, self._check = make, policy_in, check
        self._latest = make()
        policy = policy_in(self._latest)
        self._read = self._found = policy and policy.source
        self._next = 0.0
        self._lock, self._loading = Lock(), Thread()

    def current(self) -> Made:
        """Return what the current request sees: all of it, from its first call on."""
        seen = REQUEST.get()
        if seen is None:
            return self._look()
        if self not in seen:
            seen[self] = self._look()
        return seen[self]

    def _look(self) -> Made:
        """Begin to read the file if it has changed, and return the latest that was made.

        A file is read once it looks the same twice: an editor may be about to write the rest.
        """
        now = monotonic()
        if self._read is None or now < self._next or not self._lock.acquire(blocking=False):
            return self._latest
        try:
            if not self._next:  # an alert does not see the first sample of a series
                for result in ("changed", "refused"):
                    count_by("reloads", 0, result)
                show_reload(is_successful=True)
            self._next = now + EVERY_S
            state, before = state_of(self._read[0]), self._found
            self._found = state
            if state == before != self._read and not self._loading.is_alive():
                self._read = state
                self._loading = Thread(target=self._load, name="logitport-reload", daemon=True)
                self._loading.start()
        finally:
            self._lock.release()
        return self._latest

    def _load(self) -> None:
        before = self._policy_in(self._latest) or Policy()
        name = shown(self._read[0] if self._read else "")
        try:
            made = self._make()
            policy = self._policy_in(made) or Policy()
            before.check_change(policy)
            self._check(made)
        except Exception as error:  # packages may raise anything
            count_by("reloads", 1, "refused")
            self._note(is_successful=False)
            logger.error(
                "logitport: %s has changed, and the server goes on with the policy %s: %s",
                *(name, before.digest, error),
            )
            return
        was_refused = policy.source is not None and policy.source[0] in REFUSED
        self._note(is_successful=True)
        self._read = policy.source
        if policy.digest == before.digest:
            if was_refused:
                logger.info("logitport: %s is right again: policy %s stays", name, policy.digest)
            return
        self._latest = made
        count_by("reloads", 1, "changed")
        change_policy(before.digest, policy.digest)
        logger.info("logitport: %s: policy %s replaces %s", name, policy.digest, before.digest)

    def _note(self, *, is_successful: bool) -> None:
        show_reload(is_successful=is_successful)
        if self._read is not None:
            (REFUSED.discard if is_successful else REFUSED.add)(self._read[0])

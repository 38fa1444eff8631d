"""Generations that an engine shows one at a time, and tells apart by nothing but their tokens."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cachetools import LRUCache

from ...spec import SpecError
from ..core import Program
from ..core.array_editor import ArrayRealizer
from ..core.automaton import Ints

MAX_HISTORIES = 1 << 14
"""How many of the newest histories are known, of all generations that run at the same time."""

MAX_RUNNING = 32
"""How many generations are kept ready; others are begun again with their tokens."""


@dataclass(slots=True, eq=False)
class _Running:
    """A generation, up to one of its tokens."""

    realizer: ArrayRealizer
    output_ids: list[int]


class Sequences:
    """Realizes one program on all generations that a processor is called for.

    Such an engine calls a processor with one row of logits and the tokens before it. If they are
    those of an earlier call and one more, the call goes on with that generation; otherwise they
    are the prompt of a new one. So generations may follow each other, take turns, have the same
    prompt, and take drafts back. A new prompt that is an earlier history and one more token goes
    on with it, too.

    Args:
        make_realizer: makes an empty one.
        program: what is realized.
        stop_token_id: a token that makes the engine end a generation, for when its specs fail.
        prompt_ids: the prompt, where engines may show only the end of it.
    """

    def __init__(
        self,
        make_realizer: Callable[[], ArrayRealizer],
        program: Program,
        stop_token_id: int | None,
        prompt_ids: Sequence[int] | None = None,
    ) -> None:
        self._make_realizer = make_realizer
        self._program = program
        self._reads_prompt = program.reads_prompt or bool(program.per_request)
        self._stop = stop_token_id
        self._prompt_ids = None if prompt_ids is None else list(prompt_ids)
        self._prompt_lengths: LRUCache[int, int] = LRUCache(MAX_HISTORIES)
        self._running: LRUCache[int, _Running] = LRUCache(MAX_RUNNING)

    def at(self, token_ids: Ints) -> ArrayRealizer:
        """The realizer whose row 0 is the generation that these tokens have led to.

        Args:
            token_ids: ``[tokens]`` int64, the prompt, or the end of it, and the output so far.

        Where a generation begins with the end of another prompt than the one that was given, or
        with one token, and none was given that a spec has to know, it is ended.
        """
        before, now = hash(token_ids[:-1].tobytes()), hash(token_ids.tobytes())
        shown = self._prompt_lengths.get(before)
        if shown is None:
            shown = len(token_ids)
        self._prompt_lengths[now] = shown
        running = self._running.pop(before, None)
        if running is None:
            running = self._begin(token_ids, shown)
        else:
            running.output_ids.append(int(token_ids[-1]))
        self._running[now] = running
        return running.realizer

    def _begin(self, token_ids: Ints, shown: int) -> _Running:
        output_ids: list[int] = token_ids[shown:].tolist()
        realizer = self._make_realizer()
        try:
            prompt_ids = self._prompt(token_ids[:shown].tolist())
        except SpecError as error:
            realizer.fail(0, error, output_ids, self._stop)
        else:
            realizer.add(0, self._program, prompt_ids, output_ids, self._stop)
        return _Running(realizer, output_ids)

    def _prompt(self, shown: list[int]) -> list[int]:
        if self._prompt_ids is None:
            if self._reads_prompt and len(shown) == 1:  # it may be the last of any
                raise SpecError("Expected prompt_ids, because mlx-lm shows one token of the prompt")
            return shown
        if self._prompt_ids[-len(shown) :] != shown:
            raise SpecError("Expected the prompt that this processor has been made for")
        return self._prompt_ids

"""Finished replies: the token ids in the answers of servers, and what specs did about each."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import exp, inf
from typing import Annotated, Any, NamedTuple

import msgspec

from ...spec.limits import MAX_INT
from .source import read_text
from .texts import quoted

ASK = (
    'Ask vLLM with "return_token_ids": true; ask SGLang\'s /generate, with "return_logprob": true '
    'and "logprob_start_len": 0 for the prompt; or write {"prompt_ids": [...], "output_ids": [...]}'
)
"""What a request needs so that its answer has token ids."""


class Reply(NamedTuple):
    """A finished reply.

    Attributes:
        prompt_ids: the prompt's token ids, ``None`` if the answer has none.
        output_ids: the reply's token ids.
        logprobs: the log probability of each output token; empty if the answer has none.
        likeliest: for each output token the likeliest ones at its step, as text and log
            probability; empty if the answer has none.
    """

    prompt_ids: Sequence[int] | None
    output_ids: Sequence[int]
    logprobs: Sequence[float | None]
    likeliest: Sequence[Sequence[tuple[str, float]]] = ()


@dataclass(frozen=True)
class Step:
    """One token of a reply.

    Attributes:
        index: the index in the output.
        token_id: the token.
        rule: the strongest edit: forced, allowed, banned, added, moved or free.
        acting: what each spec did that acted, by its path.
        obeyed: whether the token obeys the specs.
        broken: the paths of the specs that the token breaks.
        logprob: the token's log probability, if the answer has it.
        likeliest: the likeliest tokens, as text and log probability, if the answer has them.
        displaced: the text of the likeliest token that each spec refused, by the spec's path,
            where that is likelier than the token.
    """

    index: int
    token_id: int
    rule: str
    acting: dict[str, str]
    obeyed: bool
    broken: list[str]
    logprob: float | None
    likeliest: Sequence[tuple[str, float]] = ()
    displaced: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def why(self) -> str:
        """The acting specs and the broken ones, in words."""
        taken = {path: f", displacing {quoted(text)}" for path, text in self.displaced.items()}
        parts = [f"{path} {what}{taken.get(path, '')}" for path, what in self.acting.items()]
        parts = parts or ["free"]
        return "; ".join(parts) + (f"; breaks {' and '.join(self.broken)}" if self.broken else "")

    @property
    def likelier(self) -> list[tuple[str, float]]:
        """Those of ``likeliest`` that are likelier than the token, the likeliest first."""
        than = inf if self.logprob is None else self.logprob
        above = [each for each in self.likeliest if each[1] > than]
        return sorted(above, key=lambda each: each[1], reverse=True)


ANSWER = re.compile(r'(data: )?\s*\[?\s*{\s*"(id|object|choices|text|output_ids|meta_info)"\s*:')
"""How the answer of a server begins, which is no prose."""


def chance(logprob: float) -> str:
    """Format a log probability as a probability."""
    return f"{exp(min(logprob, 0)):.2g}"


_Token = Annotated[int, msgspec.Meta(ge=0, le=MAX_INT)]
_Tokens = list[_Token] | None
_Scores = list[float | None] | None


class _Likely(msgspec.Struct):
    token: str
    logprob: float


class _Content(msgspec.Struct):
    logprob: float | None
    top_logprobs: list[_Likely] | None = None


class _Logprobs(msgspec.Struct):
    """Completions have ``token_logprobs``, chats have ``content``."""

    token_logprobs: _Scores = None
    top_logprobs: list[dict[str, float | None] | None] | None = None
    content: list[_Content] | None = None

    @property
    def likeliest(self) -> list[list[tuple[str, float]]]:
        """The likeliest tokens at each step."""
        if self.content:
            return [
                [(top.token, top.logprob) for top in each.top_logprobs or ()]
                for each in self.content
            ]
        return [
            [(text, score) for text, score in (each or {}).items() if score is not None]
            for each in self.top_logprobs or ()
        ]


class _Scored(msgspec.Struct, array_like=True):
    """A token of SGLang's, with its text."""

    logprob: float | None
    token_id: _Token
    text: str | None = None


class _Meta(msgspec.Struct):
    prompt_tokens: int | None = None
    input_token_logprobs: list[_Scored] | None = None
    output_token_logprobs: list[_Scored] | None = None
    output_top_logprobs: list[list[_Scored] | None] | None = None


class _Part(msgspec.Struct):
    token_ids: _Tokens = None
    output_ids: _Tokens = None
    prompt_token_ids: _Tokens = None
    prompt_ids: _Tokens = None
    logprobs: _Logprobs | _Scores = None


class _Answer(_Part):
    choices: list[_Part] | None = None
    meta_info: _Meta | None = None


def read_reply(file: str, choice: int = 0) -> Reply:
    """Read a server's answer, or token ids alone.

    Raises:
        OSError: if the file cannot be read.
        ValueError: if the file is not such an answer, or has no token ids of the reply.
    """
    try:
        content: Any = json.loads(read_text(file))
        if isinstance(content, list) and content and isinstance(content[0], int):
            return Reply(None, msgspec.convert(content, list[_Token]), ())
        if isinstance(content, list):  # SGLang answers a batch with a list
            answer = _at(msgspec.convert(content, list[_Answer]), choice)
        else:
            answer = msgspec.convert(content, _Answer)
    except json.JSONDecodeError as error:
        raise ValueError(f"{file}: expected the answer of a server as JSON: {error}") from None
    except (msgspec.ValidationError, OverflowError, RecursionError) as error:
        raise ValueError(f"{file}: expected the answer of a server: {error}. {ASK}") from None
    part = _at(answer.choices, choice) if answer.choices else answer
    output_ids = _first(part.token_ids, part.output_ids)
    if output_ids is None:
        raise ValueError(f"{file}: the answer has no token ids of the reply. {ASK}")
    meta = answer.meta_info or _Meta()
    prompt_ids = _first(
        *(part.prompt_token_ids, answer.prompt_token_ids, part.prompt_ids, answer.prompt_ids)
    )
    scored = meta.input_token_logprobs or []
    if prompt_ids is None and len(scored) == meta.prompt_tokens:
        prompt_ids = [each.token_id for each in scored]
    scores = part.logprobs
    likeliest = [
        [(top.text or f"token_id:{top.token_id}", top.logprob or 0.0) for top in each or ()]
        for each in meta.output_top_logprobs or ()
    ]
    if isinstance(scores, _Logprobs):
        likeliest = scores.likeliest
        scores = scores.token_logprobs or [each.logprob for each in scores.content or ()]
    scores = scores or [each.logprob for each in meta.output_token_logprobs or ()]
    count = len(output_ids)
    scores = scores if len(scores) == count else ()
    return Reply(prompt_ids, output_ids, scores, likeliest if len(likeliest) == count else ())


def _at(choices: Sequence[Any], choice: int) -> Any:
    if not 0 <= choice < len(choices):
        raise ValueError(f"Expected a choice below {len(choices)}, got {choice}")
    return choices[choice]


def _first(*lists: list[int] | None) -> list[int] | None:
    return next((each for each in lists if each is not None), None)

"""Finished replies: the token ids in the answers of servers."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

from ...spec.limits import MAX_TOKEN_ID
from .source import read_text

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
    """

    prompt_ids: Sequence[int] | None
    output_ids: Sequence[int]
    logprobs: Sequence[float | None]


def read_reply(file: str, choice: int = 0) -> Reply:
    """Read a server's answer, or plain lists of token ids.

    Raises:
        ValueError: if the file is not such an answer, or has no token ids of the reply.
    """
    try:
        return _reply(json.loads(read_text(file)), choice, file)
    except (AttributeError, IndexError, KeyError, TypeError, RecursionError):
        raise ValueError(f"{file}: expected the answer of a server. {ASK}") from None


def _reply(answer: Any, choice: int, file: str) -> Reply:
    if isinstance(answer, list):  # SGLang answers a batch with a list
        answer = _at(answer, choice)
    if not isinstance(answer, Mapping):
        raise ValueError(f"{file}: expected an object. {ASK}")
    answer = cast("Mapping[str, Any]", answer)
    part: Any = _at(answer["choices"], choice) if answer.get("choices") else answer
    scores = part.get("logprobs") or {}
    meta: Mapping[str, Any] = answer.get("meta_info") or {}
    output_ids = _first(part, "token_ids", "output_ids")
    if output_ids is None:
        raise ValueError(f"{file}: the answer has no token ids of the reply. {ASK}")
    prompt_ids = _first({**answer, **part}, "prompt_token_ids", "prompt_ids")
    if prompt_ids is None and len(scored := meta.get("input_token_logprobs") or ()) == meta.get(
        "prompt_tokens"
    ):
        prompt_ids = [token_id for _, token_id, *_ in scored]
    if isinstance(scores, Mapping):  # completions have token_logprobs, chats have content
        scores = cast("Mapping[str, Any]", scores)
        content = scores.get("content") or ()
        logprobs = scores.get("token_logprobs") or [each["logprob"] for each in content]
    else:
        logprobs = scores
    logprobs = logprobs or [each[0] for each in meta.get("output_token_logprobs") or ()]
    for token_ids in (prompt_ids or (), output_ids):
        if not all(
            type(token_id) is int and 0 <= token_id <= MAX_TOKEN_ID for token_id in token_ids
        ):
            raise ValueError(f"{file}: expected token ids, integers from 0 to {MAX_TOKEN_ID}")
    return Reply(prompt_ids, output_ids, logprobs if len(logprobs) == len(output_ids) else ())


def _at(choices: Sequence[Any], choice: int) -> Any:
    if not 0 <= choice < len(choices):
        raise ValueError(f"Expected a choice below {len(choices)}, got {choice}")
    return choices[choice]


def _first(fields: Mapping[str, Any], *names: str) -> Any:
    return next((fields[name] for name in names if fields.get(name) is not None), None)

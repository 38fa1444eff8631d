"""A streamed reply: the part that the client has, and the request for the rest of it."""

import json
from typing import Any, TypeGuard

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

Fields = dict[str, Any]
"""The fields of a JSON object."""

OF_PROMPT = frozenset(
    """
    add_generation_prompt add_special_tokens chat_template chat_template_kwargs
    continue_final_message documents max_completion_tokens messages prompt truncate_prompt_tokens
    truncation_side
    """.split()  # noqa: SIM905
)
"""Fields that make the prompt, or are replaced. The request for the rest does not have them."""

OF_SAMPLING = frozenset(
    """
    allowed_token_ids cache_salt frequency_penalty ignore_eos include_stop_str_in_output logit_bias
    max_tokens min_p min_tokens model presence_penalty priority repetition_penalty request_id
    return_token_ids seed session_id skip_special_tokens stop_token_ids stream stream_interval
    stream_options temperature top_k top_p user vllm_xargs
    """.split()  # noqa: SIM905
)
"""Fields with the same meaning in a chat and in a completion, and at the second server."""

OF_CHOICE = "index", "logprobs", "finish_reason", "stop_reason", "token_ids"
"""Fields with the same meaning in the chunks of a chat and of a completion."""

NEUTRAL = {"n": 1, "tool_choice": "none", "top_logprobs": 0, "response_format": {"type": "text"}}
"""Values that change nothing, as do ``None``, ``False`` and what is empty."""


class ServerDiedError(Exception):
    """A server that ends a reply before its last token."""


def obstacle(body: Fields) -> str | None:
    """Return the field because of which a reply cannot be continued; ``None`` if it can.

    Only known fields pass. Among the others are ``n``, ``logprobs``, ``echo``, ``suffix``,
    ``tools``, ``use_beam_search``; grammars (``response_format``, ``structured_outputs``), whose
    state begins anew; and ``stop``, since a server holds back text that may be the beginning of a
    stop string.
    """
    for name, value in body.items():
        is_neutral = value is None or value is False or value in ([], {}, "")
        is_known = name in OF_PROMPT or name in OF_SAMPLING
        if not is_known and not is_neutral and value != NEUTRAL.get(name):
            return name
    prompt = body.get("prompt", "")
    if not isinstance(prompt, str) and not _is_token_ids(prompt):
        return "prompt"  # several prompts
    for message in body.get("messages") or ():
        parts = message.get("content") if isinstance(message, dict) else None
        if isinstance(parts, list) and any(part.get("type") != "text" for part in parts):
            return "messages"  # images: token ids do not contain them
    return None


def _is_token_ids(prompt: object) -> TypeGuard[list[int]]:
    return isinstance(prompt, list) and all(isinstance(each, int) for each in prompt)


class Reply:
    """A reply to one request, over all servers that make a part of it.

    Attributes:
        prompt: the prompt's token ids; ``None`` before the first chunk.
        output: the token ids of the chunks that the client has.
        is_complete: whether the client has the last token.
        is_continuable: false if a parser of the server has made something else of the tokens.
    """

    def __init__(self, body: Fields, tokenizer: Tokenizer, max_model_len: int):
        self.prompt: list[int] | None = None
        self.output: list[int] = []
        self.is_complete = False
        self.is_continuable = True
        self._body, self._tokenizer, self._max_model_len = body, tokenizer, max_model_len
        self._is_chat = "messages" in body
        self._first: Fields = {}
        self._text: DecodeStream | None = None
        options = body.get("stream_options") or {}
        self._lacks_usage = bool(options.get("include_usage"))

    def request(self) -> Fields:
        """Make the request for the rest: a completion of all token ids so far.

        Before the first chunk, it is the client's own request.
        """
        if self.prompt is None:
            return self._body | {"return_token_ids": True}
        # The second server would begin with the first whole character after *all* of the prompt:
        # if the output ends within a character, with the text of the whole prompt. So the text is
        # made here.
        skip = self._body.get("skip_special_tokens", True)
        self._text = DecodeStream(ids=self.prompt, skip_special_tokens=skip)
        self._decode(self.output)
        made = len(self.output)
        default = self._max_model_len - len(self.prompt) if self._is_chat else 16
        most = self._body.get("max_completion_tokens") or self._body.get("max_tokens") or default
        body = {name: value for name, value in self._body.items() if name in OF_SAMPLING}
        body |= {"prompt": self.prompt + self.output, "max_tokens": most - made}
        body |= {"min_tokens": max((body.get("min_tokens") or 0) - made, 0)}
        body |= {"return_token_ids": True}
        payload = (body.get("vllm_xargs") or {}).get("logitport")
        if payload and made:
            body["vllm_xargs"] = body["vllm_xargs"] | {"logitport": continued(payload, made)}
        return body

    def take(self, chunk: Fields) -> Fields:
        """Take a server's chunk and return the client's.

        Raises:
            ServerDiedError: for the chunk with which a server ends a reply because it shuts down.
        """
        if "error" in chunk:
            if chunk["error"].get("code", 500) >= 500:  # for example, its engine has died
                raise ServerDiedError(chunk["error"])
            self.is_complete, self._lacks_usage = True, False
            return chunk
        choice: Fields = next(iter(chunk["choices"]), {})
        token_ids = choice.get("token_ids") or []
        if choice.get("finish_reason") == "abort":
            raise ServerDiedError(choice)
        if self.prompt is None:
            self.prompt = chunk.get("prompt_token_ids") or choice.get("prompt_token_ids")
        self.output += token_ids
        self.is_complete |= choice.get("finish_reason") is not None
        self._lacks_usage &= bool(choice)
        if self._text is None:
            self._first = self._first or chunk
            others = {**choice.get("delta", {}), "role": None, "content": None}
            self.is_continuable &= not any(others.values())
        else:
            is_stop = choice.get("finish_reason") == "stop"
            if is_stop and not self._body.get("include_stop_str_in_output"):
                token_ids = token_ids[:-1]
            text = self._decode(token_ids)
            chunk = self._rewrite(chunk, choice, text)
        if not self._body.get("return_token_ids"):
            for each in (chunk, *chunk["choices"]):
                each |= {name: None for name in ("prompt_token_ids", "token_ids") if name in each}
        return chunk

    def rest(self) -> list[Fields]:
        """Return what a reply lacks whose server died after the last token."""
        return [self._head() | {"choices": [], "usage": self._usage()}] if self._lacks_usage else []

    def _rewrite(self, chunk: Fields, choice: Fields, text: str) -> Fields:
        """Make a chunk of the first server's stream of a chunk of a later one."""
        rewritten = self._head() | {"choices": []}
        if choice:
            kept = {name: choice.get(name) for name in OF_CHOICE}
            content = {"delta": {"content": text}} if self._is_chat else {"text": text}
            rewritten["choices"] = [kept | content]
        if chunk.get("usage"):
            rewritten["usage"] = self._usage()
        return rewritten

    def _head(self) -> Fields:
        return {name: self._first[name] for name in ("id", "object", "created", "model")}

    def _usage(self) -> Fields:
        prompt, output = len(self.prompt or ()), len(self.output)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": output,
            "total_tokens": prompt + output,
        }

    def _decode(self, token_ids: list[int]) -> str:
        assert self._text is not None
        return "".join(self._text.step(self._tokenizer, each) or "" for each in token_ids)


def continued(payload: Any, count: int) -> str:
    """Add to a payload's number of output tokens at the end of the prompt.

    Args:
        payload: JSON text, or an object or a list of specs.
        count: the number of tokens.
    """
    content = json.loads(payload) if isinstance(payload, str) else payload
    if isinstance(content, list):
        content = {"version": 1, "specs": content}
    return json.dumps(content | {"continued": content.get("continued", 0) + count})

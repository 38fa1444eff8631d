"""How likely each answer is to the model: ``python -m examples.probabilities``.

vLLM's logprobs are those of the model itself, before any logits processor (``raw_logprobs``). So a
request that is forced to give an answer shows how likely its tokens were without the spec.
"""

from collections.abc import Mapping
from math import exp
from typing import Any

from logitport.adapters.vllm import attach
from logitport.spec import ChoiceSpec, ForcedTokenSequenceSpec
from vllm import LLM, SamplingParams

from ._support.smollm2 import prepare

Answers = Mapping[str, tuple[int, ...]]
"""Texts and their token ids."""


def of_one_token(llm: LLM, prompt: str, answers: Answers) -> dict[str, float]:
    """Probabilities of answers of one token each, with one request, which also chooses one."""
    tokens = [token for (token,) in answers.values()]
    params = SamplingParams(max_tokens=1, logprob_token_ids=tokens)
    attach(params, ChoiceSpec(tuple(answers.values())))
    (scores,) = _logprobs(llm.generate([prompt], [params])[0])
    return {text: exp(scores[token].logprob) for (text, (token,)) in answers.items()}


def of_any_length(llm: LLM, prompt: str, answers: Answers) -> dict[str, float]:
    """Probabilities of answers of several tokens: a request for each, which is forced to give it.

    One constrained run is not enough. It divides the probability among the answers token by token,
    before it is known how likely the rest of each answer is.
    """
    params = [
        attach(SamplingParams(max_tokens=len(ids), logprobs=0), ForcedTokenSequenceSpec(ids))
        for ids in answers.values()
    ]
    replies = llm.generate([prompt] * len(params), params)
    return {
        text: exp(
            sum(step[token].logprob for step, token in zip(_logprobs(reply), ids, strict=True))
        )
        for (text, ids), reply in zip(answers.items(), replies, strict=True)
    }


def _logprobs(reply: Any) -> Any:
    return reply.outputs[0].logprobs


if __name__ == "__main__":  # vLLM starts processes that import this file
    llm = LLM(str(prepare()), max_model_len=256, enforce_eager=True)
    prompt, texts = "The capital of France is", [" Paris", " Rome", " New York"]
    tokenizer = llm.get_tokenizer()
    answers = {text: tuple(tokenizer.encode(text, add_special_tokens=False)) for text in texts}
    short = {text: ids for text, ids in answers.items() if len(ids) == 1}
    print("one token:", {k: round(p, 5) for k, p in of_one_token(llm, prompt, short).items()})
    print("any length:", {k: round(p, 5) for k, p in of_any_length(llm, prompt, answers).items()})

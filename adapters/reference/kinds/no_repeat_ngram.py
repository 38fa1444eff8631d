"""``no_repeat_ngram``."""

from ....spec import NoRepeatNgramSpec
from .base import Edit, FreeRun, Kind, Tokens, ban


def _edit(spec: NoRepeatNgramSpec, prompt: Tokens, output: Tokens) -> Edit:
    history = output if spec.output_only else prompt + output
    if len(history) < spec.n - 1:
        return None
    newest = history[len(history) - spec.n + 1 :]
    window = history if spec.window is None else history[-spec.window :]
    ngrams = {window[i : i + spec.n] for i in range(len(window) - spec.n + 1)}
    repeated = {ngram[-1] for ngram in ngrams if ngram[:-1] == newest}
    return ban(repeated - {*spec.allowed_token_ids})


def _examples(free: FreeRun) -> list[NoRepeatNgramSpec]:
    history = free.prompt_ids + free.output_ids
    repeats = any(
        token in history[: len(free.prompt_ids) + i] for i, token in enumerate(free.output_ids)
    )
    return [NoRepeatNgramSpec(1)] if repeats else []


KIND = Kind(NoRepeatNgramSpec(2), _edit, _examples)

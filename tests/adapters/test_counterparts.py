"""Each kind beside the processors elsewhere that do the same: same logits, step by step.

``docs/processors.md`` is the table of this, with the differences that are meant; those are tests
here too. The peers are the packages themselves, or their files: without them this module fails.
"""

import ast
import importlib.util
import itertools
import math
import random
import sys
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import patch

import mlx.core as mx
import numpy as np
import pytest
import torch
import vllm
from logitport import spec as lp
from logitport.adapters.core import HistoryRule, Realizer, compile_specs, plugins
from logits_processor_zoo import transformers as zoo
from mlx_lm.sample_utils import make_logits_processors
from transformers.generation import logits_process as hf
from vllm import SamplingParams
from vllm.v1.sample.logits_processor import (
    BatchUpdate,
    LogitBiasLogitsProcessor,
    LogitsProcessors,
    MinTokensLogitsProcessor,
)
from vllm.v1.sample.sampler import Sampler
from vllm.v1.sample.thinking_budget_state import ThinkingBudgetStateHolder

from tests.support.paths import GOLDEN

CPU = torch.device("cpu")
VOCAB, EOS = 12, 2
START, END, NEWLINE = 3, 4, 5
STEPS = 30

Peer = Callable[[list[int], list[int], torch.Tensor], torch.Tensor]
"""(prompt ids, output ids, logits ``[vocabulary]``, which it may edit) -> edited logits."""

Tag = tuple[int, ...]

Speak = Callable[[random.Random, list[int]], int]
"""The next token of a model, after prompt and output; random, but within what a rule is about."""


def load(peer: str) -> Any:
    """A peer's module, of which ``tests/golden/peers`` has the file: its package is large."""
    spec = importlib.util.spec_from_file_location(peer, GOLDEN / "peers" / f"{peer}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    protocols: Any = SimpleNamespace(BaseLogitsProcessor=object)
    with patch.dict(sys.modules, {"dynamo.logits_processing": protocols}):
        spec.loader.exec_module(module)
    return module


sglang, dynamo = load("sglang_custom_logit_processor"), load("dynamo_forced_sequence")


def load_vllm_no_repeat_ngram() -> Any:
    """vLLM's class from its file, whose module imports what a vision model needs."""
    path = Path(vllm.__file__).parent / "model_executor" / "models" / "deepseek_ocr.py"
    name = "NoRepeatNGramLogitsProcessor"
    module = ast.parse(path.read_text(encoding="utf-8"))
    module.body = [node for node in module.body if getattr(node, "name", "") == name]
    namespace: dict[str, Any] = {"torch": torch}
    exec(compile(module, str(path), "exec"), namespace)
    return namespace[name]


VllmNoRepeatNgram = load_vllm_no_repeat_ngram()


class SGLangThinkingBudget(sglang.ThinkingBudgetLogitProcessor):
    THINKING_START_TOKEN_ID, THINKING_END_TOKEN_ID, NEW_LINE_TOKEN_ID = START, END, NEWLINE


def of_sglang(processor: Any, **params: Any) -> Peer:
    def call(prompt: list[int], output: list[int], logits: torch.Tensor) -> torch.Tensor:
        request = SimpleNamespace(
            origin_input_ids=array("q", prompt), output_ids=array("q", output)
        )
        return processor(logits[None], [params | {"__req__": request}])[0]

    return call


def of_transformers(processor: Any) -> Peer:
    """Also for logits-processor-zoo, whose processors have the same interface."""

    def call(prompt: list[int], output: list[int], logits: torch.Tensor) -> torch.Tensor:
        return processor(torch.tensor([[*prompt, *output]]), logits[None])[0]

    return call


def of_vllm(
    params: SamplingParams,
    *,
    bad_words: list[list[int]] | None = None,
    start: Sequence[int] = (START,),
    end: Sequence[int] = (END,),
) -> Peer:
    """What vLLM's own sampler does for a request with these parameters."""
    params.update_from_generation_config({}, EOS)
    bad_words = bad_words or params.bad_words_token_ids
    so_far: list[int] = []
    processors = [
        LogitBiasLogitsProcessor(None, CPU, False),
        MinTokensLogitsProcessor(
            SimpleNamespace(scheduler_config=SimpleNamespace(max_num_seqs=1)),  # pyright: ignore
            CPU,
            False,
        ),
    ]
    tags = SimpleNamespace(reasoning_start_token_ids=[*start], reasoning_end_token_ids=[*end])
    budgets = ThinkingBudgetStateHolder(tags, 1, 0, CPU, False)  # pyright: ignore

    def call(prompt: list[int], output: list[int], logits: torch.Tensor) -> torch.Tensor:
        update = None
        if not output:
            update = BatchUpdate(1, removed=[], added=[(0, params, prompt, so_far)], moved=[])
            budgets.sync_batch(update)
        so_far[:] = output
        for processor in processors:
            processor.update_state(update)
        allowed = None
        if params.allowed_token_ids:
            allowed = torch.ones(1, len(logits), dtype=torch.bool)
            allowed[0, params.allowed_token_ids] = False
        metadata: Any = SimpleNamespace(  # what the sampler reads here of its ``SamplingMetadata``
            no_penalties=True,
            output_token_ids=[so_far],
            allowed_token_ids_mask=allowed,
            bad_words_token_ids={0: bad_words} if bad_words else {},
            logitsprocs=LogitsProcessors(processors),
            spec_token_ids=[[]],
            thinking_budget_state_holder=budgets,
        )
        return Sampler().apply_logits_processors(logits[None], metadata, False)[0]

    return call


def of_llama_cpp(processor: Any) -> Peer:
    def call(prompt: list[int], output: list[int], logits: torch.Tensor) -> torch.Tensor:
        input_ids = np.array([*prompt, *output], np.intc)
        return torch.from_numpy(processor(input_ids, logits.numpy()))

    return call


def of_mlx(processors: Sequence[Any]) -> Peer:
    def call(prompt: list[int], output: list[int], logits: torch.Tensor) -> torch.Tensor:
        tokens, edited = mx.array([*prompt, *output]), mx.array(logits.numpy())[None]
        for processor in processors:
            edited = processor(tokens, edited)
        return torch.from_numpy(np.array(edited)[0])

    return call


def of_dynamo(processor: Any) -> Peer:
    def call(prompt: list[int], output: list[int], logits: torch.Tensor) -> torch.Tensor:
        processor(output, logits)
        return logits

    return call


@dataclass
class Step:
    """What was said, the model's logits after it, and these as both edit them."""

    output: list[int]
    logits: torch.Tensor
    ours: torch.Tensor
    theirs: torch.Tensor

    @property
    def acted(self) -> bool:
        return not torch.equal(self.logits, self.ours)

    def assert_same(self) -> None:
        """The same tokens are possible, with the same probabilities."""
        ours, theirs = self.ours.softmax(-1), self.theirs.softmax(-1)
        assert torch.equal(ours > 0, theirs > 0), self.output
        assert ours.argmax() == theirs.argmax(), self.output
        torch.testing.assert_close(ours, theirs)

    def assert_same_favourite(self) -> None:
        """Both choose the same if they choose the likeliest."""
        assert self.ours.argmax() == self.theirs.argmax(), self.output


def forced(logits: torch.Tensor) -> int | None:
    """The only token that is possible, if there is only one."""
    probabilities, token = logits.softmax(-1).max(-1)
    return int(token) if probabilities == 1 else None


def steps(
    specs: lp.LogitsProcessorSpec | Sequence[lp.LogitsProcessorSpec],
    peer: Peer,
    prompt: Sequence[int],
    plan: Sequence[int] | Speak,
    *,
    logits: Sequence[torch.Tensor] | None = None,
    seed: int = 0,
) -> Iterator[Step]:
    """Let both edit the same logits before each token of ``plan`` and after its last.

    A token that we force is taken in place of the plan's.
    """
    specs = [specs] if isinstance(specs, lp.LogitsProcessorSpec) else specs
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    so_far: list[int] = []
    length = STEPS if callable(plan) else len(plan)
    vocab_size = len(logits[0]) if logits else VOCAB
    realizer = Realizer(vocab_size)
    realizer.add(0, compile_specs(specs), list(prompt), so_far)
    for i in range(length + 1):
        row = logits[i] if logits else torch.randn(vocab_size, generator=generator)
        ours = row.clone()[None]
        realizer.apply(ours)
        theirs = peer(list(prompt), list(so_far), row.clone())
        yield Step(list(so_far), row, ours[0], theirs)
        if i < length:
            said = plan(rng, [*prompt, *so_far]) if callable(plan) else plan[i]
            so_far.append(said if (only := forced(ours[0])) is None else only)
    assert realizer.failed_requests == 0


def anything(rng: random.Random, history: list[int]) -> int:
    return rng.randrange(VOCAB)


def few(rng: random.Random, history: list[int]) -> int:
    """So few that they come again and again."""
    return rng.randrange(4)


def few_after_others(rng: random.Random, history: list[int]) -> int:
    """The same, and in the prompt tokens that none of it comes after: it has four tokens."""
    return rng.randrange(4) if len(history) >= 4 else 8 + len(history)


def is_in_block(history: list[int]) -> bool:
    tags = [token for token in history if token in (START, END)]
    return tags[-1:] == [START]


def thinking(rng: random.Random, history: list[int]) -> int:
    """Start tags outside of blocks, end tags inside, no newlines."""
    tag = END if is_in_block(history) else START
    return rng.choice([0, 1, 6, 7, 8, tag, tag])


def endless_thinking(rng: random.Random, history: list[int]) -> int:
    """Start tags outside of blocks, no end tags."""
    return rng.choice([0, 1, 6] if is_in_block(history) else [0, 1, START])


def params(**fields: Any) -> SamplingParams:
    return SamplingParams(max_tokens=999, **fields)


@dataclass
class Same:
    """A spec, what makes its peer for a request, and what says prompt and output."""

    specs: lp.LogitsProcessorSpec | Sequence[lp.LogitsProcessorSpec]
    peer: Callable[[], Peer]
    speak: Speak = anything

    def steps(
        self, prompt: Sequence[int], plan: Sequence[int] | Speak, seed: int = 0
    ) -> Iterator[Step]:
        return steps(self.specs, self.peer(), prompt, plan, seed=seed)


def sglang_budget(budget: int) -> Same:
    spec = lp.ThinkingBudgetSpec(budget, (START,), (END,), (NEWLINE,))
    return Same(spec, lambda: of_sglang(SGLangThinkingBudget(), thinking_budget=budget), thinking)


def vllm_budget(
    budget: int,
    message: Tag = (),
    *,
    start: Tag = (START,),
    end: Tag = (END,),
    speak: Speak = thinking,
) -> Same:
    """vLLM has a phrase before the end tag as a part of that tag."""
    spec = lp.ThinkingBudgetSpec(budget, start, end, message)
    asked = {"thinking_token_budget": budget}
    return Same(spec, lambda: of_vllm(params(**asked), start=start, end=(*message, *end)), speak)


def sglang_no_repeat(n: int, window: int, allowed: list[int]) -> Same:
    processor = sglang.DeepseekOCRNoRepeatNGramLogitProcessor()
    given = {"ngram_size": n, "window_size": window, "whitelist_token_ids": allowed}
    spec = lp.NoRepeatNgramSpec(n, window, allowed)
    return Same(spec, lambda: of_sglang(processor, **given), few)


def vllm_no_repeat(n: int, window: int, allowed: Sequence[int] = ()) -> Same:
    """vLLM's reads the output alone: no token of the prompt comes again in it."""
    processor = VllmNoRepeatNgram(n, window, {*allowed})

    def peer(prompt: list[int], output: list[int], logits: torch.Tensor) -> torch.Tensor:
        return processor(output, logits)

    return Same(lp.NoRepeatNgramSpec(n, window, allowed), lambda: peer, few_after_others)


def by_trie(choices: Sequence[Sequence[int]]) -> Callable[[], Peer]:
    """Transformers' way to choose: ask for the tokens that go on with what has been said."""

    def peer(prompt: list[int], output: list[int], logits: torch.Tensor) -> torch.Tensor:
        def allowed(_: int, said: torch.Tensor) -> list[int]:
            out = said[len(prompt) :].tolist()
            following = [
                c[len(out)] for c in choices if len(c) > len(out) and [*c[: len(out)]] == out
            ]
            return following + ([EOS] if tuple(out) in choices or not following else [])

        processor = hf.PrefixConstrainedLogitsProcessor(allowed, num_beams=1)
        return of_transformers(processor)(prompt, output, logits)

    return lambda: peer


SEQUENCES = [[1], [0, 1, 2], [1, 2], [2, 2, 2, 3], [0, 0]]
BIASES = (1.5, -2.0, 3.0, -4.5, 0.5)
BIAS = {0: -3.5, 6: 4.0}
CHOICES = ((1, 3), (1, 3, 5), (1, 4, 4), (6,))


def hf_biases() -> list[Any]:
    return [[sequence, bias] for sequence, bias in zip(SEQUENCES, BIASES, strict=True)]


ALWAYS_ACT = {
    "SGLang disallowed tokens": Same(
        lp.BannedTokensSpec((7, 1, 1)),
        lambda: of_sglang(sglang.DisallowedTokensLogitsProcessor(), token_ids=[7, 1, 1]),
    ),
    "MLX-LM logit_bias": Same(
        lp.LogitBiasSpec(BIAS),
        lambda: of_mlx(make_logits_processors(logit_bias=BIAS)),
    ),
    "vLLM bad_words": Same(
        lp.BannedSequencesSpec(SEQUENCES), lambda: of_vllm(params(), bad_words=SEQUENCES), few
    ),
    "vLLM logit_bias": Same(lp.LogitBiasSpec(BIAS), lambda: of_vllm(params(logit_bias=BIAS))),
    "vLLM allowed_token_ids": Same(
        lp.AllowedTokensSpec((1, 6, 7)), lambda: of_vllm(params(allowed_token_ids=[1, 6, 7]))
    ),
    "transformers NoBadWords": Same(
        lp.BannedSequencesSpec(SEQUENCES),
        lambda: of_transformers(hf.NoBadWordsLogitsProcessor(SEQUENCES)),
        few,
    ),
    "transformers SequenceBias, single tokens": Same(
        lp.LogitBiasSpec(BIAS),
        lambda: of_transformers(hf.SequenceBiasLogitsProcessor([[[0], -3.5], [[6], 4.0]])),
    ),
    "transformers SequenceBias": Same(
        lp.SequenceBiasSpec(SEQUENCES, BIASES),
        lambda: of_transformers(hf.SequenceBiasLogitsProcessor(hf_biases())),
        few_after_others,
    ),
    "transformers SuppressTokens": Same(
        lp.BannedTokensSpec((7, 1)),
        lambda: of_transformers(hf.SuppressTokensLogitsProcessor([7, 1])),
    ),
    "transformers NoRepeatNGram of 1": Same(
        lp.NoRepeatNgramSpec(1), lambda: of_transformers(hf.NoRepeatNGramLogitsProcessor(1)), few
    ),
    "transformers PrefixConstrained, one list": Same(
        lp.AllowedTokensSpec((1, 6, 7)),
        lambda: of_transformers(hf.PrefixConstrainedLogitsProcessor(lambda *_: [1, 6, 7], 1)),
    ),
    "transformers PrefixConstrained, choices": Same(
        lp.ChoiceSpec(CHOICES, EOS),
        by_trie(CHOICES),
        lambda rng, history: rng.choice([1, 6] if len(history) == 4 else [3, 4, 5, EOS]),
    ),
    "Dynamo forced sequence": Same(
        lp.ForcedTokenSequenceSpec((7, 7, 1, 9), EOS),
        lambda: of_dynamo(dynamo.ForcedSequenceLogitsProcessor((7, 7, 1, 9), EOS)),
    ),
}
ACT_AT_TIMES = {
    "SGLang thinking budget": sglang_budget(3),
    "SGLang thinking budget of 0": sglang_budget(0),
    "SGLang no-repeat bigrams": sglang_no_repeat(2, 9, []),
    "SGLang no-repeat trigrams, some allowed": sglang_no_repeat(3, 20, [0, 3]),
    "SGLang no-repeat tokens": sglang_no_repeat(1, 2, [0]),
    "SGLang no-repeat in the narrowest window": sglang_no_repeat(2, 2, []),
    "llama.cpp min_tokens": Same(
        lp.MinTokensSpec(9, (EOS,)),
        lambda: of_llama_cpp(pytest.importorskip("llama_cpp").MinTokensLogitsProcessor(9, EOS)),
    ),
    "vLLM min_tokens": Same(
        lp.MinTokensSpec(9, (EOS, 6)), lambda: of_vllm(params(min_tokens=9, stop_token_ids=[6]))
    ),
    "vLLM no-repeat bigrams": vllm_no_repeat(2, 100),
    "vLLM no-repeat trigrams in a window, some allowed": vllm_no_repeat(3, 4, [0, 3]),
    "vLLM thinking_token_budget": vllm_budget(3),
    "vLLM thinking_token_budget of 0": vllm_budget(0),
    "vLLM thinking_token_budget, with a phrase before the end tag": vllm_budget(
        2, (9, 10), speak=endless_thinking
    ),
    "vLLM thinking_token_budget, end tag of several tokens": vllm_budget(
        2, end=(9, 10, END), speak=endless_thinking
    ),
    "transformers MinNewTokensLength": Same(
        lp.MinTokensSpec(9, (EOS, 6)),
        lambda: of_transformers(hf.MinNewTokensLengthLogitsProcessor(4, 9, [EOS, 6])),
    ),
    "transformers SuppressTokensAtBegin": Same(
        lp.MinTokensSpec(1, (7, 1)),
        lambda: of_transformers(hf.SuppressTokensAtBeginLogitsProcessor([7, 1], 4)),
    ),
    "transformers NoRepeatNGram": Same(
        lp.NoRepeatNgramSpec(3), lambda: of_transformers(hf.NoRepeatNGramLogitsProcessor(3)), few
    ),
    "transformers ForcedEOS": Same(
        lp.ForcedEndSpec(9, (EOS,)),
        lambda: of_transformers(hf.ForcedEOSTokenLogitsProcessor(4 + 9 + 1, EOS)),
    ),
}

SAME = ALWAYS_ACT | ACT_AT_TIMES


@pytest.mark.parametrize("name", SAME)
def test_same(name: str):
    case = SAME[name]
    acted = 0
    for seed in range(40):
        rng = random.Random(seed)
        prompt = [8]
        while len(prompt) < 4:
            prompt.append(case.speak(rng, prompt))
        if case.specs == lp.BannedSequencesSpec(SEQUENCES):
            prompt[-1] = 8  # nothing that goes on in the output
        for step in case.steps(prompt, case.speak, seed):
            step.assert_same()
            acted += step.acted
            assert step.acted or name in ACT_AT_TIMES
    if name in ACT_AT_TIMES:
        assert 40 <= acted < 40 * STEPS  # there was something to compare, and something else


def test_same_forced_bos_where_all_is_one_token():
    peer = of_transformers(hf.ForcedBOSTokenLogitsProcessor(7))
    for step in steps(lp.ForcedTokenSequenceSpec((7,)), peer, [8], [0, 1]):
        step.assert_same()


# --- logits-processor-zoo, which needs a tokenizer ---


def rows(tokenizer: Any, favourites: Sequence[int | None]) -> list[torch.Tensor]:
    """Random logits over the real vocabulary, with favourites."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(len(favourites), len(tokenizer), generator=generator)
    for row, favourite in zip(logits, favourites, strict=True):
        if favourite is not None:
            row[favourite] = 20.0
    return list(logits)


def steps_of_favourites(
    tokenizer: Any, spec: lp.LogitsProcessorSpec, processor: Any, favourites: Sequence[int]
) -> Iterator[Step]:
    """With a processor of the zoo's, where the model says its favourites."""
    logits = rows(tokenizer, favourites)
    return steps(spec, of_transformers(processor), [8], favourites[:-1], logits=logits)


def token(tokenizer: Any, text: str) -> int:
    (token_id,) = tokenizer.encode(text, add_special_tokens=False)
    return token_id


PROMPT = "Is it 1. tea, 2. coffee, or 3. water?\n1. tea\n2. coffee\n3. water\nAnswer: "


@pytest.mark.parametrize("boost", [2.0, -3.0])
@pytest.mark.parametrize("boost_eos", [False, True])
@pytest.mark.parametrize("template", ["", "<|im_end|>\n"])  # the latter is EOS itself
def test_zoo_cite_from_prompt(tokenizer: Any, boost: float, boost_eos: bool, template: str):
    eos = tokenizer.eos_token_id
    specs: list[lp.LogitsProcessorSpec] = [lp.PromptBiasSpec(boost)]
    if boost_eos:
        specs = [lp.PromptBiasSpec(boost, (eos,)), lp.LogitBiasSpec({eos: boost})]
    peer = of_transformers(zoo.CiteFromPromptLogitsProcessor(tokenizer, boost, boost_eos))
    prompt = tokenizer.encode(PROMPT + template)
    plan = tokenizer.encode("Water, of course.")
    logits = rows(tokenizer, [None] * (len(plan) + 1))
    for step in steps(specs, peer, prompt, plan, logits=logits):
        step.assert_same()
        assert step.acted


def test_zoo_multiple_choice(tokenizer: Any):
    digits = [token(tokenizer, digit) for digit in "123"]
    prompt = tokenizer.encode(PROMPT)

    def peer() -> Peer:
        return of_transformers(zoo.MultipleChoiceLogitsProcessor(tokenizer, [*"123"]))

    logits = rows(tokenizer, [None, digits[1], token(tokenizer, "A"), None])
    plan = [digits[0]] * 3
    # At every step, as theirs does; of the tokens that are possible, with the same probabilities.
    for step in steps(lp.AllowedTokensSpec(digits), peer(), prompt, plan, logits=logits):
        step.assert_same_favourite()
        torch.testing.assert_close(step.ours[digits].softmax(-1), step.theirs[digits].softmax(-1))
    # differs: an answer is one answer, and then EOS.
    answer = lp.ChoiceSpec([[digit] for digit in digits], tokenizer.eos_token_id)
    first, *after = steps(answer, peer(), prompt, plan, logits=logits)
    first.assert_same_favourite()
    for step in after:
        assert forced(step.ours) == tokenizer.eos_token_id
        assert step.theirs.argmax() in digits


@pytest.mark.parametrize("times", [1, 2, 3])
def test_zoo_trigger_phrase(tokenizer: Any, times: int):
    said, phrase = token(tokenizer, "Stop"), tokenizer.encode("Stop it now")
    assert phrase[0] == said  # the phrase's own tokens set nothing off
    words = tokenizer.encode("Well and then")
    favourites = [*words, said, *words, said, said, *words, *words, said, *words, *words]
    peer = zoo.TriggerPhraseLogitsProcessor(
        tokenizer, 1, "Stop it now", "Stop", trigger_count=times, trigger_after=True
    )
    spec = lp.TriggerSpec.from_text("Stop", "Stop it now", tokenizer, times=times)
    acted = 0
    for step in steps_of_favourites(tokenizer, spec, peer, favourites):
        step.assert_same_favourite()
        acted += step.acted
    assert acted == times * len(phrase)


@pytest.mark.parametrize("after", [0, 1, 4])
def test_zoo_force_last_phrase_where_the_model_would_end(tokenizer: Any, after: int):
    eos, word = tokenizer.eos_token_id, token(tokenizer, "so")
    phrase = tokenizer.encode(" That is all.")
    favourites = [word] * after + [eos] * (len(phrase) + 3)
    spec = lp.ForcedEndSpec(after, phrase)
    peer = zoo.ForceLastPhraseLogitsProcessor(" That is all.", tokenizer, 1)
    for step in steps_of_favourites(tokenizer, spec, peer, favourites):
        step.assert_same_favourite()
    # differs: theirs looks at the logits, ours counts.
    peer = zoo.ForceLastPhraseLogitsProcessor(" That is all.", tokenizer, 1)
    *_, before, last = steps_of_favourites(tokenizer, spec, peer, [word] * (after + 2))
    assert before.theirs.argmax() == last.theirs.argmax() == word
    assert forced(before.ours) == phrase[0]


def test_zoo_max_time(tokenizer: Any):
    eos, word = tokenizer.eos_token_id, token(tokenizer, "so")
    spec = lp.ForcedEndSpec(3, (eos,))
    with patch("time.time", side_effect=itertools.count()):  # a second each call, as each token
        peer = zoo.MaxTimeLogitsProcessor(tokenizer, max_time=3.5)
        for step in steps_of_favourites(tokenizer, spec, peer, [word] * 6):
            step.assert_same_favourite()
    # differs: theirs measures seconds.
    with patch("time.time", return_value=0.0):
        peer = zoo.MaxTimeLogitsProcessor(tokenizer, max_time=3.5)
        *_, last = steps_of_favourites(tokenizer, spec, peer, [word] * 4)
    assert (forced(last.ours), last.theirs.argmax()) == (eos, word)


class LengthRule(HistoryRule):
    """What ``GenLengthLogitsProcessor`` does, as a server's plugin."""

    def __init__(self, params: Mapping[str, Any]):
        self.token, self.factor = params["token"], params["factor"]

    def additions(
        self, prompt_ids: Sequence[int], output_ids: Sequence[int]
    ) -> Mapping[int, float]:
        if self.token in output_ids:
            return {}
        return {self.token: self.factor * len(output_ids) ** 2 / 100}


@pytest.mark.parametrize("factor", [1.0, -0.5])
def test_zoo_generation_length_as_a_plugin(tokenizer: Any, factor: float):
    eos = tokenizer.eos_token_id
    peer = of_transformers(zoo.GenLengthLogitsProcessor(tokenizer, factor))
    words = tokenizer.encode("This goes on for quite a while, and then it is over.")
    plan = [*words, eos, *words[:3]]
    logits = rows(tokenizer, [None] * (len(plan) + 1))
    with patch.object(plugins, "_plugins", return_value={"length": lambda: LengthRule}):
        spec = lp.PluginSpec("length", {"token": eos, "factor": factor})
        for step in steps(spec, peer, words, plan, logits=logits):
            step.assert_same()


ZOO: dict[str, Callable[[Any], Any]] = {
    "length": lambda each: zoo.GenLengthLogitsProcessor(each, 1.0, complete_sentences=True),
    "cite": lambda each: zoo.CiteFromPromptLogitsProcessor(each, 2, conditional_boost_factor=1),
    "last phrase": lambda each: zoo.ForceLastPhraseLogitsProcessor(" Thanks.", each, 1),
    "choice": lambda each: zoo.MultipleChoiceLogitsProcessor(each, [*"123"], boost_first_words=0.5),
    "trigger": lambda each: zoo.TriggerPhraseLogitsProcessor(each, 1, " and more", "so"),
    "hallucination": lambda each: zoo.PreventHallucinationLogitsProcessor(each, 1),
    "max time": lambda each: zoo.MaxTimeLogitsProcessor(each, 2.5),
}


@pytest.mark.parametrize("make", ZOO.values(), ids=ZOO)
def test_zoo_as_live_callables(tokenizer: Any, make: Callable[[Any], Any]):
    """Where a callable can run, theirs run as they are, and do all that they do."""
    prompt = tokenizer.encode(PROMPT)
    eos, word, stop = tokenizer.eos_token_id, token(tokenizer, "so"), token(tokenizer, ".")
    favourites = [word, None, None, None, stop, None, eos, None, None, None, stop, None]
    clocks = [itertools.count(0.0, 0.5), itertools.count(0.0, 0.5)]
    theirs, mine = (of_transformers(make(tokenizer)) for _ in range(2))

    def with_clock(peer: Peer, clock: Iterator[float]) -> Peer:
        def call(prompt: list[int], output: list[int], logits: torch.Tensor) -> torch.Tensor:
            with patch("time.time", side_effect=clock):
                return peer(prompt, output, logits)

        return call

    spec = lp.PythonProcessorSpec(lambda: with_clock(mine, clocks[0]))
    plan = [stop if favourite is None else favourite for favourite in favourites[:-1]]
    logits = rows(tokenizer, favourites)
    acted = 0
    for step in steps(spec, with_clock(theirs, clocks[1]), prompt, plan, logits=logits):
        assert torch.equal(step.ours, step.theirs)
        acted += step.acted
    assert acted


# --- differs: what is meant ---


def test_differs_zoo_raises_a_token_and_leaves_the_rest_possible(tokenizer: Any):
    word, phrase = token(tokenizer, "so"), tokenizer.encode(" That is all.")
    flat = torch.zeros(len(tokenizer))
    flat[tokenizer.eos_token_id] = 1.0
    peer = of_transformers(zoo.ForceLastPhraseLogitsProcessor(" That is all.", tokenizer, 1))
    (step,) = steps(lp.ForcedEndSpec(0, phrase), peer, [word], [], logits=[flat])
    step.assert_same_favourite()
    assert forced(step.ours) == phrase[0]
    assert step.theirs.softmax(-1)[phrase[0]] < 0.001


# the favourite | what is said | what ours forces after it | what is theirs' favourite then
@pytest.mark.parametrize(
    ("favourite", "said", "ours", "theirs"),
    [("Stop", "so", None, " now"), ("so", "Stop", " now", "so")],
)
def test_differs_zoo_trigger_is_the_favourite_ours_is_what_was_said(
    tokenizer: Any, favourite: str, said: str, ours: str | None, theirs: str
):
    peer = of_transformers(
        zoo.TriggerPhraseLogitsProcessor(tokenizer, 1, " now", "Stop", trigger_after=True)
    )
    spec = lp.TriggerSpec.from_text("Stop", " now", tokenizer)
    logits = rows(tokenizer, [token(tokenizer, favourite), token(tokenizer, "so")])
    _, after = steps(spec, peer, [8], [token(tokenizer, said)], logits=logits)
    assert forced(after.ours) == (ours and token(tokenizer, ours))
    assert after.theirs.argmax() == token(tokenizer, theirs)


def test_differs_zoo_trigger_can_be_replaced_by_the_phrase(tokenizer: Any):
    trigger, now = token(tokenizer, "Stop"), token(tokenizer, " now")
    peer = of_transformers(zoo.TriggerPhraseLogitsProcessor(tokenizer, 1, " now", "Stop"))
    spec = lp.TriggerSpec.from_text("Stop", " now", tokenizer)
    first, after = steps(spec, peer, [8], [trigger], logits=rows(tokenizer, [trigger, trigger]))
    assert (first.ours.argmax(), first.theirs.argmax()) == (trigger, now)
    assert forced(after.ours) == now


class Otherwise(NamedTuple):
    """An output after which the two do not force the same token; before, they do the same."""

    case: Same
    prompt: list[int]
    output: list[int]
    ours: int | None
    theirs: int | None


FORCED_OTHERWISE = {
    "SGLang does not repeat a newline that was just said": Otherwise(
        sglang_budget(2), [START], [0, NEWLINE], NEWLINE, END
    ),
    "SGLang counts anew from a start tag within a block": Otherwise(
        sglang_budget(3), [START], [0, START, 0], NEWLINE, None
    ),
    "transformers forces EOS once": Otherwise(
        Same(
            lp.ForcedEndSpec(2, (EOS,), EOS),
            lambda: of_transformers(hf.ForcedEOSTokenLogitsProcessor(1 + 2 + 1, EOS)),
        ),
        *([8], [0, 0, EOS], EOS, None),
    ),
    "vLLM says a whole end tag after half of it": Otherwise(
        vllm_budget(2, end=(9, END)), [8], [START, 0, 9], END, 9
    ),
    "vLLM misses the end of a block after a stray end tag": Otherwise(
        vllm_budget(1), [8], [END, START, END], None, END
    ),
    "vLLM gives a prompt's block the start tag's length on top": Otherwise(
        vllm_budget(3, start=(9, START)), [8, 9, START, 0, 0], [0], END, None
    ),
    "vLLM counts a prompt's block from its last start tag": Otherwise(
        vllm_budget(3), [START, 0, START, 0], [], END, None
    ),
    # Under V1: with a phrase in ``reasoning_end_str``, the whole of it is the end tag.
    "vLLM does not see a natural end where a phrase is forced": Otherwise(
        vllm_budget(2, (9,)), [8], [START, 0, END], None, 9
    ),
}


@pytest.mark.parametrize("differs", FORCED_OTHERWISE.values(), ids=FORCED_OTHERWISE)
def test_differs_in_what_is_forced(differs: Otherwise):
    *before, last = differs.case.steps(differs.prompt, differs.output)
    for step in before:
        step.assert_same()
    assert (forced(last.ours), forced(last.theirs)) == (differs.ours, differs.theirs)


def test_differs_sglang_disallows_the_same_for_the_whole_batch():
    logits = torch.zeros(2, VOCAB)
    with pytest.raises(AssertionError):
        sglang.DisallowedTokensLogitsProcessor()(logits, [{"token_ids": [1]}, {"token_ids": [2]}])
    realizer = Realizer(VOCAB)
    for row in range(2):
        realizer.add(row, compile_specs([lp.BannedTokensSpec((row + 1,))]), [8], [])
    realizer.apply(logits)
    assert (logits.softmax(-1) == 0).nonzero().tolist() == [[0, 1], [1, 2]]


def test_differs_sglang_window_narrower_than_n_does_nothing():
    peer = of_sglang(sglang.DeepseekOCRNoRepeatNGramLogitProcessor(), ngram_size=3, window_size=2)
    row = torch.zeros(VOCAB)
    assert torch.equal(peer([1, 2, 3, 1, 2], [], row.clone()), row)
    with pytest.raises(lp.SpecError, match="window of at least n=3"):
        lp.NoRepeatNgramSpec(3, 2)


def test_differs_transformers_biased_sequences_may_begin_in_the_prompt():
    peer = of_transformers(hf.SequenceBiasLogitsProcessor([[[0, 1], 9.0]]))
    first, after = steps(lp.SequenceBiasSpec([[0, 1]], [9]), peer, [8, 0], [0])
    assert float(first.theirs[1] - first.ours[1]) == pytest.approx(9, abs=1e-3)
    after.assert_same()


def test_differs_vllm_bad_words_leave_a_form_of_another_length(tokenizer: Any):
    forms = [tokenizer.encode(form, add_special_tokens=False) for form in ("tomato", " tomato")]
    assert [*map(len, forms)] == [2, 1]
    sampling = params(bad_words=["tomato", "Paris"])
    with patch.object(type(tokenizer), "max_token_id", len(tokenizer) - 1, create=True):
        sampling.update_from_tokenizer(tokenizer)
    theirs = sampling.bad_words_token_ids
    ours = lp.BannedSequencesSpec.from_words(["tomato", "Paris"], tokenizer).sequences
    assert theirs
    assert {*ours} - {*map(tuple, theirs)} == {tuple(forms[1])}
    assert {*map(tuple, theirs)} < {*ours}


def test_differs_vllm_bias_is_cut_off_at_100():
    sampling = SamplingParams.from_optional(logit_bias={6: 500.0}, max_tokens=1)
    (step,) = steps(lp.LogitBiasSpec({6: 500.0}), of_vllm(sampling), [8], [])
    assert math.isclose(step.ours[6] - step.theirs[6], 400.0, abs_tol=1e-3)


# spec | peer | prompt | output | a token that the one leaves, and the other bans | ours leaves it
LEFT_BY_ONE: dict[str, tuple[lp.LogitsProcessorSpec, Peer, list[int], list[int], int, bool]] = {
    "transformers' bad words may begin in the prompt": (
        lp.BannedSequencesSpec([[0, 1]]),
        of_transformers(hf.NoBadWordsLogitsProcessor([[0, 1]])),
        *([8, 0], [], 1, True),
    ),
    "transformers never bans EOS as a word": (
        lp.BannedSequencesSpec([[EOS]]),
        of_transformers(hf.NoBadWordsLogitsProcessor([[EOS], [0]], eos_token_id=EOS)),
        *([8], [], EOS, False),
    ),
    "vLLM's n-grams are those of the output": (
        lp.NoRepeatNgramSpec(2, 100),
        vllm_no_repeat(2, 100).peer(),
        *([0, 1, 0], [0], 1, False),
    ),
    "vLLM finds no n-grams of one token": (
        lp.NoRepeatNgramSpec(1, 100),
        vllm_no_repeat(1, 100).peer(),
        *([8], [0, 1], 1, False),
    ),
}


@pytest.mark.parametrize("case", LEFT_BY_ONE.values(), ids=LEFT_BY_ONE)
def test_differs_in_what_is_left(case: Any):
    spec, peer, prompt, output, token_id, is_left = case
    *_, last = steps(spec, peer, prompt, output)
    left = [bool(row.softmax(-1)[token_id]) for row in (last.ours, last.theirs)]
    assert left == [is_left, not is_left]


def test_differs_dynamo_counts_calls():
    """As vLLM calls a processor for each chunk of a prompt."""
    realizer, peer = Realizer(VOCAB), dynamo.ForcedSequenceLogitsProcessor((7, 1, 9), EOS)
    realizer.add(0, compile_specs([lp.ForcedTokenSequenceSpec((7, 1, 9), EOS)]), [8], [])
    chosen: list[tuple[int | None, int | None]] = []
    for _ in range(4):
        ours, theirs = torch.zeros(1, VOCAB), torch.zeros(VOCAB)
        realizer.apply(ours)
        peer([], theirs)
        chosen.append((forced(ours[0]), forced(theirs)))
    assert chosen == [(7, 7), (7, 1), (7, 9), (7, EOS)]

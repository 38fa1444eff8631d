"""Transformers' ``generate``: batches, beams, drafts, and the fields of its configuration."""

import copy
import json
import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jsonschema
import pytest
import torch
from logitport import spec as lp
from logitport.adapters.conformance import Output, Request
from logitport.adapters.conformance.suite import DTYPES
from logitport.adapters.core import plugins
from logitport.adapters.reference import obeys
from logitport.adapters.transformers import BACKEND, LogitportProcessor
from transformers import AutoModelForCausalLM, NoRepeatNGramLogitsProcessor

from tests.adapters.failing import fails_later
from tests.adapters.suite import TinySuite
from tests.support.drafted import DRAFTED, PROMPT
from tests.support.endings import PROMPT as PROMPT_IDS
from tests.support.endings import REPLIES, assert_ended, ending
from tests.support.grammars import ANSWER, LONGEST, SCHEMA, answer_of, thinking
from tests.support.texts import BANNED, is_free_of_banned
from tests.support.tiny_model import EOS, tiny_model

VOCABULARY = 512
PROMPTS = [[5, 11, 3], [40, 21], [9, 30, 7, 8, 12]]
TEXT = (504, 105, 17, 56)
FORCED = lp.ForcedTokenSequenceSpec(TEXT, EOS)


@pytest.fixture(scope="module")
def models() -> dict[str, Any]:
    """A model of chance: the suite runs hundreds of requests, and any model will do."""
    return {dtype: tiny_model(0).to(getattr(torch, dtype)) for dtype in DTYPES}


@pytest.fixture(scope="module")
def tiny(models: dict[str, Any]) -> Any:
    return models["float32"]


def padded(tokenizer: Any, prompts: Sequence[Sequence[int]]) -> Any:
    ids = [{"input_ids": [*prompt]} for prompt in prompts]
    return tokenizer.pad(ids, padding_side="left", return_tensors="pt")


@pytest.fixture(scope="module")
def inputs(tokenizer: Any) -> Any:
    return padded(tokenizer, PROMPTS)


class TestConformance(TinySuite):
    backend = BACKEND
    uses = ("models", "tokenizer")
    # `generate` makes float32 of a model's logits before anybody sees them (transformers 5.19).
    dtypes = DTYPES

    def run(self, models: Any, tokenizer: Any, requests: Sequence[Request]) -> list[Output]:
        inputs = padded(tokenizer, [request.prompt_ids for request in requests])
        (dtype,) = {request.dtype for request in requests}
        specs = [each.specs for each in requests]
        continued = [each.continued for each in requests]
        processor = LogitportProcessor(models[dtype], specs, **inputs, continued=continued)
        outputs = models[dtype].generate(
            **inputs,
            logits_processor=[processor],
            do_sample=False,
            max_new_tokens=max(request.max_tokens for request in requests),
            output_scores=True,
            return_dict_in_generate=True,
        )
        said = outputs.sequences[:, inputs["input_ids"].shape[1] :].tolist()
        return [
            Output(_until_eos(tokens[: request.max_tokens]), scores)
            for tokens, request, scores in zip(said, requests, outputs.scores[0], strict=True)
        ]


def _until_eos(tokens: list[int]) -> list[int]:
    return tokens[: tokens.index(EOS) + 1] if EOS in tokens else tokens


def run(model: Any, inputs: Any, processor: Any, **arguments: Any) -> list[list[int]]:
    with torch.inference_mode():
        sequences = model.generate(**inputs, logits_processor=[processor], **arguments)
    return [_until_eos(row) for row in sequences[:, inputs["input_ids"].shape[1] :].tolist()]


def test_texts(model: Path, tokenizer: Any):
    """By the texts of a real model's tokens; a ``generate`` has no tokenizer of its own."""
    generator: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    inputs = tokenizer(["The capital of France is"] * 2, return_tensors="pt")
    cities = {"kind": "choice", "texts": [" London", " Paris"]}
    for specs, path in (
        ([BANNED, ()], r"\$\[0\]\.specs\[0\]"),
        ([(), [cities]], r"\$\[1\]\.specs"),
    ):
        with pytest.raises(lp.SpecError, match=f"needs the model's tokenizer.*{path}"):
            LogitportProcessor(generator, specs, **inputs)
    processor = LogitportProcessor(generator, [BANNED, [cities]], tokenizer=tokenizer, **inputs)
    free, city = run(generator, inputs, processor, do_sample=False, max_new_tokens=12)
    text = tokenizer.decode(free, skip_special_tokens=True)
    assert is_free_of_banned(text), text
    assert tokenizer.decode(city, skip_special_tokens=True) in cities["texts"]


def test_texts_at_the_end(tiny: Any):
    """Of replies that are sampled, and end by themselves; `sampling` says how, if it is known."""
    prompts, arguments = torch.tensor([PROMPT_IDS] * REPLIES), {"max_new_tokens": 400, "top_k": 0}
    processor = LogitportProcessor(tiny, [ending(9.0)] * REPLIES, prompts)
    torch.manual_seed(0)
    inputs = {"input_ids": prompts, "attention_mask": torch.ones_like(prompts)}
    assert_ended(run(tiny, inputs, processor, do_sample=True, temperature=1.0, **arguments))
    two, sampling = lp.AtEndSpec((5,), (EOS, 7), 0.5), lp.SamplingSpec(temperature=1.0)
    with pytest.raises(lp.SpecError, match="Expected the request's temperature, 1, by which"):
        LogitportProcessor(tiny, [two], prompts[:1], sampling=sampling)


GRAMMAR = (504,), (505,), (506, 507)
"""Tokens that open and close a thought, and the last text, which have no part in JSON."""


@pytest.mark.parametrize(
    "arguments",
    [
        {"do_sample": True, "temperature": 1.0},
        {"num_beams": 3, "do_sample": False},
        {"do_sample": True, "prompt_lookup_num_tokens": 3},
    ],
    ids=["sampled", "beams", "drafts"],
)
def test_replies_think_and_then_answer(tiny: Any, tokenizer: Any, arguments: dict[str, Any]):
    start, end, last = GRAMMAR
    prompts = [[5, 11, 3, *start], [40, *start], [9, 30, 7, 8, 12, *start]]
    prompts = prompts[:1] if "prompt_lookup_num_tokens" in arguments else prompts * 4
    batch = padded(tokenizer, prompts)
    specs = [thinking(start, end, last, EOS)] * len(prompts)
    processor = LogitportProcessor(tiny, specs, **batch, tokenizer=tokenizer)
    torch.manual_seed(0)
    outputs = run(tiny, batch, processor, max_new_tokens=LONGEST, **arguments)
    answers = [answer_of(output, tokenizer.decode, end, last, EOS) for output in outputs]
    assert len(answers) == len(prompts)


@pytest.mark.parametrize("spec", [ANSWER, lp.GrammarSpec(regex="[a-z]{2,9}/[0-9]{2,9}")])
def test_a_grammar_by_itself(tiny: Any, tokenizer: Any, inputs: Any, spec: lp.GrammarSpec):
    processor = LogitportProcessor(tiny, [spec] * 3, **inputs, tokenizer=tokenizer)
    outputs = run(tiny, inputs, processor, max_new_tokens=LONGEST, do_sample=True)
    for output in outputs:
        text = tokenizer.decode([token for token in output if token != EOS])
        if spec.regex is None:
            jsonschema.validate(json.loads(text), SCHEMA)
        else:
            assert re.fullmatch(spec.regex, text)
    with pytest.raises(lp.SpecError, match="needs the model's tokenizer: pass tokenizer="):
        LogitportProcessor(tiny, [spec] * 3, **inputs)
    budget = lp.ThinkingBudgetSpec(5, (504,), (505,))
    with pytest.raises(lp.SpecError, match="Expected it in a phase before the grammar's"):
        LogitportProcessor(tiny, [[budget, spec]] * 3, **inputs, tokenizer=tokenizer)


def test_beams_without_specs_are_left_alone(tiny: Any, inputs: Any):
    """Their scores are not normalized where a penalty comes before us, and are not by us."""
    banned = lp.BannedTokensSpec((7,))
    processor = LogitportProcessor(tiny, [FORCED, (), banned], **inputs)
    scores = torch.randn(6, VOCABULARY, generator=torch.Generator().manual_seed(0)).bfloat16()
    edited = processor(inputs["input_ids"].repeat_interleave(2, 0), scores)
    assert torch.equal(edited[2:4], scores[2:4])
    rows = edited[[0, 1, 4, 5]]
    torch.testing.assert_close(rows, rows.log_softmax(-1))


def test_beams_are_compared_as_with_renormalize_logits(tiny: Any, inputs: Any):
    """Without it, a beam of transformers' keeps the mass of banned tokens as its loss."""
    asked = {"num_beams": 4, "num_return_sequences": 4, "max_new_tokens": 12}
    free = run(tiny, inputs, LogitportProcessor(tiny, [(), (), ()], **inputs), **asked)
    words = [[token] for token in {token for output in free for token in output[:3]} - {EOS}]
    asked |= {"return_dict_in_generate": True, "output_scores": True}
    processor = LogitportProcessor(tiny, [lp.BannedSequencesSpec(words)] * 3, **inputs)
    ours = tiny.generate(**inputs, logits_processor=[processor], **asked)
    theirs = {
        renormalize: tiny.generate(
            **inputs, bad_words_ids=words, renormalize_logits=renormalize, **asked
        )
        for renormalize in (False, True)
    }
    assert torch.equal(ours.sequences, theirs[True].sequences)
    torch.testing.assert_close(ours.sequences_scores, theirs[True].sequences_scores)
    assert (ours.sequences_scores > theirs[False].sequences_scores + 0.01).any()


def test_padding_is_no_part_of_a_prompt(tiny: Any, inputs: Any):
    """For transformers' own processors it is: with EOS for padding, the row could never end."""
    padded, scores = inputs["input_ids"], torch.zeros(3, VOCABULARY)
    processor = LogitportProcessor(tiny, [lp.NoRepeatNgramSpec(1)] * 3, **inputs)
    banned = [(row < 0).nonzero().flatten().tolist() for row in processor(padded, scores)]
    assert banned == [sorted(prompt) for prompt in PROMPTS]
    assert (NoRepeatNGramLogitsProcessor(1)(padded, scores)[:2, EOS] < 0).all()


@pytest.fixture(scope="module")
def assistant() -> Any:
    """Almost the same model: many of its drafts are taken, and some are rejected."""
    similar = tiny_model(0)
    with torch.no_grad():
        for parameter in similar.parameters():
            parameter += 0.05 * parameter.std() * torch.randn_like(parameter)
    similar.generation_config.assistant_confidence_threshold = 0
    similar.generation_config.num_assistant_tokens = 4
    similar.generation_config.num_assistant_tokens_schedule = "constant"
    return similar


@pytest.mark.parametrize("make", [lambda free: (), *DRAFTED.values()], ids=["none", *DRAFTED])
def test_assistant_model(assistant: Any, tiny: Any, make: Any):
    """Drafts obey, too: ``generate`` calls the processor on the assistant's logits as well."""
    inputs = {"input_ids": torch.tensor([PROMPT])}
    greedy = {"do_sample": False, "max_new_tokens": 24}
    (free,) = run(tiny, inputs, LogitportProcessor(tiny, [()], **inputs), **greedy)
    specs = make(free)
    processor = LogitportProcessor(tiny, [specs], **inputs)
    (plain,) = run(tiny, inputs, processor, **greedy)
    if specs:
        assert obeys(specs[0], PROMPT, plain)
        assert plain != free
    lengths, forwards = list[int](), list[Any]()

    def spy(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        lengths.append(input_ids.shape[1])
        return processor(input_ids, scores)

    with tiny.register_forward_hook(lambda *called: forwards.append(called)):
        (said,) = run(tiny, inputs, spy, assistant_model=assistant, **greedy)
    assert said == plain
    assert any(later < earlier for earlier, later in pairwise(lengths)), "no draft was rejected"
    assert len(forwards) < len(said), "no draft was accepted"


def test_a_processor_can_be_used_again(tiny: Any, inputs: Any):
    """With another number of rows, too."""
    processor = LogitportProcessor(tiny, [FORCED, (), ()], **inputs)
    for beams in (1, 1, 3, 1, 2):
        said = run(tiny, inputs, processor, max_new_tokens=5, do_sample=False, num_beams=beams)
        assert said[0] == [*TEXT, EOS]


def test_other_prompts_are_refused(tiny: Any, inputs: Any):
    """But for those of an assistant with another vocabulary, which are left alone."""
    processor = LogitportProcessor(tiny, [FORCED, (), ()], **inputs)
    for rows in ([0, 1], [1, 0, 2]):
        with pytest.raises(lp.SpecError, match="Expected the prompts that this processor"):
            processor(inputs["input_ids"][rows], torch.zeros(len(rows), VOCABULARY))
    for columns in (VOCABULARY // 2, VOCABULARY + 1000):
        scores = torch.zeros(1, columns)
        assert processor(torch.ones(1, 5, dtype=torch.int64), scores) is scores


def test_failing_code_is_called_once_for_a_beam(tiny: Any, inputs: Any, caplog: Any):
    """However often the beams change places, and again in the next generation."""
    failing = lp.PythonProcessorSpec(fails_later)
    processor = LogitportProcessor(tiny, [(), failing, ()], **inputs)
    for times in (1, 2):
        run(tiny, inputs, processor, num_beams=3, max_new_tokens=12)
        failures = [each for each in caplog.records if "broken" in each.getMessage()]
        assert len(failures) == 3 * times


def test_equal_specs_keep_their_own_parameters(
    tiny: Any, inputs: Any, monkeypatch: pytest.MonkeyPatch
):
    """To Python, 1 is True."""
    seen: list[Any] = []

    def noting(params: Any) -> Any:
        seen.append(params["strict"])
        return lambda output_ids, logits: None

    monkeypatch.setattr(plugins, "_plugins", lambda: {"noting": lambda: noting})
    specs = [lp.PluginSpec("noting", {"strict": strict}) for strict in (True, 1, 1.0)]
    LogitportProcessor(tiny, specs, **inputs)(inputs["input_ids"], torch.zeros(3, VOCABULARY))
    assert {repr(each) for each in seen} == {"True", "1", "1.0"}


CITIES = {"kind": "choice", "token_ids": [[5], [6]]}
THREE = [FORCED, (), ()]


# the specs | the prompts, or the tokenizer's | message
@pytest.mark.parametrize(
    ("specs", "input_ids", "message"),
    [
        *(
            (specs, None, "Expected a sequence with the specs of each of 3 prompts")
            for specs in ([FORCED], FORCED, CITIES, "[]", {"version": 1, "specs": [CITIES]})
        ),
        *((THREE, ids, 'return_tensors="pt"') for ids in (PROMPTS, torch.tensor([1, 2, 3]))),
        (
            [(), (), lp.BannedTokensSpec((512,))],
            None,
            r"beyond the vocabulary.*\$\[2\]\.specs\[0\]",
        ),
        ([(), None, ()], None, r"Expected a LogitsProcessorSpec.* got None - at `\$\[1\]`"),
    ],
)
def test_refused(tiny: Any, inputs: Any, specs: Any, input_ids: Any, message: str):
    given = inputs if input_ids is None else {"input_ids": input_ids}
    with pytest.raises(lp.SpecError, match=message):
        LogitportProcessor(tiny, specs, **given)


# the configuration's fields | spec | message, or None where both can be obeyed
OWN_FIELDS: list[tuple[dict[str, Any], lp.LogitsProcessorSpec, str | None]] = [
    ({"min_new_tokens": 5}, FORCED, r"`min_new_tokens`, which bans token 2 .*\$\[1\]"),
    ({"min_new_tokens": 4}, FORCED, None),
    # counts the prompt and its padding, 5 tokens
    ({"min_length": 10, "eos_token_id": [1, EOS]}, FORCED, "`min_length`, which bans token 2"),
    ({"min_length": 9}, FORCED, None),
    ({"bad_words_ids": [[105, 17]]}, FORCED, r"`bad_words_ids`, which bans token 17"),
    ({"bad_words_ids": [[17, 105], [EOS]]}, FORCED, None),
    ({"suppress_tokens": [17]}, FORCED, "`suppress_tokens`, which bans token 17"),
    ({"begin_suppress_tokens": [504]}, FORCED, "`begin_suppress_tokens`, which bans token 504"),
    ({"begin_suppress_tokens": [105]}, FORCED, None),
    ({"sequence_bias": {(17,): float("-inf")}}, FORCED, "`sequence_bias`, which bans token 17"),
    ({"sequence_bias": [[[17], -100.0]]}, FORCED, None),
    ({"suppress_tokens": [5]}, lp.AllowedTokensSpec((5,)), "no token is left"),
]


@pytest.mark.parametrize(("fields", "spec", "message"), OWN_FIELDS)
def test_own_fields_of_the_configuration(
    tiny: Any, inputs: Any, fields: dict[str, Any], spec: Any, message: str | None
):
    config = copy.deepcopy(tiny.generation_config)
    config.update(**fields)
    own = SimpleNamespace(config=tiny.config, generation_config=config)
    for model, given in ((tiny, {"generation_config": config}), (own, {})):
        if message is None:
            processor = LogitportProcessor(model, [(), spec, ()], **inputs, **given)
            said = run(tiny, inputs, processor, generation_config=config, max_new_tokens=5)
            assert said[1] == [*TEXT, EOS]
        else:
            with pytest.raises(lp.SpecError, match=f"Conflicts with .*{message}"):
                LogitportProcessor(model, [(), spec, ()], **inputs, **given)

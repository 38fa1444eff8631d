"""Transformers' ``generate`` with a real model: batches, beams, several outputs, drafts."""

import copy
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from logitport import spec as lp
from logitport.adapters.conformance import ConformanceSuite, Generate, Output, Request
from logitport.adapters.conformance.reference import obeys
from logitport.adapters.conformance.suite import DTYPES
from logitport.adapters.core import plugins
from logitport.adapters.transformers import BACKEND, LogitportProcessor
from transformers import NoRepeatNGramLogitsProcessor

from tests.support.drafted import DRAFTED, PROMPT
from tests.support.texts import BANNED, is_free_of_banned
from tests.support.tiny_model import EOS, tiny_model

pytestmark = pytest.mark.engine

VOCABULARY = 49152
PROMPTS = ["The capital of France is", "My name is", "Once upon a time, in a land far away, there"]


@pytest.fixture(scope="module")
def generator(model: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def tiny() -> dict[str, Any]:
    """A model of chance: the suite runs hundreds of requests, and any model will do."""
    return {dtype: tiny_model(0).to(getattr(torch, dtype)) for dtype in DTYPES}


class TestConformance(ConformanceSuite):
    backend = BACKEND
    vocab_size = 512
    eos_token_id = EOS
    slots = 4
    long_prompt = 100
    resumes = False
    has_stages = False
    shows_scores = True
    # `generate` makes float32 of a model's logits before anybody sees them (transformers 5.19).
    dtypes = DTYPES

    @pytest.fixture
    def generate(self, tiny: dict[str, Any], tokenizer: Any) -> Generate:
        def generate(requests: Sequence[Request]) -> list[Output]:
            ids = [{"input_ids": [*request.prompt_ids]} for request in requests]
            inputs = tokenizer.pad(ids, padding_side="left", return_tensors="pt")
            (dtype,) = {request.dtype for request in requests}
            specs = [each.specs for each in requests]
            processor = LogitportProcessor(tiny[dtype], specs, **inputs)
            outputs = tiny[dtype].generate(
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

        return generate


def _until_eos(tokens: list[int]) -> list[int]:
    return tokens[: tokens.index(EOS) + 1] if EOS in tokens else tokens


@pytest.fixture(scope="module")
def inputs(tokenizer: Any) -> Any:
    return tokenizer(PROMPTS, padding=True, padding_side="left", return_tensors="pt")


def run(generator: Any, inputs: Any, specs: Sequence[Any], **arguments: Any) -> list[list[int]]:
    processor = LogitportProcessor(generator, specs, **inputs)
    with torch.inference_mode():
        sequences = generator.generate(
            **inputs, logits_processor=[processor], **{"max_new_tokens": 12, **arguments}
        )
    return [_until_eos(row) for row in sequences[:, inputs["input_ids"].shape[1] :].tolist()]


TEXT = (504, 905, 17, 1056)
FORCED = lp.ForcedTokenSequenceSpec(TEXT, EOS)
CHOICE = lp.ChoiceSpec((TEXT, TEXT[:2], (17, 17)), EOS)


@pytest.mark.parametrize(
    "arguments",
    [
        {"num_beams": 4, "num_return_sequences": 3},
        {"do_sample": True, "num_return_sequences": 3},
        {"do_sample": True, "num_beams": 3, "temperature": 1.5},
    ],
    ids=str,
)
def test_several_rows_for_a_prompt(generator: Any, inputs: Any, arguments: dict[str, Any]):
    torch.manual_seed(0)
    said = run(generator, inputs, [FORCED, (), CHOICE], **arguments)
    each = len(said) // 3
    # Beams differ from each other: where one text is possible, the others are not to be had.
    count = 1 if "num_beams" in arguments else each
    assert said[:count] == [[*TEXT, EOS]] * count
    choices = [[*choice, EOS] for choice in CHOICE.choices]
    assert all(output in choices for output in said[2 * each :])
    if not arguments.get("do_sample"):
        torch.manual_seed(0)
        free = generator.generate(**inputs, max_new_tokens=12, **arguments)
        start = inputs["input_ids"].shape[1]
        expected = [_until_eos(row) for row in free[each : 2 * each, start:].tolist()]
        assert said[each : 2 * each] == expected


def test_banned_text(generator: Any, tokenizer: Any, inputs: Any):
    specs = [BANNED, (), BANNED]
    with pytest.raises(lp.SpecError, match="needs the model's tokenizer: pass tokenizer=") as error:
        LogitportProcessor(generator, specs, **inputs)
    assert error.value.path == "$[0].specs[0]"
    processor = LogitportProcessor(generator, specs, tokenizer=tokenizer, **inputs)
    torch.manual_seed(0)
    rows = generator.generate(
        **inputs, logits_processor=[processor], do_sample=True, temperature=1.0, max_new_tokens=12
    )
    for row in rows[::2, inputs["input_ids"].shape[1] :]:
        text = tokenizer.decode(row, skip_special_tokens=True)
        assert is_free_of_banned(text), text


def test_beams_without_specs_are_left_alone(generator: Any, inputs: Any):
    """Their scores are not normalized where a penalty comes before us, and are not by us."""
    processor = LogitportProcessor(generator, [FORCED, (), CHOICE], **inputs)
    torch.manual_seed(0)
    scores = torch.randn(6, VOCABULARY)
    edited = processor(inputs["input_ids"].repeat_interleave(2, 0), scores)
    assert torch.equal(edited[2:4], scores[2:4])
    rows = edited[[0, 1, 4, 5]]
    torch.testing.assert_close(rows, rows.log_softmax(-1))


def test_beams_are_compared_as_with_renormalize_logits(generator: Any, inputs: Any):
    """Without it, a beam of transformers' keeps the mass of banned tokens as its loss."""
    free = run(generator, inputs, [(), (), ()], num_beams=4, num_return_sequences=4)
    words = sorted({token for output in free for token in output[:3]})
    asked = {"num_beams": 4, "max_new_tokens": 12, "return_dict_in_generate": True}
    asked |= {"output_scores": True, "num_return_sequences": 4}
    specs = [lp.BannedSequencesSpec([[word] for word in words])] * 3
    processor = LogitportProcessor(generator, specs, **inputs)
    ours = generator.generate(**inputs, logits_processor=[processor], **asked)
    theirs = {
        renormalize: generator.generate(
            **inputs, bad_words_ids=[[w] for w in words], renormalize_logits=renormalize, **asked
        )
        for renormalize in (False, True)
    }
    assert torch.equal(ours.sequences, theirs[True].sequences)
    torch.testing.assert_close(ours.sequences_scores, theirs[True].sequences_scores)
    assert (ours.sequences_scores > theirs[False].sequences_scores + 0.01).any()


def test_padding_is_no_part_of_a_prompt(generator: Any, inputs: Any):
    """For transformers' own processors it is: with EOS for padding, the row could never end."""
    padded = inputs["input_ids"][:2]
    mask = inputs["attention_mask"][:2]
    assert (padded[:, 0] == EOS).all()
    processor = LogitportProcessor(generator, [lp.NoRepeatNgramSpec(1)] * 2, padded, mask)
    ours = processor(padded, torch.zeros(2, VOCABULARY)).softmax(-1)
    theirs = NoRepeatNGramLogitsProcessor(1)(padded, torch.zeros(2, VOCABULARY)).softmax(-1)
    assert (ours[:, EOS] > 0).all()
    assert (theirs[:, EOS] == 0).all()
    ours[:, EOS] = 0
    assert torch.equal(ours > 0, theirs > 0)


def test_state_follows_the_beams(generator: Any, inputs: Any):
    """What must not come after what depends on the beam's own history."""
    free = run(generator, inputs, [(), (), ()], num_beams=4, num_return_sequences=4)
    pairs = {tuple(output[i : i + 2]) for output in free for i in range(len(output) - 1)}
    spec = lp.BannedSequencesSpec(tuple(sorted(pairs)))
    said = run(generator, inputs, [spec] * 3, num_beams=4, num_return_sequences=4)
    for output in said:
        assert not any(tuple(output[i : i + 2]) in pairs for i in range(len(output) - 1))
    unique = run(generator, inputs, [lp.NoRepeatNgramSpec(1)] * 3, num_beams=4)
    for ids, present, output in zip(
        inputs["input_ids"], inputs["attention_mask"], unique, strict=True
    ):
        prompt = ids[present.bool()].tolist()
        assert len(set(output)) == len(output)
        assert not set(output) & set(prompt)


def test_assisted_generation(generator: Any, tokenizer: Any):
    """Drafts are looked up in the prompt; rejected ones are taken back."""
    inputs = tokenizer(["one two three one two three one two"], return_tensors="pt")
    spec = lp.BannedSequencesSpec(((1296, 827),))
    for specs in ((), FORCED, [lp.LogitBiasSpec({827: -2.0}), spec]):
        plain = run(generator, inputs, [specs], do_sample=False)
        drafted = run(generator, inputs, [specs], do_sample=False, prompt_lookup_num_tokens=3)
        assert drafted == plain


@pytest.fixture(scope="module")
def assistants() -> dict[str, Any]:
    """Models with the vocabulary of the other: one of another mind, one almost of the same.

    With drafts that are all rejected, and drafts of which many are taken.
    """
    similar = tiny_model(0)
    with torch.no_grad():
        for parameter in similar.parameters():
            parameter += 0.05 * parameter.std() * torch.randn_like(parameter)
    made = {"another": tiny_model(1), "similar": similar}
    for assistant in made.values():
        assistant.generation_config.assistant_confidence_threshold = 0
        assistant.generation_config.num_assistant_tokens = 4
        assistant.generation_config.num_assistant_tokens_schedule = "constant"
    return made


class Spy:
    """Sees what a model is asked, and what the processor is."""

    def __init__(self, model: Any, processor: LogitportProcessor) -> None:
        self.forwards = 0
        self.histories: list[list[int]] = []
        self._processor = processor
        self._hook = model.register_forward_hook(self._count)

    def _count(self, *_: Any) -> None:
        self.forwards += 1

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.histories.append(input_ids[0].tolist())
        return self._processor(input_ids, scores)

    def close(self) -> None:
        self._hook.remove()


ASKED = {"input_ids": torch.tensor([PROMPT])}


@pytest.mark.parametrize("assistant", ["another", "similar"])
@pytest.mark.parametrize("make", [lambda free: (), *DRAFTED.values()], ids=["none", *DRAFTED])
def test_assistant_model(assistants: dict[str, Any], assistant: str, make: Any):
    """``generate`` calls the processor on the assistant's logits as well, which has our tokens.

    So drafts obey, too, and what comes out is what comes out without an assistant.
    """
    model, greedy = tiny_model(0), {"do_sample": False, "max_new_tokens": 24}
    (free,) = run(model, ASKED, [()], **greedy)
    specs = make(free)
    (plain,) = run(model, ASKED, [specs], **greedy)
    if specs:
        assert obeys(specs[0], PROMPT, plain)
        assert plain != free
    spy = Spy(model, LogitportProcessor(model, [specs], **ASKED))
    sequences = model.generate(
        **ASKED, assistant_model=assistants[assistant], logits_processor=[spy], **greedy
    )
    spy.close()
    said = _until_eos(sequences[0, len(PROMPT) :].tolist())
    assert said == plain
    lengths = [len(history) for history in spy.histories]
    assert any(later < earlier for earlier, later in pairwise(lengths)), "no draft was checked"
    if assistant == "similar":
        assert spy.forwards < len(said), "no draft was accepted"


@pytest.mark.parametrize("kind", ["choice", "ngrams", "thinking_budget"])
def test_assistant_model_with_sampling(assistants: dict[str, Any], kind: str):
    model = tiny_model(0)
    specs = DRAFTED[kind](run(model, ASKED, [()], do_sample=False)[0])
    for seed in range(4):
        torch.manual_seed(seed)
        sampling = {"do_sample": True, "temperature": 2.0, "max_new_tokens": 12}
        (said,) = run(model, ASKED, [specs], assistant_model=assistants["similar"], **sampling)
        assert obeys(specs[0], PROMPT, said)


def test_a_processor_can_be_used_again(generator: Any, inputs: Any):
    """With another number of rows, too."""
    processor = LogitportProcessor(generator, [FORCED, (), ()], **inputs)
    arguments = {"logits_processor": [processor], "max_new_tokens": 5, "do_sample": False}
    first, *others = (
        generator.generate(**inputs, **arguments, num_beams=beams)[0, -5:].tolist()
        for beams in (1, 1, 3, 1, 2)
    )
    assert first == [*TEXT, EOS]
    assert all(other == first for other in others)


def test_other_prompts_are_refused(generator: Any, inputs: Any):
    processor = LogitportProcessor(generator, [FORCED, (), ()], **inputs)
    for rows in (slice(2), [1, 0, 2]):
        others = {name: tensor[rows] for name, tensor in inputs.items()}
        with pytest.raises(lp.SpecError, match="Expected the prompts that this processor"):
            generator.generate(**others, logits_processor=[processor], max_new_tokens=2)


@pytest.mark.parametrize("columns", [VOCABULARY // 2, VOCABULARY + 1000])
def test_an_assistant_with_another_vocabulary_is_left_alone(
    generator: Any, inputs: Any, columns: int
):
    processor = LogitportProcessor(generator, [FORCED, (), ()], **inputs)
    scores = torch.zeros(1, columns)
    assert processor(torch.ones(1, 5, dtype=torch.int64), scores) is scores


@pytest.mark.parametrize("dtype", DTYPES)
def test_narrow_scores(generator: Any, inputs: Any, dtype: str):
    processor = LogitportProcessor(generator, [FORCED, (), CHOICE], **inputs)
    scores = torch.zeros(3, VOCABULARY, dtype=getattr(torch, dtype))
    edited = processor(inputs["input_ids"], scores)
    assert edited.dtype == scores.dtype
    assert edited[0].argmax() == TEXT[0]
    assert edited[0].max().isfinite()
    assert torch.equal(edited[1], scores[1])
    assert edited[2].isfinite().nonzero().flatten().tolist() == [TEXT[2], TEXT[0]]


def _broken() -> Any:
    def process(output_ids: Sequence[int], logits: torch.Tensor) -> None:
        raise RuntimeError("broken")

    return process


def test_failing_code_is_called_once_for_a_beam(generator: Any, inputs: Any, caplog: Any):
    """However often the beams change places, and again in the next generation."""
    processor = LogitportProcessor(generator, [(), lp.PythonProcessorSpec(_broken), ()], **inputs)
    for times in (1, 2):
        generator.generate(**inputs, logits_processor=[processor], num_beams=3, max_new_tokens=12)
        failures = [each for each in caplog.records if "broken" in each.getMessage()]
        assert len(failures) <= 3 * times


class Unhashable:
    """A factory, as an ordinary dataclass may be one."""

    __hash__ = None  # pyright: ignore

    def __call__(self) -> Any:
        def process(output_ids: Sequence[int], logits: torch.Tensor) -> None:
            logits[TEXT[0]] += 1000

        return process


def test_a_factory_needs_no_hash(generator: Any, inputs: Any):
    spec = lp.PythonProcessorSpec(Unhashable())
    said = run(generator, inputs, [spec, (), spec], do_sample=False, max_new_tokens=2)
    assert [said[0], said[2]] == [[TEXT[0]] * 2] * 2


def test_equal_specs_keep_their_own_parameters(
    generator: Any, inputs: Any, monkeypatch: pytest.MonkeyPatch
):
    """To Python, 1 is True."""
    seen: list[Any] = []

    def noting(params: Any) -> Any:
        seen.append(params["strict"])
        return lambda output_ids, logits: None

    monkeypatch.setattr(plugins, "_plugins", lambda: {"noting": lambda: noting})
    specs = [lp.PluginSpec("noting", {"strict": strict}) for strict in (True, 1, 1.0)]
    run(generator, inputs, specs, max_new_tokens=1)
    assert {repr(each) for each in seen} == {"True", "1", "1.0"}


def test_what_is_no_tensor_of_prompts(generator: Any, tokenizer: Any):
    for inputs in (tokenizer(PROMPTS), {"input_ids": torch.tensor([1, 2, 3])}):
        with pytest.raises(lp.SpecError, match='return_tensors="pt"'):
            LogitportProcessor(generator, [FORCED, (), ()], **inputs)


@pytest.mark.parametrize(
    ("specs", "message"),
    [
        ([FORCED], r"Expected a sequence with the specs of each of 3 prompts"),
        (FORCED, r"Expected a sequence with the specs of each of 3 prompts"),
        ([(), lp.SamplingSpec(temperature=1), ()], r"transformers cannot do `sampling`.*\$\[1\]"),
        (
            [(), (), lp.BannedTokensSpec((VOCABULARY,))],
            r"beyond the vocabulary.*\$\[2\]\.specs\[0\]",
        ),
        ([(FORCED, lp.AllowedTokensSpec((3,))), (), ()], r"\$\[0\]"),
        ([(), (), "text"], r"Expected a LogitsProcessorSpec.* got 'text' - at `\$\[2\]`"),
        ([(), None, ()], r"Expected a LogitsProcessorSpec.* got None - at `\$\[1\]`"),
        ([(), [[FORCED]], ()], r"Expected a LogitsProcessorSpec, got \[.*\$\[1\]\.specs\[0\]"),
    ],
)
def test_refused(generator: Any, inputs: Any, specs: Sequence[Any], message: str):
    with pytest.raises(lp.SpecError, match=message):
        LogitportProcessor(generator, specs, **inputs)


# the configuration's fields | spec | message, or None where both can be obeyed
OWN_FIELDS: list[tuple[dict[str, Any], lp.LogitsProcessorSpec, str | None]] = [
    ({"min_new_tokens": 5}, FORCED, r"`min_new_tokens`, which bans token 2 .*\$\[1\]"),
    ({"min_new_tokens": 4}, FORCED, None),
    ({"min_length": 20}, FORCED, "`min_length`, which bans token 2"),
    ({"min_length": 12}, FORCED, None),  # counts the prompt and its padding, 12 tokens
    ({"bad_words_ids": [[905, 17]]}, FORCED, r"`bad_words_ids`, which bans token 17"),
    ({"bad_words_ids": [[17, 905], [EOS]]}, FORCED, None),
    ({"suppress_tokens": [17]}, FORCED, "`suppress_tokens`, which bans token 17"),
    ({"begin_suppress_tokens": [504]}, FORCED, "`begin_suppress_tokens`, which bans token 504"),
    ({"begin_suppress_tokens": [905]}, FORCED, None),
    ({"sequence_bias": {(17,): float("-inf")}}, FORCED, "`sequence_bias`, which bans token 17"),
    ({"sequence_bias": [[[17], -100.0]]}, FORCED, None),
    ({"suppress_tokens": [5]}, lp.AllowedTokensSpec((5,)), "no token is left"),
]


@pytest.mark.parametrize(("fields", "spec", "message"), OWN_FIELDS)
def test_own_fields_of_the_configuration(
    generator: Any,
    inputs: Any,
    fields: dict[str, Any],
    spec: lp.LogitsProcessorSpec,
    message: str | None,
    monkeypatch: pytest.MonkeyPatch,
):
    config = copy.deepcopy(generator.generation_config)
    config.update(**fields)
    assert inputs["input_ids"].shape[1] == 12
    for given in ({"generation_config": config}, {}):
        if not given:
            monkeypatch.setattr(generator, "generation_config", config)
        if message is None:
            said = LogitportProcessor(generator, [(), spec, ()], **inputs, **given)
            with torch.inference_mode():
                sequences = generator.generate(
                    **inputs, generation_config=config, logits_processor=[said], max_new_tokens=5
                )
            assert sequences[1, 12:].tolist() == [*TEXT, EOS]
        else:
            with pytest.raises(lp.SpecError, match=f"Conflicts with .*{message}"):
                LogitportProcessor(generator, [(), spec, ()], **inputs, **given)


def test_thinking_budget_with_padding(generator: Any, inputs: Any, tokenizer: Any):
    """A block that the prompt opens is found behind the padding."""
    start = int(inputs["input_ids"][1][-1])
    spec: lp.LogitsProcessorSpec = lp.ThinkingBudgetSpec(2, (start,), (17,))
    said = run(generator, inputs, [(), spec, ()], do_sample=False)
    assert said[1][2] == 17

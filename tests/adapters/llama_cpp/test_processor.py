"""llama.cpp with a real model: completions, chats, drafts, grammars, sampling parameters."""

import json
from collections.abc import Callable, Iterator, Sequence
from itertools import islice, pairwise, takewhile
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from llama_cpp import Llama, LogitsProcessorList
from llama_cpp.llama_speculative import LlamaPromptLookupDecoding
from logitport import spec as lp
from logitport.adapters.conformance import Output, Request
from logitport.adapters.core import Vocabulary
from logitport.adapters.llama_cpp import BACKEND, LogitportProcessor, arguments
from logitport.adapters.llama_cpp.json_schema import gbnf
from logitport.adapters.llama_cpp.processor import _vocabulary_of

from examples._support.smollm2 import gguf
from tests.adapters.suite import TinySuite
from tests.support.drafted import DRAFTED, PROMPT
from tests.support.endings import PROMPT as PROMPT_IDS
from tests.support.endings import REPLIES, assert_ended, ending
from tests.support.texts import BANNED, is_free_of_banned
from tests.support.tiny_model import EOS

VOCABULARY = 49152
PARIS = "The capital of France is"


def load(path: Path, **parameters: Any) -> Llama:
    return Llama(str(path), n_ctx=512, n_threads=1, n_threads_batch=1, verbose=False, **parameters)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of chance, as a file."""
    from gguf import GGUFWriter

    path = tmp_path_factory.mktemp("tiny") / "tiny.gguf"
    size, vocabulary, layers = 64, TestConformance.vocab_size, 2
    writer = GGUFWriter(path, "llama")
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    words = [f"w{i}" for i in range(vocabulary - 3 - len(byte_tokens))]
    for name, value in {
        "context_length": 512,
        "embedding_length": size,
        "feed_forward_length": size,
        "block_count": layers,
        "head_count": 4,
        "layer_norm_rms_eps": 1e-6,
        "tokenizer_model": "llama",
        "token_list": ["<unk>", "<s>", "</s>", *byte_tokens, *words],
        "token_scores": [0.0] * vocabulary,
        "token_types": [2, 3, 3] + [6] * len(byte_tokens) + [1] * len(words),
        "eos_token_id": EOS,
    }.items():
        getattr(writer, f"add_{name}")(value)
    random = np.random.default_rng(3)

    def add(name: str, *shape: int) -> None:
        # Large enough that a token's choice is no matter of rounding.
        values = random.normal(0, 0.5, shape) if len(shape) > 1 else np.ones(shape)
        writer.add_tensor(f"{name}.weight", values.astype(np.float32))

    add("token_embd", vocabulary, size)
    add("output_norm", size)
    add("output", vocabulary, size)
    for layer in range(layers):
        for name in ("attn_norm", "ffn_norm"):
            add(f"blk.{layer}.{name}", size)
        for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
            add(f"blk.{layer}.{name}", size, size)
    for part in ("header", "kv_data", "tensors"):
        getattr(writer, f"write_{part}_to_file")()
    writer.close()
    return path


@pytest.fixture(scope="module")
def llms(tiny: Path) -> list[Llama]:
    return [load(tiny, n_batch=64) for _ in range(TestConformance.slots)]


class TestConformance(TinySuite):
    backend = BACKEND
    uses = ("llms",)
    long_prompt = 300  # of which llama.cpp takes 64 at once

    def run(self, llms: list[Llama], requests: Sequence[Request]) -> list[Output]:
        outputs = [Output([]) for _ in requests]
        waiting = [
            _generation(llms[i % self.slots], request, outputs, i)
            for i, request in enumerate(requests)
        ]
        for begin in range(0, len(waiting), self.slots):
            running = waiting[begin : begin + self.slots]
            while running:  # they take turns, a token each
                running = [each for each in running if next(each, None) is not None]
        for llm in llms:
            llm._sampler = None  # which keeps the last processors until the next request
        return outputs


def _generation(llm: Llama, request: Request, outputs: list[Output], index: int) -> Iterator[int]:
    """Runs a request, its specs admitted before any begins."""
    processors = LogitsProcessorList()
    if request.specs:
        processors.append(LogitportProcessor(llm, request.specs, request.continued))
    scores: list[Any] = []

    def note(input_ids: Any, logits: Any) -> Any:
        scores.append(None if scores else logits.copy())
        return logits

    processors.append(note)

    def run() -> Iterator[int]:
        output_ids: list[int] = []
        generated = llm.generate(list(request.prompt_ids), temp=0, logits_processor=processors)
        for token in islice(generated, request.max_tokens):
            output_ids.append(token)
            outputs[index] = Output(output_ids, scores[0])
            yield token
            if token == EOS:
                break

    return run()


def test_texts_at_the_end(llms: list[Llama]):
    """Of replies that are sampled, and end by themselves."""
    llm, outputs = llms[0], list[list[int]]()
    for i in range(REPLIES):
        llm.set_seed(i)
        processors = LogitsProcessorList([LogitportProcessor(llm, ending(13.0))])
        sampling = {"temp": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repeat_penalty": 1.0}
        generated = llm.generate([*PROMPT_IDS], logits_processor=processors, **sampling)
        tokens = islice(generated, 400)
        outputs.append([*takewhile(lambda token: token != EOS, tokens), EOS])
    llm._sampler = None
    assert_ended(outputs)


@pytest.fixture(scope="module")
def llm() -> Llama:
    return load(gguf())


def ids(llm: Llama, text: str) -> tuple[int, ...]:
    return tuple(llm.tokenize(text.encode(), add_bos=False))


def complete(llm: Llama, prompt: Any, specs: Any = (), **others: Any) -> str:
    others = {"temperature": 0, "max_tokens": 12, **others} | arguments(llm, specs)
    return llm.create_completion(prompt, **others)["choices"][0]["text"]


def test_texts(llm: Llama, tokenizer: Any):
    """By the texts of a real model's tokens, and by llama.cpp's own tokenizer."""
    text = complete(llm, PARIS, [BANNED, lp.SamplingSpec(temperature=1)], max_tokens=24)
    assert is_free_of_banned(text), text
    cities = [" London", " Paris"]
    assert complete(llm, PARIS, {"kind": "choice", "texts": cities}) in cities
    expected, own = lp.ChoiceSpec.from_text(cities, tokenizer), cast("Any", llm)
    assert lp.ChoiceSpec.from_text(cities, llm.tokenizer()) == expected
    assert lp.ChoiceSpec.from_text(cities, own) == expected


def test_vocabulary(llm: Llama, model: Path):
    """llama.cpp and the tokenizer's own file agree on each token."""
    ours, theirs = _vocabulary_of(llm), Vocabulary.of_tokenizer(model)
    assert ours.tokens() == theirs.tokens()
    assert ours.is_special.tolist() == theirs.is_special.tolist()


def test_chat(llm: Llama):
    """The prompt is made inside; a streamed chat passes the same arguments."""
    messages: Any = [{"role": "user", "content": "Where is the treasure?"}]
    text = "I would rather not say."
    specs = [lp.ForcedTokenSequenceSpec(ids(llm, text), EOS), lp.SamplingSpec(temperature=1)]
    reply: Any = llm.create_chat_completion(messages, **arguments(llm, specs))
    assert reply["choices"][0]["message"]["content"] == text
    assert reply["choices"][0]["finish_reason"] == "stop"
    chunks: Any = llm.create_chat_completion(messages, stream=True, **arguments(llm, specs))
    deltas = [chunk["choices"][0]["delta"].get("content", "") for chunk in chunks]
    assert "".join(deltas) == text


def test_a_processor_serves_one_completion_after_the_other(llm: Llama):
    """The second turn of a chat has all of the first one in its prompt."""
    together = arguments(llm, lp.ForcedTokenSequenceSpec(ids(llm, " no comment"), EOS))
    first = llm.create_completion(PARIS, temperature=0, **together)["choices"][0]["text"]
    prompts = [PARIS, PARIS + first, PARIS + first + ". And of Italy?", PARIS, "My name is"]
    for prompt in prompts:
        said: Any = llm.create_completion(prompt, temperature=0, **together)
        assert said["choices"][0]["text"] == first == " no comment"


def run(llm: Llama, processors: Any, prompt: list[int] = PROMPT) -> list[int]:
    generated = islice(llm.generate(prompt, temp=0, logits_processor=processors), 14)
    return list(takewhile(lambda token: token != EOS, generated))


def test_drafts(tiny: Path):
    """They are looked up in the prompt, and are there while the tokens before them are chosen."""
    llm = load(tiny)
    drafting = load(tiny, draft_model=LlamaPromptLookupDecoding(num_pred_tokens=4))
    accepted = 0
    free = run(llm, None)
    for specs in ((), *(make(free) for make in DRAFTED.values())):
        calls: list[list[int]] = []

        def note(input_ids: Any, scores: Any, calls: list[Any] = calls) -> Any:
            calls.append(input_ids.tolist())
            return scores

        plain = LogitsProcessorList([LogitportProcessor(llm, specs)] if specs else [])
        drafted = LogitsProcessorList([LogitportProcessor(drafting, specs)] if specs else [])
        drafted.append(note)
        said = run(llm, plain)
        assert (said == free) == (specs == ())
        for prompt in (PROMPT, PROMPT, [*PROMPT, *said], [*PROMPT, *said, 3, 8, 11], [11, 40]):
            assert run(drafting, drafted, prompt) == run(llm, plain, prompt), specs
        accepted += sum(a == b for a, b in pairwise(calls))
    assert accepted > 20, "hardly any drafts: this says nothing"


def test_logit_bias_argument(llm: Llama):
    """llama-cpp-python forgets the processors of its own list then."""
    paris, rome = (ids(llm, city)[0] for city in (" Paris", " Rome"))
    given = arguments(llm, lp.BannedTokensSpec((paris,)))
    said: list[str] = []
    for bias in ({rome: 100.0}, {paris: 100.0}, None):
        reply: Any = llm.create_completion(PARIS, **given, logit_bias=bias, temperature=0)
        said.append(reply["choices"][0]["text"])
    assert said[0].startswith(" Rome")
    assert not said[1].startswith(" Paris")
    assert not said[2].startswith((" Paris", " Rome"))  # the bias was that one's alone


def test_what_is_not_of_this_model_is_refused(llm: Llama):
    """llama-cpp-python prints such an error, and goes on without the processor."""
    processor = LogitportProcessor(llm, lp.BannedTokensSpec((5,)))
    scores = np.zeros(VOCABULARY, np.single)
    for tokens in ([1, 2, 3], [1, 2, 3, 4]):
        assert processor(np.array(tokens, np.intc), scores) is scores
    with pytest.raises(ValueError, match="Expected the tokens of the Llama"):
        processor(np.array([1, 2, 3, 5, 6], np.intc), scores)
    with pytest.raises(ValueError, match="Expected 49152 logits"):
        processor(np.array([1, 2, 3, 4], np.intc), scores[1:])


PERSON = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 12},
        "rivers": {"type": "array", "items": {"$ref": "#/$defs/city"}, "maxItems": 2},
        "size": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "kind": {"enum": ["big", "small"]},
    },
    "required": ["city", "rivers", "size", "kind"],
    "$defs": {"city": {"type": "string", "minLength": 1, "maxLength": 8}},
}


def test_json_schema(llm: Llama):
    specs = [lp.GrammarSpec(json_schema=PERSON), lp.BannedTokensSpec(ids(llm, "i"))]
    specs.append(lp.SamplingSpec(temperature=1.5))
    said = json.loads(complete(llm, PARIS, specs, max_tokens=200, seed=0))
    assert list(said) == ["city", "rivers", "size", "kind"]
    assert said["kind"] in ("big", "small")
    assert all(1 <= len(river) <= 8 for river in said["rivers"][:2])
    assert len(said["rivers"]) <= 2
    assert said["size"] is None or isinstance(said["size"], int)


def test_grammars(llm: Llama):
    ebnf = 'root ::= " " word " " word\nword ::= "Rome" | "Oslo"'
    assert set(complete(llm, PARIS, lp.GrammarSpec(ebnf=ebnf)).split()) <= {"Rome", "Oslo"}
    for text in (' "a\\b"\n', "été 😀", "a", "ab"):
        assert complete(llm, PARIS, lp.GrammarSpec(choices=(text,))) == text
    anything = lp.GrammarSpec(json_schema={"type": "object"})
    assert json.loads(complete(llm, PARIS, anything, max_tokens=400)) is not None
    biased = [lp.GrammarSpec(choices=("yes", "no")), lp.LogitBiasSpec({ids(llm, "no")[0]: 100.0})]
    assert complete(llm, PARIS, biased) == "no"


def test_a_large_top_k_keeps_forced_tokens(llm: Llama):
    """Above 128, llama.cpp sorts by buckets, whose numbers are integers of 32 bits."""
    force = lp.ForcedTokenSequenceSpec(ids(llm, " no comment"), EOS)
    said = complete(llm, PARIS, [force, lp.SamplingSpec(temperature=1, top_k=500)])
    assert said == " no comment"


def test_sampling_arguments(llm: Llama):
    spec = lp.SamplingSpec(temperature=0.5, top_p=0.9, top_k=0, min_p=0.1, repetition_penalty=1)
    expected = {"temperature": 0.5, "top_p": 0.9, "top_k": 0, "min_p": 0.1, "repeat_penalty": 1}
    assert arguments(llm, spec) == expected
    assert arguments(llm, ()) == {}
    hot, chain = lp.SamplingSpec(temperature=1, min_p=0.5), lp.ChainSpec((lp.ChainStep(top_k=2),))
    made = arguments(llm, (hot, chain))  # llama-cpp-python's defaults would cut what a chain leaves
    assert made.pop("logits_processor")
    assert made == {"temperature": 1, "top_k": 0, "top_p": 1.0, "min_p": 0.5}
    with pytest.raises(lp.SpecError, match="may not take the tokens that `chain` leaves"):
        arguments(llm, (hot, chain, lp.GrammarSpec(choices=("yes",))))
    whole = load(gguf(), last_n_tokens_size=512)  # its context
    penalties = lp.SamplingSpec(presence_penalty=2, frequency_penalty=2)
    assert arguments(whole, penalties) == {"presence_penalty": 2, "frequency_penalty": 2}


@pytest.mark.parametrize(
    ("specs", "message"),
    [
        (
            [lp.SamplingSpec(top_k=1), lp.BannedTokensSpec((VOCABULARY,))],
            r"beyond the vocabulary.*\$\.specs\[1\]",
        ),
        ([lp.SamplingSpec(top_k=1), lp.PluginSpec("nobody")], r"No plugin.*\$\.specs\[1\]\.name"),
        (lp.GrammarSpec(regex="a+"), r"does not support a `grammar` by `regex`.*\[0\]\.regex"),
        (
            lp.GrammarSpec(structural_tag={"type": "structural_tag", "format": {}}),
            r"llama_cpp does not support a `grammar` by `structural_tag`.*\[0\]\.structural_tag",
        ),
        (lp.GrammarSpec(ebnf="root ::= (("), r"llama_cpp cannot parse.*\$\.specs\[0\]\.ebnf"),
        (lp.GrammarSpec(ebnf=f"root ::= {'(' * 9**5}"), r"256 nested paren.*\$\.specs\[0\]\.ebnf"),
        # Those in texts nest nothing, and close nothing.
        (lp.GrammarSpec(ebnf=f'root ::= "{")" * 9**5}" {"(" * 9**5}'), "256 nested paren"),
        (lp.GrammarSpec(ebnf=f"root ::= [{')' * 9**5}] # {')' * 9}\n {'(' * 9**5}"), "256 nested"),
        (lp.GrammarSpec(choices=("\ud800",)), r"not valid Unicode.*\$\.specs\[0\]\.choices"),
        (lp.SamplingSpec(repetition_penalty=1.1), r"llama_cpp.*`repetition_penalty`.*\[0\]\.rep"),
        (lp.SamplingSpec(presence_penalty=1), r"last_n_tokens_size=n\), with n at least 512"),
        (
            [lp.AllowedTokensSpec((3,)), lp.GrammarSpec(choices=("a",))],
            r"a grammar, which may not .* `allowed_tokens` leaves - at `\$\.specs\[0\]`",
        ),
    ],
)
def test_refused(llm: Llama, specs: Any, message: str):
    with pytest.raises(lp.SpecError, match=message):
        arguments(llm, specs)


def test_a_processor_is_refused(llm: Llama):
    with pytest.raises(lp.SpecError, match=r"use arguments.*\$\.specs\[1\]"):
        LogitportProcessor(llm, [lp.BannedTokensSpec((1,)), lp.SamplingSpec(top_k=1)])
    other = SimpleNamespace(n_vocab=lambda: 512, token_eos=lambda: EOS)
    with pytest.raises(lp.SpecError, match="_sampler"):
        LogitportProcessor(other, lp.BannedTokensSpec((1,)))


def _chain(length: int, link: Callable[[Any], Any]) -> Any:
    """A schema of definitions, each of which is made of the next."""
    refs = [{"$ref": f"#/$defs/a{i}"} for i in range(length + 1)]
    made = {f"a{i}": link(refs[i + 1]) for i in range(length)}
    return refs[0] | {"$defs": made | {f"a{length}": {"type": "null"}}}


NULL = {"type": "null"}


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({}, r"no keyword - at `\$\.json_schema`"),
        ({"type": "string", "pattern": "^a$"}, r"`pattern`"),
        ({"type": ["string", "null"], "maxLength": 3}, r"several types"),
        ({"type": "value"}, r"Expected one of object"),
        ({"type": "array", "maxItems": 3}, r"without `items`"),
        ({"type": "array", "items": {"not": {}}}, r"`not` - at `\$\.json_schema\.items`"),
        ({"type": "object", "required": ["a"]}, r"cannot require \['a'\]"),
        ({"properties": {"a": NULL, "b": NULL}, "required": ["b"]}, r"required properties first"),
        ({"properties": {"a": {"minimum": 3}}}, r"`\$\.json_schema\.properties\.a`"),
        ({"properties": {"a\n": NULL}}, r"the text"),
        ({"enum": ["a", "\\b"]}, r"the text"),
        ({"const": "\U0001f600"}, r"the text"),
        ({"anyOf": [NULL, True]}, r"are objects - at `\$\.json_schema\.anyOf\[1\]`"),
        ({"$ref": "#"}, r"Expected a `\$ref` into"),
        ({"$ref": "#/$defs/a"}, r"Expected a `\$ref` into"),
        (
            {"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}]}}},
            r"contain themselves",
        ),
        ({"minLength": 3}, r"rejects this schema"),
        ({"type": "string", "minLength": 3, "maxLength": 2}, r"Expected minLength <= maxLength"),
        ({"type": "array", "items": NULL, "minItems": -1}, r">= 0.*schema\.minItems"),
        ({"type": "string", "minLength": 257}, r"`int` <= 256 - at `\$\.json_schema\.minLength`"),
        ({"type": "string", "maxLength": 257}, r"`int` <= 256 - at `\$\.json_schema\.maxLength`"),
        ({"properties": ["a"]}, r"Expected `object`, got `array`.*schema\.properties"),
        # The converter has names for its own rules, and one that means any other property.
        ({"properties": {"": {"enum": ["x"]}, "b": NULL}}, r"the name ''"),
        ({"properties": {"a": NULL, "*": NULL}}, r"the name '\*'"),
        (
            {"properties": {"integral_part": {"enum": ["x"]}, "n": {"type": "integer"}}},
            r"a property for its own `integral-part`",
        ),
        (_chain(30, lambda ref: {"anyOf": [ref] * 2}), r"at most 4096 parts"),
        (_chain(900, lambda ref: {"type": "array", "items": ref}), r"maximum recursion depth"),
        ({"type": "string", "enum": ["a", 1]}, r"Expected a value of type string, got 1"),
        ({"enum": "abc"}, r"Expected `array`, got `str` - at `\$\.json_schema\.enum`"),
        ({"enum": []}, r"something to choose from - at `\$\.json_schema\.enum`"),
        (
            {"properties": {"a": NULL}, "additionalProperties": True},
            r"`additionalProperties` with others",
        ),
    ],
)
def test_schemas_that_would_lose_something(schema: Any, message: str):
    with pytest.raises(lp.SpecError, match=message):
        gbnf(schema)


def test_strings_of_a_schema_have_no_control_characters():
    assert r"\x00-\x1F" in gbnf({"type": "string"})

"""What grammars leave of a row: on finite languages, the tokens that some text goes on with."""

import random
from collections.abc import Iterable, Sequence
from itertools import product
from time import thread_time
from typing import Any

import numpy as np
import pytest
import torch
from logitport import spec as s
from logitport.adapters.core import Realizer, Vocabulary, compile_specs
from logitport.adapters.core.host.matcher import MAX_SECONDS
from logitport.adapters.core.text import grammars
from logitport.spec import GrammarSpec, Phase, PhaseEnd, PhasesSpec, SpecError

from tests.support.seeds import seeds

TOKENS = [None, b"a", b"b", b"c", b"ab", b"ba", b"abc", b"aa", b"/", b'"', b"{", b"}", None, b"cb"]
VOCABULARY = Vocabulary.of_tokens(TOKENS).ending((0, 12))
SIZE, ENDS = len(TOKENS), {0, 12}
COMPLETE = (PhaseEnd(complete=True),)


def program_of(*specs: s.LogitsProcessorSpec) -> Any:
    return compile_specs(specs, lambda: VOCABULARY)


def left(logits: Any) -> set[int]:
    """List the tokens of a row that are not masked; a forced token is the only one."""
    row = np.array(logits[0].tolist(), np.float32)
    kept = {i for i, logit in enumerate(row) if logit > -1e8}
    return {int(row.argmax())} if row.max() > 1e4 else kept


def step(realizer: Realizer, dtype: Any = np.float32) -> set[int]:
    if isinstance(dtype, torch.dtype):
        logits: Any = torch.zeros(1, SIZE + 3, dtype=dtype)
    else:
        logits = np.zeros((1, SIZE + 3), dtype)
    realizer.apply(logits)
    return left(logits)


def expected(texts: Iterable[bytes], output: Sequence[int]) -> set[int]:
    text = b"".join(TOKENS[i] or b"" for i in output)
    found = {
        i
        for i, token in enumerate(TOKENS)
        if token and any(each.startswith(text + token) for each in texts)
    }
    return found | (ENDS if text in texts else set())


def random_texts(numbers: random.Random) -> list[str]:
    count = numbers.randint(1, 5)
    return [*{"".join(numbers.choices('abc/"{}', k=numbers.randint(1, 6))) for _ in range(count)}]


def as_regex(texts: Sequence[str]) -> str:
    return "|".join("".join(f"\\{c}" if c in "/{}" else c for c in text) for text in texts)


FORMS = {
    "choices": lambda texts: GrammarSpec(choices=tuple(texts)),
    "regex": lambda texts: GrammarSpec(regex=as_regex(texts)),
    "regex, bare": lambda texts: GrammarSpec(regex=as_regex(texts).replace("\\/", "/")),
    "ebnf": lambda texts: GrammarSpec(
        ebnf="root ::= " + " | ".join('"' + text.replace('"', r"\"") + '"' for text in texts)
    ),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("seed", range(40))
def test_a_token_may_come_if_some_text_goes_on_with_it(form: str, seed: int):
    numbers = random.Random(seed)
    texts = random_texts(numbers)
    realizer, output = Realizer(SIZE), list[int]()
    realizer.enter(0, program_of(FORMS[form](texts)), [1], output)
    encoded = [text.encode() for text in texts]
    while True:
        found = step(realizer, numbers.choice([np.float32, np.float64, torch.float32]))
        assert found == expected(encoded, output)
        output.append(numbers.choice(sorted(found)))
        if output[-1] in ENDS:
            break
    assert step(realizer) == {*range(SIZE + 3)}  # nothing acts after the end


@pytest.mark.parametrize("dtype", [np.float32, np.float16, torch.float32, torch.bfloat16])
def test_each_kind_of_array(dtype: Any):
    realizer = Realizer(SIZE)
    realizer.enter(0, program_of(GrammarSpec(choices=("ab", "cb"))), [1], [])
    assert step(realizer, dtype) == {1, 3, 4, 13}


CHOICES = GrammarSpec(choices=("abc",))
THEN = PhasesSpec(
    (
        Phase((s.ForcedTokenSequenceSpec((8, 8)),), COMPLETE),
        Phase((GrammarSpec(choices=("ab", "aab")), s.LogitBiasSpec({4: 1.0})), COMPLETE),
        Phase((), (PhaseEnd(n=1),)),
        Phase((GrammarSpec(regex="(ab){2}"),), COMPLETE),
        Phase((s.ForcedTokenSequenceSpec((9,), 0),)),
    )
)
# the output of each step | what may come
ALONG: list[tuple[list[int], set[int]]] = [
    ([], {8}),
    ([8], {8}),
    ([8, 8], {1, 4, 7}),
    ([8, 8, 1], {1, 2, 4}),
    ([8, 8, 7], {2}),
    ([8, 8, 4], {*range(SIZE + 3)}),
    ([8, 8, 7, 2], {*range(SIZE + 3)}),
    ([8, 8, 4, 10], {1, 4}),
    ([8, 8, 4, 10, 4], {1, 4}),
    ([8, 8, 4, 10, 4, 1], {2}),
    ([8, 8, 4, 10, 4, 4], {9}),
    ([8, 8, 4, 10, 4, 4, 9], {0}),
    ([8, 8, 4, 10, 4, 4, 9, 0], {0}),
]


@pytest.mark.parametrize(("output", "may_come"), ALONG)
def test_phases(output: list[int], may_come: set[int]):
    """An output that comes at once, or token by token, leaves the same."""
    at_once, growing = Realizer(SIZE), list[int]()
    at_once.enter(0, program_of(THEN), [1, 8, 8], [*output])
    assert step(at_once) == may_come
    by_token = Realizer(SIZE)
    by_token.enter(0, program_of(THEN), [1, 8, 8], growing)
    for token in output:
        step(by_token)
        growing.append(token)
    assert step(by_token) == may_come


@pytest.mark.parametrize("seed", seeds(4, 30))
def test_tokens_are_taken_back(seed: int):
    """After any changes of the output, what is left is that of a request with the same output."""
    numbers = random.Random(seed)
    realizer, output = Realizer(SIZE), list[int]()
    realizer.enter(0, program_of(THEN), [1], output)
    for _ in range(60):
        found = step(realizer)
        fresh = Realizer(SIZE)
        fresh.enter(0, program_of(THEN), [1], [*output])
        assert found == step(fresh)
        if numbers.random() < 0.3:
            del output[numbers.randint(0, len(output)) :]
            realizer.read_again(0)
        for _ in range(numbers.choice([1, 1, 2])):
            now = Realizer(SIZE)
            now.enter(0, program_of(THEN), [1], [*output])
            output.append(numbers.choice(sorted(step(now) & {*range(SIZE)})))


def test_an_earlier_output_goes_on():
    program = program_of(THEN)
    whole = [8, 8, 4, 10, 4]
    for count in range(len(whole) + 1):
        for continued in range(count + 1):
            realizer = Realizer(SIZE)
            begun = s.Payload(1, (THEN,), continued=continued)
            made = type(program)(program.parts, program.since, continued=begun.continued)
            prompt = [1, *whole[:continued]]
            realizer.enter(0, made, prompt, whole[continued:count])
            assert step(realizer) == dict(map(_key, ALONG))[tuple(whole[:count])]


def _key(each: tuple[list[int], set[int]]) -> tuple[tuple[int, ...], set[int]]:
    return tuple(each[0]), each[1]


@pytest.mark.parametrize(("output", "wrong"), [([3], 3), ([4, 2], 2), ([12, 1], 12)])
def test_what_no_text_goes_on_with_ends_the_request_alone(output: list[int], wrong: int):
    errors = list[tuple[int, str]]()
    realizer = Realizer(SIZE, report=lambda row, error, ends: errors.append((row, str(error))))
    realizer.enter(0, program_of(GrammarSpec(choices=("abc",))), [1], output, 0)
    realizer.enter(1, program_of(GrammarSpec(choices=("abc",))), [1], [4], 0)
    logits = np.zeros((2, SIZE), np.float32)
    realizer.apply(logits)
    assert left(logits[:1]) == {0}
    assert left(logits[1:]) == {3}
    assert errors == [(0, f"The grammar does not go on with token {wrong}")]


def test_a_lexer_at_its_bounds_ends_no_other_request(monkeypatch: pytest.MonkeyPatch):
    """Copies of a matcher share a lexer, and llguidance lets none go on once it is too large."""
    monkeypatch.setitem(grammars._LIMITS, "max_lexer_states", 150)
    program = program_of(GrammarSpec(regex="b(a|b|c)*|a(a|b|c){1,400}"))
    errors = list[tuple[int, str]]()
    realizer = Realizer(SIZE, report=lambda row, error, ends: errors.append((row, str(error))))
    outputs: list[list[int]] = [[1], [2]]
    logits = np.zeros((2, SIZE), np.float32)
    for row, output in enumerate(outputs):
        realizer.enter(row, program, [1], output, 0)
    for _ in range(60):
        logits[:] = 0
        realizer.apply(logits)
        assert left(logits[1:]) == {1, 2, 3, 4, 5, 6, 7, 13, *ENDS}
        for output in outputs[len(errors) :]:
            output.append(6)
    assert len(outputs[0]) > 40
    assert len(errors) == 1
    assert errors[0][0] == 0
    assert "too many states" in errors[0][1]
    realizer.enter(0, program, [1], [], 0)
    logits[:] = 0
    realizer.apply(logits)
    assert left(logits[:1]) == {1, 2, 4, 5, 6, 7}


AMBIGUOUS = GrammarSpec(ebnf='root ::= (a "b")*\na ::= a a | "a"')
LONG = ([1] * 70 + [2]) * 400
# a grammar | an output that takes it long | whether it comes at once
SLOW: list[tuple[s.LogitsProcessorSpec, list[int], bool]] = [
    (AMBIGUOUS, LONG, True),
    (PhasesSpec((Phase((AMBIGUOUS,)),)), LONG, True),
    (PhasesSpec((Phase((AMBIGUOUS,), COMPLETE), Phase((), ()))), LONG, True),
    (GrammarSpec(ebnf='root ::= a\na ::= a a | "a"'), [1] * 900, True),
    (GrammarSpec(ebnf='root ::= a\na ::= a a | "a"'), [1] * 900, False),
]


@pytest.mark.parametrize(("spec", "output", "at_once"), SLOW)
def test_a_text_that_takes_too_long_ends_its_request_alone(
    spec: s.LogitsProcessorSpec, output: list[int], at_once: bool
):
    errors = list[int]()
    realizer = Realizer(SIZE, report=lambda row, error, ends: errors.append(row))
    given = [*output] if at_once else list[int]()
    program, logits, slowest = program_of(spec), np.zeros((2, SIZE), np.float32), 0.0
    realizer.enter(1, program_of(CHOICES), [1], [4], 0)
    realizer.apply(logits)  # the loops are compiled
    begun = thread_time()
    realizer.enter(0, program, [1], given, 0)
    for token in [0] if at_once else output:
        logits[:] = 0
        realizer.apply(logits)
        assert left(logits[1:]) == {3}
        slowest = max(slowest, thread_time() - begun)
        if errors:
            break
        given.append(token)
        begun = thread_time()
    assert errors == [0]
    assert left(logits[:1]) == {0}
    assert slowest < 3 * MAX_SECONDS


def test_no_number_of_choices_is_too_high():
    choices = tuple("a" + "".join(each) for each in product("abc/{}", repeat=5))
    realizer, output = Realizer(SIZE), list[int]()
    realizer.enter(0, program_of(GrammarSpec(choices=choices)), [1], output)
    for token, may_come in ((1, {1, 4, 6, 7}), (2, {1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 13})):
        assert step(realizer) == may_come
        output.append(token)
    assert step(realizer) == {1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 13}


HARD = {"propertyNames": {"maxLength": 3}}
SHARED = {"allOf": [{"multipleOf": each / 10} for each in (7, 11, 13, 17, 19, 23, 29)]}
TOGETHER = {"allOf": [{"pattern": f"a{i}"} for i in range(17)]}
ANY_OF = {"anyOf": [{"properties": {f"a{i}": {}}} for i in range(600)]}
OF_ENUMS = {"allOf": [{"enum": [*range(40)]}, {"$ref": "#/$defs/a"}]}
OF_ENUMS |= {"$defs": {"a": {"anyOf": [{"enum": [*range(20)]}, {"enum": [*range(30, 60)]}]}}}
BELOW = {"properties": {"a": OF_ENUMS["$defs"]["a"]}}
BELOW = {"allOf": [BELOW, {"properties": {"a": {"enum": [*range(40)]}}}]}
TOO_MUCH = "in at most 200 ms, by estimate, got "
# a grammar | why it is refused
REFUSED = {
    GrammarSpec(regex="("): "The grammar cannot be followed: ",
    GrammarSpec(regex="a{0}"): "Expected a grammar with some text",
    GrammarSpec(ebnf="root ::= b"): "The rules cannot be read: .*'b' not found",
    GrammarSpec(json_schema={"type": "strin"}): "The grammar cannot be followed: ",
    GrammarSpec(json_schema=HARD): "Unimplemented keys",
    GrammarSpec(json_schema=HARD | {"x-guidance": {"lenient": True}}): "Unimplemented keys",
    GrammarSpec(json_schema={"$ref": "#"}): "The grammar cannot be followed: ",
    GrammarSpec(json_schema={"multipleOf": 99_991}): TOO_MUCH + "502",
    GrammarSpec(json_schema=SHARED): TOO_MUCH + "1,0",
    GrammarSpec(ebnf="root ::= b\n" + 'b ::= "a"\n' * 420): TOO_MUCH + "2",
    GrammarSpec(ebnf="root ::= " + '"a" ' * 8_192): TOO_MUCH + "4",
    GrammarSpec(ebnf="root ::= " + 'root "a" | ' * 130 + '"b"'): TOO_MUCH + "2",
    GrammarSpec(json_schema={"multipleOf": True}): "The grammar cannot be followed: ",
    GrammarSpec(json_schema={"maxItems": 10**9}): TOO_MUCH + "7,000,0",
    GrammarSpec(json_schema=TOGETHER): TOO_MUCH + "2",
    GrammarSpec(json_schema=ANY_OF): TOO_MUCH,
    GrammarSpec(json_schema=OF_ENUMS): TOO_MUCH + "3",
    GrammarSpec(json_schema=BELOW): TOO_MUCH + "3",
    GrammarSpec(structural_tag={"type": "structural_tag", "format": {}}): "XGrammar",
}


@pytest.mark.parametrize("spec", REFUSED, ids=lambda spec: str(spec)[:60])
def test_refused(spec: GrammarSpec):
    with pytest.raises(SpecError, match=REFUSED[spec]) as error:
        program_of(s.BannedTokensSpec((1,)), spec)
    (form,) = (name for name in GrammarSpec.FORMS if getattr(spec, name) is not None)
    assert error.value.path == f"$.specs[1].{form}"


HALF = GrammarSpec(ebnf="root ::= " + '"a" ' * 4_000)
ANYTHING = Phase((), (PhaseEnd(n=1),))
# the specs of a request | where its grammars become too much
TOGETHER_TOO_MUCH: dict[Sequence[s.LogitsProcessorSpec], str] = {
    (PhasesSpec((Phase((HALF,), COMPLETE), ANYTHING, Phase((HALF,)))),): "phases[2].specs[0]",
    (
        s.BannedTokensSpec((1,)),
        PhasesSpec((Phase((HALF,), COMPLETE), Phase((HALF,)))),
    ): "phases[1]",
}


@pytest.mark.parametrize("specs", TOGETHER_TOO_MUCH)
def test_all_grammars_are_counted_before_any_is_compiled(
    specs: Sequence[s.LogitsProcessorSpec], monkeypatch: pytest.MonkeyPatch
):
    program_of(PhasesSpec((Phase((HALF,)),)))
    monkeypatch.setattr(grammars, "Start", None)
    with pytest.raises(SpecError, match="200 ms, by estimate, got 2") as error:
        program_of(*specs)
    assert TOGETHER_TOO_MUCH[specs] in error.value.path
    assert error.value.path.endswith("ebnf")


def test_an_end_beyond_the_tokenizer():
    """A model may have more columns than its tokenizer has tokens, and end with one of these."""
    size = SIZE + 60
    realizer = Realizer(size)
    realizer.enter(0, program_of(GrammarSpec(choices=("ab",))), [1], [4], size - 1)
    logits = np.zeros((1, size), np.float32)
    realizer.apply(logits)
    assert left(logits) == ENDS | {size - 1}
    assert realizer.failed_requests == 0


BYTES = Vocabulary.of_tokens([bytes([i]) for i in range(128)])
TIGHT, DUMPED, WIDE = '{"a":[1,2],"b":3}', '{"a": [1, 2], "b": 3}', '{ "a":\n[1 ,2],"b": 3 }'


@pytest.mark.parametrize(
    ("pattern", "texts"), [(None, {DUMPED}), ("", {TIGHT}), (r"\s?", {TIGHT, DUMPED, WIDE})]
)
def test_white_space(pattern: str | None, texts: set[str]):
    schema = {"properties": {"a": {"items": {"type": "integer"}}, "b": {"type": "integer"}}}
    spec = GrammarSpec(json_schema={"type": "object", **schema}, whitespace_pattern=pattern)
    start = grammars.compile_grammar(spec, BYTES)
    accepted = {
        text for text in (TIGHT, DUMPED, WIDE) if start.copy().consume_tokens([*text.encode()])
    }
    assert accepted == texts


# beside a grammar of "a" and "ab" | the output | the tokens that are left; 0 alone ends the request
BESIDE: list[tuple[Sequence[s.LogitsProcessorSpec], list[int], set[int]]] = [
    ([s.BannedTokensSpec((1,))], [], {4}),
    ([s.BannedTokensSpec((1, 4))], [], {0}),
    ([s.BannedTokensSpec((2, 9))], [1], ENDS),
    ([s.MinTokensSpec(9, (0, 12))], [1, 2], set()),
    ([s.BannedTokensSpec((1,)), s.AllowedTokensSpec((1, 4))], [], {4}),
    ([s.BannedTokensSpec((1,)), s.AllowedTokensSpec((1, 5))], [], {0}),
    ([s.AllowedTokensSpec((3, 5))], [], {0}),
    ([s.LogitBiasSpec({1: -100.0, 4: -100.0})], [], {1, 4}),
    ([s.BannedTextSpec(("a",))], [], {0}),
    ([s.BannedTextSpec(("ab",))], [], {1}),
    ([s.BannedTextSpec(("ab",))], [1], ENDS),
]


@pytest.mark.parametrize(("beside", "output", "expected"), BESIDE)
def test_what_others_leave_of_a_grammar(
    beside: Sequence[s.LogitsProcessorSpec], output: list[int], expected: set[int]
):
    errors = list[str]()
    realizer = Realizer(SIZE, report=lambda row, error, ends: errors.append(str(error)))
    realizer.enter(0, program_of(*beside, GrammarSpec(regex="a(b)?")), [1], output, 0)
    assert step(realizer) == expected
    what = "The grammar and the other specs leave no token together"
    assert errors == [what] * (expected == {0})


@pytest.mark.parametrize("dtype", [np.float32, np.float16, torch.bfloat16])
def test_a_list_that_leaves_nothing_ends_the_request(dtype: Any):
    errors = list[str]()
    realizer = Realizer(SIZE, report=lambda row, error, ends: errors.append(str(error)))
    apart = program_of(s.AllowedTokensSpec((3, 5)), GrammarSpec(choices=("ab",)))
    together = program_of(s.AllowedTokensSpec((3, 4)), GrammarSpec(choices=("ab",)))
    realizer.enter(0, apart, [1], [], 0)
    realizer.enter(1, together, [1], [], 0)
    zeros = np.zeros((2, SIZE), np.float32)
    logits = torch.from_numpy(zeros).to(dtype) if dtype is torch.bfloat16 else zeros.astype(dtype)
    realizer.apply(logits)
    assert left(logits[1:]) == {4}
    assert left(logits) == {0}
    assert errors == ["The grammar and the other specs leave no token together"]

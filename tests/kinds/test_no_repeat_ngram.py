from logitport.adapters.core import compile_specs
from logitport.spec import NoRepeatNgramSpec, decode, encode, limits

from tests.support.kinds import AT_LEAST_1, LONG, TOO_LONG, RealizedKindTests, ban

MOST = limits.MAX_PATTERN


class TestRows(RealizedKindTests):
    golden = NoRepeatNgramSpec(4, 128, (34, 35))
    refused = (
        ({"n": 0}, AT_LEAST_1, "n"),
        ({"n": MOST + 1}, f"Expected `int` <= {MOST}", "n"),
        ({"n": 3, "window": 2}, "Expected a window of at least n=3 tokens, got 2", "window"),
        ({"n": 1, "window": 0}, AT_LEAST_1, "window"),
        ({"n": 3, "allowed_token_ids": LONG}, TOO_LONG, "allowed_token_ids"),
        ({"n": 3, "output_only": 1}, "Expected `bool`, got `int`", "output_only"),
    )
    largest = (NoRepeatNgramSpec(MOST, MOST), NoRepeatNgramSpec(1, limits.MAX_INT))
    beyond = ((NoRepeatNgramSpec(1, None, (1, 9)), "allowed_token_ids[1]"),)
    histories = (
        (
            NoRepeatNgramSpec(3),
            [1, 2, 3],
            [None, 1, None, 2, ban(3), 4, None, 1, None, 2, ban(3, 4)],
        ),
        (NoRepeatNgramSpec(2, 3), [1, 5], [None, 1, ban(5), 6, None, 1, ban(6), 7, None]),
        (NoRepeatNgramSpec(1, 2, (3,)), [1, 2], [ban(1, 2), 3, ban(2), 3, None, 4, ban(4)]),
        (NoRepeatNgramSpec(1), [], [None, 2, ban(2), 1, ban(1, 2)]),
        (
            NoRepeatNgramSpec(2, output_only=True),
            [1, 2, 1],  # nor does the pair of the prompt's end and the first output token count
            [None, 2, None, 1, None, 2, ban(1), 3, None],
        ),
        (
            NoRepeatNgramSpec(1, 2, output_only=True),
            [1],
            [None, 2, ban(2), 3, ban(2, 3), 4, ban(3, 4)],
        ),
    )


def test_output_only_is_sent_only_if_it_is_set():
    """So that older workers take all payloads that they took."""
    old = (
        '{"version":1,"specs":[{"kind":"no_repeat_ngram","n":3,"window":null,"allowed_token_ids":[]'
    )
    for spec in (NoRepeatNgramSpec(3), NoRepeatNgramSpec(3, output_only=False)):
        assert encode(spec) == f'{old}}}],"generation_only":true}}'
        assert hash(spec) == hash(NoRepeatNgramSpec(3))
        assert spec == NoRepeatNgramSpec(3)
    text = encode(NoRepeatNgramSpec(3, output_only=True))
    assert text == f'{old},"output_only":true}}],"generation_only":true}}'
    assert decode(text.replace("true}],", "false}],")).specs == (NoRepeatNgramSpec(3),)


def test_output_only_does_not_read_the_prompt():
    one = NoRepeatNgramSpec(2, output_only=True)
    assert not compile_specs([one]).reads_prompt
    assert compile_specs([one, NoRepeatNgramSpec(2)]).reads_prompt

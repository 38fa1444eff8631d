"""Sampled replies that end by themselves, with a text at the end, on any engine."""

from collections.abc import Sequence

from logitport import spec as s
from logitport.spec import LogitsProcessorSpec

from tests.support.tiny_model import EOS

REPLIES = 60
TEXT = (504, 505, 17)
PROMPT = (5, 11, 3, 8)


def ending(
    bias: float, text: Sequence[int] = TEXT, end: int = EOS
) -> tuple[LogitsProcessorSpec, ...]:
    """Say a text at the end, which a bias makes likelier: no reply of a model of chance is short.

    A bias lets the model have no other use of the text's first token.
    """
    biases = s.LogitBiasSpec({end: bias, text[0]: -50.0})
    return biases, s.AtEndSpec(tuple(text), (end,))


def assert_ended(
    outputs: Sequence[Sequence[int]], text: Sequence[int] = TEXT, end: int = EOS
) -> None:
    """Each reply has ended with the text, and not before; engines may leave out the end token."""
    replies = [[*output, *([] if output[-1] == end else [end])] for output in outputs]
    assert len(replies) == REPLIES
    wrong = [reply for reply in replies if reply[-len(text) - 1 :] != [*text, end]]
    assert not wrong
    said = [reply[: -len(text) - 1] for reply in replies]
    assert not any(end in each or text[0] in each for each in said)
    assert len({len(each) for each in said}) > 4  # they are sampled

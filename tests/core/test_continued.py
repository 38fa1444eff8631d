"""Output that an earlier request has made, at the end of the prompt."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from logitport import spec as s
from logitport.adapters import REALIZABLE, Backend, admit
from logitport.adapters.core import Realizer, check_continued
from logitport.adapters.core.automaton.history import Continued, TokenHistory, continued

from tests.tools.guards import END, TEXT, VOCAB, compiled

ZE, BRA = 3, 4
FORCED = s.ForcedTokenSequenceSpec((5, 6, 7))
Specs = tuple[s.LogitsProcessorSpec, ...]


def best(
    own: Specs, prompt: Sequence[int] | None, output: Sequence[int], count: int, guard: Specs = ()
) -> int:
    program = replace(compiled(own), continued=count)
    if guard:
        program = replace(program, guard=replace(compiled(guard), end_token=END))
    realizer = Realizer(VOCAB)
    realizer.add(0, program, prompt, output, END)
    row = torch.zeros(1, VOCAB)
    row[0, BRA] = 1
    realizer.apply(row)
    return int(row.argmax())


# the specs | prompt | output | continued | what comes
@pytest.mark.parametrize(
    ("own", "prompt", "output", "count", "comes"),
    [
        ((FORCED,), [1, 5], [], 0, 5),
        ((FORCED,), [1, 5], [], 1, 6),
        ((FORCED,), [1, 5], [6], 1, 7),
        ((FORCED,), [5, 6], [], 2, 7),
        ((FORCED,), [5, 6], [], 3, END),  # more than there are
        ((FORCED,), None, [], 1, END),  # embeddings
        ((s.PromptBiasSpec(100),), [1, BRA, 2], [], 1, BRA),
        ((s.PromptBiasSpec(-100),), [1, BRA], [], 1, BRA),
        ((s.PromptBiasSpec(-100),), [1, BRA], [], 0, 0),
        ((s.NoRepeatNgramSpec(1, output_only=True),), [1, BRA], [], 0, BRA),
        ((s.NoRepeatNgramSpec(1, output_only=True),), [1, BRA], [], 1, 0),
    ],
)
def test_where_the_output_begins(
    own: Specs, prompt: list[int] | None, output: list[int], count: int, comes: int
):
    assert best(own, prompt, output, count) == comes


@pytest.mark.parametrize(("count", "comes"), [(0, BRA), (1, 9), (3, END)])
def test_a_guard_reads_it_too(count: int, comes: int):
    """The text goes on over the seam."""
    assert best((s.LogitBiasSpec({9: 0.5}),), [1, ZE], [], count, (TEXT,)) == comes


def test_the_sequence_grows_with_the_output():
    output = [8]
    prompt, grown = continued([5, 6, 7], output, 2)
    assert prompt == [5]
    assert isinstance(grown, Continued)
    output.append(9)
    assert [*grown] == [6, 7, 8, 9]
    assert (grown[-1], grown[-4], grown[0], grown[1:3]) == (9, 6, 6, [7, 8])
    with pytest.raises(IndexError):
        grown[4]
    np.testing.assert_array_equal(TokenHistory((), grown).output_array(), [6, 7, 8, 9])


@pytest.mark.parametrize("length", [None, 2])
def test_more_than_the_prompt_has(length: int | None):
    check_continued(0, length)
    with pytest.raises(s.SpecError, match="prompt") as error:
        check_continued(3, length)
    assert error.value.path == "$.continued"


@pytest.mark.parametrize("count", [0, 2])
def test_code_is_given_lists(count: int):
    """It may compare them, add them, and ask what is in them."""
    given: list[tuple[list[int], list[int]]] = []

    def process(prompt_ids: list[int], output_ids: list[int], logits: torch.Tensor) -> None:
        given.append((prompt_ids.copy(), output_ids.copy()))

    program = replace(compiled((s.PythonProcessorSpec(lambda: process),)), continued=count)
    realizer, output = Realizer(VOCAB), list[int]()
    realizer.add(0, program, [1, 5, 6][: 1 + count], output)
    for expected in ([], [7], [7, 8], [9]):
        output[:] = expected
        realizer.apply(torch.zeros(1, VOCAB))
        assert given[-1] == ([1], [*[5, 6][:count], *expected])


def test_all_counts_share_what_is_compiled():
    backend = Backend("any", realizes=REALIZABLE)
    specs = s.BannedSequencesSpec(((1, 2), (3,)))
    programs = [admit(backend, s.encode(specs, continued=n), 100)[1] for n in range(3)]
    assert [program.continued for program in programs] == [0, 1, 2]
    assert programs[0].automata[0] is programs[1].automata[0] is programs[2].automata[0]

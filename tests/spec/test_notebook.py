"""Specs in notebooks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from logitport.spec import (
    VERSION,
    BannedTextSpec,
    ChoiceSpec,
    ForcedTokenSequenceSpec,
    GrammarSpec,
    LogitBiasSpec,
    LogitsProcessorSpec,
    Payload,
    Phase,
    PhaseEnd,
    PhasesSpec,
    PluginSpec,
    PythonProcessorSpec,
)

from tests.support.markup import Parsed
from tests.support.strategies import specs

HOSTILE = "</td><script>alert('\"&amp;')</script>"


def html(spec: LogitsProcessorSpec | Payload) -> str:
    return spec._repr_html_()


@pytest.mark.parametrize(
    ("spec", "shown"),
    [
        (ForcedTokenSequenceSpec((5, 6)), "<caption>forced_sequence</caption>"),
        (ForcedTokenSequenceSpec((5, 6)), "<tr><th>token_ids</th><td>5, 6</td></tr></table>"),
        (ForcedTokenSequenceSpec((5,), 2), "<tr><th>eos_token_id</th><td>2</td></tr>"),
        (ForcedTokenSequenceSpec(tuple(range(1012))), "9, 10, 11, and 1,000 more</td>"),
        (ForcedTokenSequenceSpec(tuple(range(12))), "9, 10, 11</td>"),
        (ChoiceSpec(((1, 2), (3,)), 4), "<td>(1, 2), (3)</td>"),
        (LogitBiasSpec({3: -2.5}), "<td>3: -2.5</td>"),
        (
            PhasesSpec((Phase((), (PhaseEnd(text="a<b"),)), Phase(()))),
            "<td><table><caption>PhaseEnd</caption><tr><th>text</th><td>&#x27;a&lt;b&#x27;</td>",
        ),
        (
            PhasesSpec((Phase((), (PhaseEnd(text="a"),)), Phase(()))),
            "</table></td></tr></table><table><caption>Phase</caption></table>",
        ),
        (Payload(VERSION, (BannedTextSpec(("x",)),)), "<td><table><caption>banned_text</caption>"),
        (PythonProcessorSpec(list), "<th>factory</th><td>&lt;class &#x27;list&#x27;&gt;</td>"),
    ],
)
def test_fields(spec: LogitsProcessorSpec | Payload, shown: str):
    assert shown in html(spec)


@pytest.mark.parametrize(
    "spec",
    [
        BannedTextSpec((HOSTILE,)),
        GrammarSpec(regex=HOSTILE),
        PluginSpec("rule", {HOSTILE: [HOSTILE, {HOSTILE: HOSTILE}]}),
        Payload(VERSION, (PhasesSpec((Phase((), (PhaseEnd(text=HOSTILE),)), Phase(()))),)),
    ],
)
def test_texts_are_no_markup(spec: LogitsProcessorSpec | Payload):
    parsed = Parsed(html(spec))
    assert "script" in parsed.text
    assert parsed.tags <= {"table", "caption", "tr", "th", "td"}
    assert not parsed.attributes


@given(st.data())
def test_every_kind(data: st.DataObject):
    spec = data.draw(specs(32))
    parsed = Parsed(html(spec))
    assert parsed.text.startswith(spec.kind)
    assert not parsed.attributes


def test_a_large_spec_is_small():
    spec = GrammarSpec(regex="a" * 100_000)
    assert len(html(spec)) < 500

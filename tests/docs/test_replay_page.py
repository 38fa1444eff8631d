"""The example that makes a page of a replayed reply."""

from typing import Any

from examples.replay_page import STYLES, page
from tests.support.markup import Parsed

HOSTILE = "</pre><script>alert('\"&amp;')</script>\n"
BAN, FORCED = {"$.a": "banned 2 token(s)"}, {"$.b": "forced 7"}


def step(index: int, rule: str, acting: dict[str, str], **more: Any) -> dict[str, Any]:
    made = {"index": index, "token_id": 7, "rule": rule, "acting": acting, "obeyed": True}
    made |= {"logprob": -0.7, "likeliest": [["n\u00e9", -1.0]], "displaced": {}, "text": HOSTILE}
    return {**made, "why": ", ".join(acting.values()) or "free", **more}


def test_a_page():
    """The tokens have their rules' colours, and a token's text is no markup."""
    steps = [
        step(0, "forced", BAN | FORCED),
        step(1, "banned", BAN),
        step(2, "banned", BAN, displaced={"$.a": " Paris"}),
        step(3, "forced", BAN | FORCED, obeyed=False),
    ]
    said = {"steps": steps, "notes": ["<i>"], "verdict": "One breaks.", "always": BAN}
    made = page(said)
    assert made.startswith("<!doctype html>")
    assert "http" not in made
    parsed = Parsed(made)
    assert not {"script", "i"} & parsed.tags
    assert parsed.text.count("<script>") == 2 * len(steps)
    assert parsed.text.index("One breaks.") < parsed.text.index("<i>")
    assert "At most tokens: $.a banned 2 token(s)" in parsed.text
    assert parsed.text.count('"n\u00e9" 0.37') == len(steps)
    of_tokens = made.partition("<pre>")[2].partition("</pre>")[0]
    spans = of_tokens.split("<span ")[1:]
    found = [rule for each in spans for rule in STYLES if f'"{rule}"' in each]
    assert found == ["forced", "free", "banned", "broken"]

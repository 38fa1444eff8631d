"""A replayed reply as HTML: coloured tokens, alone or on a page."""

from collections.abc import Sequence
from html import escape

from .reply import Step
from .texts import TextOf

STYLES = {
    "forced": "background: #3b82f655",
    "allowed": "background: #22c55e55",
    "banned": "background: #eab30855",
    "added": "background: #a855f755",
    "free": "",
    "broken": "background: #ef444466; border-bottom: 3px solid #ef4444",
}
"""Of each rule. The colours are translucent, so texts are legible on light and dark pages."""

EDGES = "border-radius: 3px; border-right: 1px solid #8888; padding: 2px 0"
"""Of each token, so that tokens with the same rule do not run together."""

NAMES = {"banned": "others banned", "broken": "breaks a spec"}

PAGE = """\
<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>logitport replay</title>
<style>
  :root {{ color-scheme: light dark; }}
  body {{ font: 16px/1.8 system-ui, sans-serif; padding: 0 1em; }}
  body {{ margin: 2em auto; max-width: 50em; }}
</style>
{}
</html>
"""


def page(view: str) -> str:
    """Make a page of a replay's view, which needs nothing else."""
    return PAGE.format(view)


def tokens(steps: Sequence[Step], text_of: TextOf) -> str:
    """Make the part of a page with the tokens, which needs no style sheet."""
    legend = " ".join(_span(NAMES.get(rule, rule), rule) for rule in STYLES)
    spans = (
        _span(
            text_of(step.token_id) or f"{step.token_id} ",
            step.rule if step.obeyed else "broken",
            f"{step.index}: {step.token_id}: {step.why}",
        )
        for step in steps
    )
    return (
        f"<p>{legend}. Hold the pointer over a token for its step.</p>\n"
        f'<pre style="font: inherit; white-space: pre-wrap">{"".join(spans)}</pre>'
    )


def _span(text: str, rule: str, title: str = "") -> str:
    attributes = f'class="{rule}" style="{EDGES}; {STYLES[rule]}" title="{escape(title)}"'
    return f"<span {attributes}>{escape(text)}</span>"

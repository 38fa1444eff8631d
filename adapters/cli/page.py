"""A replayed reply as HTML: coloured tokens, alone or on a page."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from html import escape

from .reply import Step, chance
from .texts import TextOf, quoted, token

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

CELL = "border-bottom: 1px solid #8884; padding: 2px 12px 2px 0; text-align: left"

PAGE = """\
<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>logitport replay</title>
<style>
  :root {{ color-scheme: light dark; }}
  body {{ font: 16px/1.6 system-ui, sans-serif; padding: 0 1em; }}
  body {{ margin: 2em auto; max-width: 60em; }}
  pre {{ white-space: pre-wrap; overflow-wrap: anywhere; }}
  div {{ overflow-x: auto; }}
</style>
<h1>A replayed reply</h1>
{}
</html>
"""


def page(view: str) -> str:
    """Make a page of a replay's view, which needs nothing else."""
    return PAGE.format(view)


def tokens(steps: Sequence[Step], text_of: TextOf) -> str:
    """Make the part of a page with the coloured tokens, which needs no style sheet."""
    always = standing(steps)
    rules = [_rule(step, always) for step in steps]
    legend = " ".join(_span(NAMES.get(rule, rule), rule) for rule in STYLES if rule in rules)
    spans = (
        _span(
            (text_of(step.token_id) or f"{step.token_id} ").replace("\n", "\u21b5\n"),
            rule,
            f"{step.index}: {step.token_id}: {step.why}",
        )
        for step, rule in zip(steps, rules, strict=True)
    )
    at_each = "".join(
        f"<p>{UNLESS_NOTED}: {escape(f'{path} {what}')}.</p>" for path, what in always.items()
    )
    return (
        f"<p>{legend}</p>{at_each}\n"
        f'<pre style="font: inherit; white-space: pre-wrap">{"".join(spans)}</pre>\n'
    )


def table(steps: Sequence[Step], text_of: TextOf) -> str:
    """Make a table of the steps: token, rule, specs, probability, and the likeliest tokens."""
    always = standing(steps)
    heads = ["", "token", "rule", "specs", "probability", "likeliest"]
    rows = [
        [
            str(step.index),
            token(step.token_id, text_of),
            NAMES.get(rule := _rule(step, always), rule),
            without(step, always).why,
            "" if step.logprob is None else chance(step.logprob),
            ", ".join(f"{quoted(text)} {chance(p)}" for text, p in step.likeliest[:MOST]),
        ]
        for step in steps
    ]
    kept = [i for i, head in enumerate(heads) if not head or any(row[i] for row in rows)]
    lines = [_line("th", [heads[i] for i in kept])]
    lines += [_line("td", [row[i] for i in kept]) for row in rows]
    return f"<div><table>{''.join(lines)}</table></div>\n"


def _line(cell: str, texts: Sequence[str]) -> str:
    cells = (f'<{cell} style="{CELL}">{escape(text)}</{cell}>' for text in texts)
    return f"<tr>{''.join(cells)}</tr>\n"


UNLESS_NOTED = "Unless noted, at each token"

MOST = 5
"""The most of the likeliest tokens that are shown."""


def standing(steps: Sequence[Step]) -> dict[str, str]:
    """Find the specs that act at each of several tokens, and what they do at most of them."""
    found: dict[str, str] = {}
    for path in steps[0].acting if len(steps) > 1 else ():
        counts = Counter(step.acting.get(path, "") for step in steps)
        what = max(counts, key=lambda each: counts[each])
        is_standing = "" not in counts and counts[what] > len(steps) / 2
        if is_standing and what.startswith(("banned", "added")):
            found[path] = what
    return found


def without(step: Step, always: Mapping[str, str]) -> Step:
    """Leave out what stands, except where a token breaks a spec or a spec displaces another."""
    if not step.obeyed:
        return step
    left = {
        path: what
        for path, what in step.acting.items()
        if always.get(path) != what or path in step.displaced
    }
    return replace(step, acting=left)


def _rule(step: Step, always: Mapping[str, str]) -> str:
    """Return the rule of a token's colour, which tells it from other tokens."""
    if not step.obeyed:
        return "broken"
    return step.rule if without(step, always).acting else "free"


def _span(text: str, rule: str, title: str = "") -> str:
    attributes = f'class="{rule}" style="{EDGES}; {STYLES[rule]}" title="{escape(title)}"'
    return f"<span {attributes}>{escape(text)}</span>"

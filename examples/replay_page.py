"""A replayed reply as a page of coloured tokens, of what ``logitport replay --json`` prints.

``logitport replay spec.json --reply reply.json --json | python -m examples.replay_page > a.html``
"""

import json
import sys
from collections.abc import Mapping, Sequence
from html import escape
from math import exp
from typing import Any

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
LIKELIEST = 5
"""The most of the likeliest tokens that are shown."""

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
  pre {{ font: inherit; white-space: pre-wrap; overflow-wrap: anywhere; }}
  div {{ overflow-x: auto; }}
</style>
<h1>A replayed reply</h1>
{}
</html>
"""

Step = Mapping[str, Any]
"""A token of the reply, as an object of ``steps``."""


def page(replay: Mapping[str, Any]) -> str:
    """Make a page, which needs nothing else, of the object that ``replay`` prints."""
    steps, always = replay["steps"], replay["always"]
    rules = [rule_of(step, always) for step in steps]
    legend = " ".join(span(NAMES.get(rule, rule), rule) for rule in STYLES if rule in rules)
    shown = "".join(
        span(
            (step["text"] or f"{step['token_id']} ").replace("\n", "\u21b5\n"),
            rule,
            f"{step['index']}: {step['token_id']}: {step['why']}",
        )
        for step, rule in zip(steps, rules, strict=True)
    )
    said = [f"<b>{escape(replay['verdict'])}</b>", *map(escape, replay["notes"]), legend]
    said += (f"At most tokens: {escape(f'{path} {what}')}" for path, what in always.items())
    parts = [*(f"<p>{line}</p>" for line in said), f"<pre>{shown}</pre>", table(steps, rules)]
    return PAGE.format("\n".join(parts))


def rule_of(step: Step, always: Mapping[str, str]) -> str:
    """Return the rule of a token's colour, which tells it from other tokens."""
    if not step["obeyed"]:
        return "broken"
    others = [path for path, what in step["acting"].items() if always.get(path) != what]
    return step["rule"] if others or step["displaced"] else "free"


def span(text: str, rule: str, title: str = "") -> str:
    """Make a coloured text, with words that are shown where it is pointed at."""
    attributes = f'class="{rule}" style="{EDGES}; {STYLES[rule]}" title="{escape(title)}"'
    return f"<span {attributes}>{escape(text)}</span>"


def table(steps: Sequence[Step], rules: Sequence[str]) -> str:
    """Make a table of the tokens: rule, specs, probability, and the likeliest tokens."""
    rows = [["", "token", "rule", "specs", "probability", "likeliest"]]
    for step, rule in zip(steps, rules, strict=True):
        likeliest = step["likeliest"][:LIKELIEST]
        rows.append(
            [
                str(step["index"]),
                f"{step['token_id']} {quoted(step['text'])}",
                NAMES.get(rule, rule),
                step["why"],
                "" if step["logprob"] is None else chance(step["logprob"]),
                ", ".join(f"{quoted(text)} {chance(p)}" for text, p in likeliest),
            ]
        )
    cells = ("".join(f'<td style="{CELL}">{escape(text)}</td>' for text in row) for row in rows)
    return f"<div><table>{''.join(f'<tr>{row}</tr>' for row in cells)}</table></div>"


def quoted(text: str) -> str:
    """Quote a text as JSON does."""
    return json.dumps(text, ensure_ascii=False)


def chance(logprob: float) -> str:
    """Format a log probability as a probability."""
    return f"{exp(min(logprob, 0)):.2g}"


if __name__ == "__main__":
    sys.stdout.buffer.write(page(json.load(sys.stdin)).encode(errors="replace"))

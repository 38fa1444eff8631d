"""A page that colours the tokens of a text by their evidence for a mark."""

from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from html import escape
from itertools import pairwise

import numpy as np

from .detection import Detection, Finding
from .profiles import Profile

PAGE = """\
<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>logitport detect</title>
<style>
  :root {{ color-scheme: light dark; }}
  body {{ font: 16px/1.8 system-ui, sans-serif; margin: 2em auto; max-width: 60em; }}
  pre {{ font: inherit; overflow-wrap: anywhere; white-space: pre-wrap; }}
  mark {{ background: none; color: inherit; outline: 2px solid #16a34a; }}
  span {{ border-right: 1px solid #8886; padding: 2px 0; unicode-bidi: isolate; }}
</style>
<h1>Is this text marked?</h1>
<p>A deeper colour speaks for the mark. Marked parts have an outline.</p>
{}
</html>
"""


def page(
    detection: Detection,
    profiles: Mapping[str, Profile],
    token_ids: Sequence[int],
    prompt_token_ids: Sequence[int],
    text_of: Callable[[int], str],
) -> str:
    """Make a page, which needs nothing else, of what ``detect`` has found in tokens.

    ``text_of`` returns the text of a token, or an empty one if it is not known.
    """
    texts = [(text_of(each) or f"{each} ").replace("\n", "\u21b5\n") for each in token_ids]
    tokens, prompt = (np.array(each, np.int64) for each in (token_ids, prompt_token_ids))

    def section(finding: Finding) -> str:
        profile = profiles[finding.profile]
        titles, shares = ["not scored"] * len(texts), [0.0] * len(texts)
        for i, score in zip(*profile.scores(profile.keys(), tokens, prompt), strict=True):
            titles[i] = f"score {score:.2f}"
            shares[i] = min(max(profile.THETA * score - profile.log_mgf, 0), 1)
        spans = [
            f'<span style="background: rgb(34 197 94 / {share:.2f})" '
            f'title="{i}: {token_ids[i]}: {title}">{escape(text)}</span>'
            for i, (text, title, share) in enumerate(zip(texts, titles, shares, strict=True))
        ]
        edges = [0, *(each for span in finding.spans for each in (span.start, span.end)), None]
        parts = ["".join(spans[start:end]) for start, end in pairwise(edges)]
        parts[1::2] = (f"<mark>{part}</mark>" for part in parts[1::2])
        return f"<h2>{escape(said(finding, len(texts)))}</h2>\n<pre>{''.join(parts)}</pre>"

    return PAGE.format("\n".join(map(section, detection.findings)))


def said(finding: Finding, count: int) -> str:
    """Say in words what a profile says about a text of so many tokens."""
    verdict = "marked" if finding.is_watermarked else "not marked"
    p_value = f"{Decimal(10) ** Decimal(finding.log10_p):.2g}"  # a float would underflow
    figures = f"{verdict}, p-value {p_value}, score {finding.score:.1f}"
    return f"{finding.profile} ({finding.scheme}): {figures}, {finding.scored} of {count} scored"

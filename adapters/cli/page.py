"""A replayed reply as one HTML page."""

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from .texts import TextOf

if TYPE_CHECKING:
    from .steps import Step

HEAD = """\
<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>logitport replay</title>
<style>
  body { font: 16px/1.8 system-ui; margin: 2em auto; max-width: 50em; }
  pre { font: inherit; white-space: pre-wrap; }
  .forced { background: #cfe3ff; } .allowed { background: #d5f2d5; }
  .banned { background: #fff0c2; } .added { background: #ecdcff; }
  .broken { background: #ffb3b3; outline: 2px solid #c00; }
</style>
<p><span class="forced">forced</span> <span class="allowed">allowed</span>
<span class="banned">others banned</span> <span class="added">added</span> free
<span class="broken">breaks a spec</span>. Hold the pointer over a token for its step.</p>
<pre>"""


def page(steps: "Sequence[Step]", text_of: TextOf) -> str:
    """Make a page that needs nothing else."""
    spans = (
        f'<span class="{step.rule if step.obeyed else "broken"}" '
        f'title="{escape(f"{step.index}: {step.token_id}: {step.why}")}">'
        f"{escape(text_of(step.token_id) or f'{step.token_id} ')}</span>"
        for step in steps
    )
    return f"{HEAD}{''.join(spans)}</pre>\n</html>\n"

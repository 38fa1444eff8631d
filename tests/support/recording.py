"""What realizers did to the logits, recorded to be compared with a replay of the reply.

The children of an engine record, too: ``environment_of_children``.
"""

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

VARIABLE = "LOGITPORT_TEST_RECORD"


def install() -> None:
    """Have each host realizer of this process append a line for each row that it edits."""
    from logitport.adapters.core import Realizer

    apply, file = Realizer.apply, os.environ[VARIABLE]

    def recorded(self: Any, logits: Any) -> None:
        indices = [*zip(self.rows, map(len, self.outputs), strict=True)]
        before = {row: logits[row].numpy().copy() for row, _ in indices}
        apply(self, logits)
        with open(file, "a", encoding="utf-8") as lines:
            for row, index in indices:
                line = {"index": index, **seen(before[row], logits[row].numpy())}
                lines.write(json.dumps(line) + "\n")

    Realizer.apply = recorded


def seen(before: Any, after: Any) -> dict[str, Any]:
    """The strongest edit of a row, and the number of tokens that it is about, or the token."""
    from logitport.adapters.conformance.reference import DECISIVE
    from logitport.adapters.core.logits import FORCED_LOGIT

    difference = np.round(after.astype(np.float64) - before, 2)
    if after.max() == FORCED_LOGIT > before.max():
        return {"rule": "forced", "about": int(after.argmax())}
    if np.isneginf(after).any():
        return {"rule": "allowed", "about": int(np.isfinite(after).sum())}
    if banned := int((difference <= -DECISIVE).sum()):
        return {"rule": "banned", "about": banned}
    return {"rule": "added" if difference.any() else "free", "about": int((difference != 0).sum())}


def environment_of_children(folder: Path) -> Mapping[str, str]:
    """An environment in which Python processes record, into ``folder / "record"``."""
    (folder / "sitecustomize.py").write_text(f"from {__name__} import install\n\ninstall()\n")
    path = os.pathsep.join([str(folder), *sys.path])
    return {"PYTHONPATH": path, VARIABLE: str(folder / "record")}

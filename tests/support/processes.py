"""Python in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support.paths import ROOT


def python(*arguments: Any, cwd: Path = ROOT, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run Python with arguments, and with variables beside those of this process."""
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=cwd,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=False,
    )

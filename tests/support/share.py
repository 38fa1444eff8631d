"""A third of the modules of tests, drawn by a commit: CI runs their slow tests.

``python -m tests.support.share COMMIT PATH`` has status 0 if a path is drawn.
"""

import sys
from zlib import crc32

SHARE = 3


def is_drawn(commit: str, path: str) -> bool:
    """Whether a commit draws a path, which every third commit or so does."""
    return crc32(f"{commit} {path}".encode()) % SHARE == 0


if __name__ == "__main__":
    sys.exit(not is_drawn(*sys.argv[1:]))

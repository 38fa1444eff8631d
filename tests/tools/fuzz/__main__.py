"""``python -m tests.tools.fuzz``; see ``run``. (Spawned processes cannot import this module.)"""

import sys

from .run import main

if __name__ == "__main__":
    sys.exit(main())

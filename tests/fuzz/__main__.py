"""``python -m tests.fuzz``; see ``run``. (Processes that are spawned cannot import this module.)"""

import sys

from .run import main

if __name__ == "__main__":
    sys.exit(main())

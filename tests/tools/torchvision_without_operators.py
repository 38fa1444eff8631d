"""Let torchvision's Python code be imported where its operators cannot be loaded.

A build for CUDA registers the shapes of operators that it does not have beside a torch for CPUs.
``python tests/tools/torchvision_without_operators.py`` makes each process of this environment
skip that. vLLM and Dynamo call no such operator for text.
"""

import sysconfig
from pathlib import Path

LINE = (
    'import sys, types; name = "torchvision._meta_registrations"; '
    "sys.modules.setdefault(name, types.ModuleType(name))\n"
)

if __name__ == "__main__":
    Path(sysconfig.get_path("purelib"), "torchvision_without_operators.pth").write_text(LINE)

"""What the tests on SGLang share. Where it cannot run, there are none."""

from importlib.util import find_spec

# Its processors are among the benchmark's peers, so the package alone says nothing.
collect_ignore_glob = [] if find_spec("sgl_kernel") else ["test_*.py"]

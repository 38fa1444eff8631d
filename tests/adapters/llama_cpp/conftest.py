"""Tests on llama.cpp, where it is installed: ``make test-llama-cpp`` compiles it."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("llama_cpp") else ["test_*.py"]

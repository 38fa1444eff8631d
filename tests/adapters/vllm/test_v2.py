"""The mixed batch under vLLM's V2 model runner: in a process of its own, which interprets kernels.

``pytest --runner v2`` runs all that the V2 runner makes a difference for.
"""

import pytest

from tests.support.processes import python


@pytest.mark.only("v1", reason="this is the process of V2")
def test_mixed_batch():
    batch = "tests/adapters/vllm/test_all_kinds.py::test_every_fourth_kind"
    done = python("-m", "pytest", "-q", "-p", "no:cacheprovider", "--runner", "v2", batch)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout

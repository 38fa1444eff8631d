"""What the engines' own detectors found, in environments without them.

``--write-golden`` writes the file where an engine is installed: ``test_marks_of_vllm.py`` and the
files beside it.
"""

import json
from typing import Any

import pytest

from tests.support.marks import FILE, find, profile

VECTORS: dict[str, list[Any]] = json.loads(FILE.read_text(encoding="utf-8"))


@pytest.mark.parametrize("engine", VECTORS)
def test_detections(engine: str):
    for vector in VECTORS[engine]:
        ours = profile(vector["key"], **vector["profile"])
        found = find(ours, vector["token_ids"], vector.get("prompt_token_ids", ()))
        assert found.scored == vector["scored"]
        assert found.score == pytest.approx(vector["score"], rel=1e-9)
        if "p_value" in vector:
            assert found.p_value == pytest.approx(vector["p_value"], rel=1e-8)


def test_every_scheme_has_vectors():
    schemes = {vector["profile"]["scheme"] for vectors in VECTORS.values() for vector in vectors}
    assert schemes == {
        *("vllm-gumbel", "vllm-dual-gumbel", "sglang-gumbel", "sglang-dual", "kgw", "synthid")
    }

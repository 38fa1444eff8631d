"""The loops: compiled once and before the first request, or run as Python where they cannot be."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from logitport.adapters.core import (
    Acting,
    Mark,
    Program,
    Realizer,
    Vocabulary,
    compile_specs,
    loops,
)
from logitport.adapters.core.automaton import automata, steps, tries
from logitport.adapters.core.host import draw, edit, history_rules
from logitport.adapters.core.text import byte_automaton, characters, token_product
from logitport.adapters.core.warm_up import prepare
from logitport.spec import (
    AllowedScriptsSpec,
    BannedSequencesSpec,
    BannedTextSpec,
    ChoiceSpec,
    Phase,
    PhaseEnd,
    PhasesSpec,
    SequenceBiasSpec,
)

from tests.support.host_driver import apply
from tests.support.requests import LAYOUTS, ONE_OF_EACH, Request, laid_out

LOOPS = [
    value
    for module in (
        *(automata, steps, tries, draw, edit, history_rules),
        *(byte_automaton, token_product, characters),
    )
    for value in vars(module).values()
    if hasattr(value, "signatures")
]

ONE_STEP = """
import numpy
from logitport.adapters.core import Realizer, compile_specs, loops
from logitport.spec import AllowedTokensSpec, DrySpec, NoRepeatNgramSpec

realizer, logits = Realizer(8), numpy.zeros((1, 8), numpy.float32)
specs = AllowedTokensSpec((1, 2)), DrySpec(1.0), NoRepeatNgramSpec(2)
realizer.add(0, compile_specs(specs), [1, 2, 1], [2, 1])
realizer.apply(logits)
print(logits[0].tolist(), loops.why_slow() is None, realizer.failed_requests)
"""


def one_step(**env: str) -> tuple[str, str]:
    """What a process prints that takes one step, and what it logs."""
    command = [sys.executable, "-c", ONE_STEP]
    done = subprocess.run(
        command, env={**os.environ, **env}, capture_output=True, text=True, check=True
    )
    return done.stdout, done.stderr


EDITED = "[-inf, 0.0, -1000000000.0, -inf, -inf, -inf, -inf, -inf]"


@pytest.mark.skipif(not LOOPS, reason="they run as Python here")
def test_nothing_is_compiled_for_a_request() -> None:
    """Whatever its kinds, and whatever the logits are: all of it is done when a worker starts."""
    Realizer(8).apply(torch.zeros(1, 8))
    realizer = Realizer(8)
    realizer.add(0, compile_specs(ONE_OF_EACH[:1]), [1], [])
    realizer.apply(torch.zeros(1, 8))
    before = {each.py_func.__name__: len(each.signatures) for each in LOOPS}
    for layout in LAYOUTS:
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            requests = [Request((spec,), [1, 5, 2, 1]) for spec in ONE_OF_EACH]
            realizer = Realizer(8)
            for row, request in enumerate(requests):
                request.add_to(realizer, row)
            for step in range(4):
                apply(realizer, requests, seed=step, layout=layout, dtype=dtype)
                for request in requests:
                    request.output += [step] * step
            realizer.apply(np.zeros((len(requests), 8), np.float32))
            for how in ({}, {"top_k": 3, "top_p": 0.9, "min_p": 0.1, "reads_prompt": True}):
                mark = Program((Acting(Mark("a", 1, temperature=0.5, **how)),))
                realizer.add(0, Program().then(mark), [1, 5], [*range(8)])
                realizer.apply(laid_out(torch.zeros(len(requests), 8), layout).to(dtype))
            assert realizer.failed_requests == 0
    assert before == {each.py_func.__name__: len(each.signatures) for each in LOOPS}
    assert len([count for count in before.values() if count]) > 6


@pytest.mark.skipif(not LOOPS, reason="they run as Python here")
def test_nothing_is_compiled_for_a_rule_about_text() -> None:
    """A server that reads a vocabulary when it starts makes the rest ready with it."""
    vocabulary = Vocabulary.of_tokens([b"a", b"b", None, b" ", "é".encode()])
    prepare(vocabulary)
    before = {each.py_func.__name__: len(each.signatures) for each in LOOPS}
    assert {before[name] for name in ("read_from_root", "read_from_states", "split")} == {1}
    for spec in (
        BannedTextSpec(("ab", "a")),
        BannedTextSpec(("ab", "b a"), ignore_case=True, whole_words=True),
        AllowedScriptsSpec(("Latin",)),
        PhasesSpec((Phase(ends=(PhaseEnd(text="ab"),)), Phase())),
        BannedSequencesSpec(((1, 2), (2, 1, 3))),
        SequenceBiasSpec(((1, 2), (2, 1, 3)), (1.0, 2.0)),
        ChoiceSpec(((1, 2), (2,)), 4),
    ):
        compile_specs((spec,), lambda: vocabulary)
    assert before == {each.py_func.__name__: len(each.signatures) for each in LOOPS}


def test_without_numba(tmp_path: Path) -> None:
    (tmp_path / "numba.py").write_text("raise ImportError('broken')\n")
    printed, logged = one_step(PYTHONPATH=str(tmp_path), NUMBA_DISABLE_JIT="0")
    assert printed == f"{EDITED} False 0\n"
    assert logged.count("Loops run as plain Python, which is slow: numba does not work here") == 1
    assert "pip install 'numba" in logged


def test_as_the_operator_asks_for() -> None:
    printed, logged = one_step(NUMBA_DISABLE_JIT="1")
    assert printed == f"{EDITED} False 0\n"
    assert logged.count("NUMBA_DISABLE_JIT is set") == 1


@pytest.mark.skipif(not LOOPS, reason="they run as Python here")
def test_where_no_cache_can_be_written(monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    import numba

    compile_loop = numba.njit

    def njit(*args: Any, **options: Any) -> Any:
        if options.get("cache"):
            raise RuntimeError("cannot cache function: no locator available")
        return compile_loop(*args, **options)

    monkeypatch.setattr(numba, "njit", njit)
    loops._say_once.cache_clear()
    caplog.set_level("WARNING", logger="logitport")  # an engine of an earlier test may ask for less
    made = [loops.loop(loops._probe) for _ in range(2)]
    assert [each(1) for each in made] == [2, 2]
    assert caplog.text.count("compiled at each start") == 1
    assert "NUMBA_CACHE_DIR" in caplog.text
    assert "no locator available" in str(loops.why_uncached())


@pytest.mark.skipif(not LOOPS, reason="they run as Python here")
def test_a_cache_is_that_of_all_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    """They call one another, and numba would look at the file of each alone."""
    first, second = (each._cache._cache_file._source_stamp for each in LOOPS[:2])
    assert first == second == loops._stamp()


@pytest.mark.skipif(not LOOPS, reason="they run as Python here")
def test_llvmlites_library_has_a_dict() -> None:
    """vLLM's CPU platform looks into the objects of all modules when an engine starts.

    See ``_rebind_kernels`` in ``vllm/triton_utils/dispatcher.py``.
    """
    from llvmlite.binding import ffi

    assert vars(ffi.lib) == {}

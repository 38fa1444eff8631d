"""The checks on a GPU: a failure raises, and its end is in the results."""

import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from itertools import cycle
from time import perf_counter
from typing import Any

import numpy as np
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from logitport.adapters.core import DeviceRealizer, Realizer, compile_specs

from .. import workload as w
from .carried import ROOT
from .device import DEVICE, REHEARSAL, Row, SkippedError, need_gpu
from .slots import Ours
from .times import KINDS, ROWS, VOCAB

TESTS = ("test_device_realizer", "test_triton_editor", "test_kernels")


def run_tests() -> Iterator[Row]:
    """Run the tests of the kernels, on the GPU."""
    files = [f"tests/core/{name}.py" for name in TESTS]
    chosen = ["-n", "4", "-m", ""]  # the slow ones, too
    if REHEARSAL:
        files, chosen = files[:2], ["-k", "chooses_the_editor or layouts or requests_enter"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *chosen, *files]
    done = subprocess.run(command, cwd=ROOT, text=True, capture_output=True, check=False)
    yield {"table": "Tests", "files": " ".join(files), "result": done.stdout.splitlines()[-1]}
    assert done.returncode == 0, done.stdout[-4000:]


def compare() -> Iterator[Row]:
    """Compare random batches with the reference: types, vocabularies, rows and drafts."""
    from tests.support.device_engine import Engine
    from tests.support.requests import ONE_OF_EACH, Request
    from tests.support.strategies import specs, within_limits

    vocabularies = (300, 1025) if REHEARSAL else (32_000, 50_257, 128_256, 151_936, 262_144)
    most = 8 if REHEARSAL else 1024
    dtypes = (torch.float32, torch.bfloat16, torch.float16)
    done = {"examples": 0, "rows": 0}

    def run(requests: list[Request], rows: int, vocabulary: int, dtype: Any, drafts: Any) -> None:
        engine = Engine(DEVICE, vocabulary, slots=rows, longest=64)
        copies = [
            Request(one.specs, [*(one.prompt or ())], [*one.output])
            for one in (requests[i % len(requests)] for i in range(rows))
        ]
        for one in copies:
            engine.add(one)
        for seed in range(2):
            slots = [*engine.requests]
            of_slots = {slot: drafts[i % len(drafts)] for i, slot in enumerate(slots)}
            after = engine.check(of_slots, seed, dtype)
            at = 0
            for slot, tokens in of_slots.items():
                engine.accept(slot, [int(after[at, :vocabulary].argmax())])
                at += 1 + len(tokens)
            done["rows"] += at
        assert engine.realizer.failed_requests == 0
        done["examples"] += 1

    few = st.integers(0, 7)

    @st.composite
    def batches(draw: st.DrawFn) -> tuple[Any, ...]:
        vocabulary = draw(st.sampled_from(vocabularies))
        of_any = specs(draw(st.sampled_from([8, vocabulary])), longest=3, count=6)
        requests = st.builds(
            Request,
            specs=st.lists(of_any, max_size=4).filter(within_limits),
            prompt=st.lists(few, max_size=12),
            output=st.lists(few, max_size=4),
        )
        at_most = min(most, max(1, 4_000_000 // vocabulary))  # the reference takes its time
        drafts = st.lists(st.lists(few, max_size=3), min_size=1, max_size=3)
        return (
            draw(st.lists(requests, min_size=1, max_size=8)),
            draw(st.integers(1, at_most)),
            vocabulary,
            draw(st.sampled_from(dtypes)),
            draw(drafts),
        )

    @settings(
        max_examples=4 if REHEARSAL else 40,
        deadline=None,
        suppress_health_check=[*HealthCheck],
        database=None,
    )
    @given(batches())
    def compare_random(batch: tuple[Any, ...]) -> None:
        run(*batch)

    everything = [Request((spec,), [1, 5, 2, 1]) for spec in ONE_OF_EACH]
    for dtype in dtypes:
        run(everything, most, vocabularies[0], dtype, [[], [4]])
        run(everything, min(most, 32), vocabularies[-1], dtype, [[4, 5]])
    compare_random()
    yield {"table": "Equal to the reference", **done, "vocabularies": str(vocabularies)}


def _begin(kinds: Any, rows: int, drafts: int = 0) -> tuple[Ours, torch.Tensor]:
    with DEVICE:
        batch = w.workload([*kinds], rows, VOCAB)
        history = w.History(batch)
        history.grow()
        return Ours(batch, history, drafts), torch.randn(rows * (1 + drafts), VOCAB)


def _grow(step: Ours) -> None:
    """Let each output take a token."""
    step.outputs.grow()
    with DEVICE:
        step.advance()


def never_wait() -> Iterator[Row]:
    """Check that a step never waits for the device; capture a step in a CUDA graph."""
    alone: dict[str, Any] = {} if REHEARSAL else {kind: [make] for kind, make in KINDS.items()}
    for name, kinds in {**alone, "all": KINDS.values()}.items():
        step, logits = _begin(kinds, 2 * ROWS, drafts=1)
        step(logits)
        _grow(step)
        newcomer = compile_specs([w.trigger(random.Random(1), VOCAB)])
        known = step.workload.prompts[0], step.outputs.outputs[0]
        if not REHEARSAL:
            torch.cuda.set_sync_debug_mode("error")
        try:
            step(logits)
            step.realizer.add(0, newcomer, *known)
            step(logits)
        finally:
            if not REHEARSAL:
                torch.cuda.set_sync_debug_mode("default")
        assert not step.failures
        waits = "not seen in a rehearsal" if REHEARSAL else "none"
        yield {"table": "Waits of the host for the device", "kinds": name, "waits": waits}
    need_gpu("a CUDA graph")
    step, logits = _begin(KINDS.values(), 26, drafts=1)
    origin = logits.clone()
    step(logits)  # compiles and uploads
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step(logits)
    for _ in range(4):  # the graph reads what the engine has written since
        _grow(step)
        logits.copy_(origin)
        graph.replay()
        captured = logits.clone()
        logits.copy_(origin)
        step(logits)
        assert torch.equal(captured, logits)
    assert not step.failures
    yield {"table": "CUDA graph", "of": "a step of all kinds", "replays equal to steps": 4}


def compile_early() -> Iterator[Row]:
    """Time the first compilations, and check that none comes after the warm-up."""
    from triton import knobs

    if REHEARSAL:
        from .kernels import compile_only

        compile_only()

    started: dict[str, float] = {}
    late: list[str] = []
    is_warm = False

    def begin(**about: Any) -> None:
        started[about["fn"].name] = perf_counter()

    def end(**about: Any) -> None:
        name = about["fn"].name
        took.setdefault(name, []).append(perf_counter() - started[name])
        if is_warm:
            late.append(name)

    took: dict[str, list[float]] = {}
    knobs.runtime.jit_cache_hook, knobs.runtime.jit_post_compile_hook = begin, end
    rng = np.random.default_rng(0)
    step, _ = _begin(KINDS.values(), 64)
    DeviceRealizer.warm_up(VOCAB, step.history, VOCAB)
    for name, seconds in took.items():
        yield {
            "table": "First compilations (Triton's cache was empty)",
            "kernel": name,
            "variants": len(seconds),
            "seconds": sum(seconds),
        }
    is_warm = True
    for rows in (1, 17) if REHEARSAL else (1, 2, 3, 8, 15, 16, 17, 64, 100, 256, 1024):
        for drafts in (0, 3) if REHEARSAL else (0, 1, 3):
            for kinds in (rng.permutation([*KINDS]), [str(rng.choice([*KINDS]))]):
                makers = [KINDS[kind] for kind in kinds]
                step, logits = _begin(makers, rows, drafts)
                for _ in range(2):
                    step(logits)
                    _grow(step)
                assert not step.failures
    for rows in (1, 3, 64):  # as under vLLM's V1 runner, SGLang and transformers
        realizer = Realizer(VOCAB)
        for row, make in zip(range(rows), cycle(KINDS.values()), strict=False):
            realizer.add(row, compile_specs([make(random.Random(row), VOCAB)]), [1, 2], [])
        realizer.apply(torch.zeros(rows, VOCAB, device=DEVICE))
        assert getattr(realizer._editor, "_plain", None) is None, "torch stands in for the kernel"
    yield {"table": "Late compilations", "kernels": ", ".join(sorted({*late})), "count": len(late)}
    assert not late, late


def check_every_kind() -> Iterator[Row]:
    """Check one batch of all kinds with the reference, in each type."""
    from tests.support.device_engine import Engine
    from tests.support.requests import ONE_OF_EACH, Request

    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        engine = Engine(DEVICE, 5000, slots=len(ONE_OF_EACH) + 1, longest=3000)
        wanted = [*(Request((spec,), [1, 5, 2, 1] * 600) for spec in ONE_OF_EACH), Request()]
        slots = [engine.add(request) for request in wanted]
        for seed in range(3):
            engine.check({slot: [4, 5] for slot in slots}, seed, dtype, 1)
            for slot in slots:
                engine.accept(slot, [4, 1])
        yield {"table": "One batch of all kinds", "type": str(dtype), "rows": 3 * len(slots)}


def check_memory() -> Iterator[Row]:
    """Run the batch of all kinds under compute-sanitizer."""
    need_gpu("compute-sanitizer's memcheck; the batch itself is the part before")
    places = os.pathsep.join([os.environ["PATH"], "/usr/local/cuda/bin"])
    if (tool := shutil.which("compute-sanitizer", path=places)) is None:
        raise SkippedError("needs compute-sanitizer, of CUDA's tools")
    part = [sys.executable, "-m", "benchmarks.gpu.part", "all kinds", "/dev/null"]
    options = ["--tool=memcheck", "--error-exitcode=9", "--report-api-errors=no"]
    command = [tool, *options, *part]
    # Each tensor is an allocation of its own, so that no access beyond one hits another.
    alone = os.environ | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=alone, text=True, capture_output=True, check=False)
    lines = [line for line in done.stdout.splitlines() if "ERROR SUMMARY" in line]
    yield {"table": "compute-sanitizer, memcheck", "result": lines[-1] if lines else "no summary"}
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]


def generate() -> Iterator[Row]:
    """Let transformers generate with a model of chance; each row's specs must be obeyed."""
    from logitport.adapters.reference import obeys
    from logitport.adapters.transformers import LogitportProcessor

    from tests.support.requests import ONE_OF_EACH
    from tests.support.tiny_model import tiny_model

    model = tiny_model(0).to(DEVICE)
    specs = [*ONE_OF_EACH, None] * (1 if REHEARSAL else 8)
    prompts = torch.randint(512, (len(specs), 12), generator=torch.Generator().manual_seed(0))
    inputs = {
        "input_ids": prompts.to(DEVICE),
        "attention_mask": torch.ones_like(prompts).to(DEVICE),
    }
    processor = LogitportProcessor(model, [[spec] if spec else [] for spec in specs], **inputs)
    length = 8 if REHEARSAL else 40
    outputs = model.generate(
        **inputs, logits_processor=[processor], do_sample=False, max_new_tokens=length
    )
    said = outputs[:, prompts.shape[1] :].tolist()
    for spec, prompt, output in zip(specs, prompts.tolist(), said, strict=True):
        output = output[: output.index(2) + 1] if 2 in output else output
        assert spec is None or obeys(spec, prompt, output), (spec, prompt, output)
    editor = type(processor._realizer._editor).__name__
    plain = getattr(processor._realizer._editor, "_plain", None)
    assert plain is None, "the kernel failed, and torch's operations stood in for it"
    yield {"table": "transformers", "obeyed": len(specs), "tokens each": length, "editor": editor}

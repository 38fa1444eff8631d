"""The plugin for Dynamo's own worker, ``python -m dynamo.vllm`` (``vllm.general_plugins``).

vLLM loads it in each of its processes, before the worker takes requests. It wraps the functions
with which the worker makes vLLM's parameters, so that these get the specs in the annotations of a
request. Importing this module imports neither Dynamo nor vLLM.
"""

import sys
from collections.abc import Callable, Mapping
from functools import wraps
from inspect import signature
from typing import Any

from .vllm.names import DYNAMO_HANDLERS, TAKES_SPECS

BUILDERS = {
    "build_sampling_params": (
        *("request", "default_sampling_params", "model_max_len", "enable_rl"),
    ),
    "build_sampling_params_openai": ("request", "default_sampling_params"),
}
"""The functions, and their parameters. Workers with ``--use-vllm-tokenizer`` use the second."""


def load() -> None:
    """Wrap Dynamo's functions, if this process is Dynamo's worker.

    Raises:
        SystemExit: if the functions are not as in Dynamo 1.6.1: specs would be ignored.
    """
    handlers = sys.modules.get(DYNAMO_HANDLERS)
    if handlers is None or hasattr(handlers, TAKES_SPECS):
        return
    from .vllm import BACKEND

    for name, expected in BUILDERS.items():
        build = getattr(handlers, name, None)
        if build is None or tuple(signature(build).parameters) != expected:
            sys.exit(
                "logitport cannot pass specs to this version of Dynamo, whose worker has no "
                f"{DYNAMO_HANDLERS}.{name}({', '.join(expected)}). Install a version of logitport "
                "for it, or uninstall logitport"
            )
    modules = sys.modules.copy().items()  # other threads may import
    users = [module for name, module in modules if name.startswith("dynamo.")]
    for name in BUILDERS:
        build = getattr(handlers, name)
        with_specs = _with_specs(build)
        for module in users:  # some import the function by name
            if vars(module).get(name) is build:
                setattr(module, name, with_specs)
    setattr(handlers, TAKES_SPECS, True)
    BACKEND.preload()  # compiles while vLLM starts


def _with_specs(build: Callable[..., Any]) -> Callable[..., Any]:
    from .dynamo import attach_requested, has_specs
    from .vllm.callers import nearest

    @wraps(build)
    def build_with_specs(request: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        params = build(request, *args, **kwargs)
        if has_specs(request):
            # The caller is a method of a handler, which has the worker's configuration.
            mode = nearest("config", frames=0).disaggregation_mode
            attach_requested(params, request, disaggregation_mode=mode)
        return params

    return build_with_specs

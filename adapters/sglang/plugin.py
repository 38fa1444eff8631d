"""The plugin that SGLang loads into each of its processes (entry point ``sglang.srt.plugins``).

It installs hooks through SGLang's own framework for plugins (``sglang/srt/plugins``):

- on the admission of requests: the front end refuses bad specs, and gets a middleware that
  refuses them before a streamed answer has begun;
- on ``CustomLogitProcessor.from_str``, which would unpickle the client's string and so run the
  client's code: with logitport it makes only our processor;
- on the scheduler, for front ends that check nothing: the log names them when the engine starts,
  and a request with specs gets the name of our processor.
"""

import os
import sys
from collections.abc import Callable
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sglang.srt.managers.scheduler import Scheduler
    from sglang.srt.managers.tokenizer_manager import TokenizerManager


def load() -> None:
    """Install the hooks, which import the rest of logitport after the engine has set itself up.

    Raises:
        SystemExit: if this SGLang has no such functions: it would run without the guard.
    """
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    manager = "sglang.srt.managers.tokenizer_manager:TokenizerManager"
    scheduler = "sglang.srt.managers.scheduler:Scheduler"
    processor = "sglang.srt.sampling.custom_logit_processor:CustomLogitProcessor"
    for target, hook, kind in (
        (f"{manager}.__init__", _start, HookType.AFTER),
        (f"{manager}._validate_one_request", _admit, HookType.BEFORE),
        (f"{scheduler}.__init__", _warn, HookType.AFTER),
        (f"{scheduler}.handle_generate_request", _name_processor, HookType.BEFORE),
        (f"{processor}.from_str", _from_str, HookType.AROUND),
    ):
        try:
            resolve_name(target)
        except Exception as error:  # SGLang would log it and go on
            sys.exit(
                f"logitport cannot guard this version of SGLang, which has no {target}: {error}. "
                "Uninstall one of them, or name the plugins to load in SGLANG_PLUGINS"
            )
        HookRegistry.register(target.replace(":", "."), hook, kind)
    os.environ.setdefault("SGLANG_HTTP_SERVER_APP_PATH", f"{__package__}.http_server:app")


def _start(_: None, manager: "TokenizerManager", *args: Any, **kwargs: Any) -> None:
    from .admission import start

    start(manager)
    if "sglang.srt.entrypoints.http_server" in sys.modules:
        from .middleware import install

        install()


def _admit(manager: "TokenizerManager", request: Any, *args: Any, **kwargs: Any) -> None:
    if hasattr(request, "custom_logit_processor"):  # it generates
        from .admission import admission_of

        admission_of(manager).admit(request)


def _warn(*args: Any, **kwargs: Any) -> None:
    from .worker import warn_of_front_end

    warn_of_front_end()


def _name_processor(scheduler: "Scheduler", request: Any, *args: Any, **kwargs: Any) -> None:
    from .backend import KEY, PROCESSOR

    custom_params = request.sampling_params.custom_params or ()
    if request.custom_logit_processor is None and KEY in custom_params:
        request.custom_logit_processor = PROCESSOR


def _from_str(from_str: Callable[[type, str], Any], owner: type, json_str: str) -> Any:
    from .admission import is_refused
    from .processor import refuse

    return refuse if is_refused(json_str) else from_str(owner, json_str)

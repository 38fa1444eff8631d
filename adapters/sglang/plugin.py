"""What SGLang loads into each of its processes, from the entry-point group ``sglang.srt.plugins``.

It puts hooks where SGLang's own framework for plugins puts them (``sglang/srt/plugins``):

- on the admission of requests, so that a bad one is refused by its front end, and
- on ``CustomLogitProcessor.from_str``, which would unpickle whatever a client has sent, that is,
  run code of his. With us in the engine it makes our processor and no other.
"""

import os
import sys
from collections.abc import Callable
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sglang.srt.managers.tokenizer_manager import TokenizerManager

_ADMISSION = "_logitport_admission"


def load() -> None:
    """Put the hooks in place. Nothing of ours is imported before the engine has set itself up.

    Raises:
        SystemExit: if this SGLang has no such places: it would run unguarded.
    """
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    manager = "sglang.srt.managers.tokenizer_manager:TokenizerManager"
    processor = "sglang.srt.sampling.custom_logit_processor:CustomLogitProcessor"
    for target, hook, kind in (
        (f"{manager}.__init__", _start, HookType.AFTER),
        (f"{manager}._validate_one_request", _admit, HookType.BEFORE),
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
    from .admission import Admission

    setattr(manager, _ADMISSION, Admission(manager))


def _admit(manager: "TokenizerManager", request: Any, *args: Any, **kwargs: Any) -> None:
    if hasattr(request, "custom_logit_processor"):  # it generates
        getattr(manager, _ADMISSION).admit(request)


def _from_str(from_str: Callable[[type, str], Any], owner: type, json_str: str) -> Any:
    from .admission import is_refused
    from .processor import refuse

    return refuse if is_refused(json_str) else from_str(owner, json_str)

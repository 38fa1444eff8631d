"""SGLang's HTTP application for servers with several front ends.

With ``--tokenizer-worker-num``, SGLang spawns processes that import the application by name and
load no plugins (``sglang/srt/entrypoints/http_server.py``). They import this module instead.
"""

from sglang.srt.entrypoints.http_server import app
from sglang.srt.plugins import load_plugins

from .middleware import install

load_plugins()
install()

__all__ = ["app"]

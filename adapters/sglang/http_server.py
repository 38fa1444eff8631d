"""SGLang's HTTP application, for front ends of which it starts several.

With ``--tokenizer-worker-num``, processes are spawned that import the application by its name, and
load no plugins (``sglang/srt/entrypoints/http_server.py``): they import it from here instead.
"""

from sglang.srt.entrypoints.http_server import app
from sglang.srt.plugins import load_plugins

from .middleware import install

load_plugins()
install()

__all__ = ["app"]

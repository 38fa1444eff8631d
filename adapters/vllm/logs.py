"""What this package logs in an engine, among vLLM's own lines."""

import logging


class _ByVllm(logging.Handler):
    """Hands lines on to the handlers that vLLM has at the time."""

    def emit(self, record: logging.LogRecord) -> None:
        logging.getLogger("vllm").handle(record)


def show_logs() -> None:
    """Let what this package logs appear among vLLM's own lines, at vLLM's level.

    vLLM configures the output of its own loggers alone. What is configured for ours already, by
    whoever started the engine, is left as it is.
    """
    ours = logging.getLogger(__name__.partition(".")[0])
    if ours.level == logging.NOTSET:
        ours.setLevel(logging.getLogger("vllm").getEffectiveLevel())
    if not ours.hasHandlers():
        ours.addHandler(_ByVllm())

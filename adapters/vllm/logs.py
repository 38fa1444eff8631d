"""The output of this package's log among vLLM's own lines."""

import logging


class _ByVllm(logging.Handler):
    """A log handler that passes records to vLLM's current handlers."""

    def emit(self, record: logging.LogRecord) -> None:
        logging.getLogger("vllm").handle(record)


def show_logs() -> None:
    """Show this package's log among vLLM's own lines, at vLLM's level.

    vLLM configures only its own loggers. A level and handlers that our logger has already stay.
    """
    ours = logging.getLogger(__name__.partition(".")[0])
    if ours.level == logging.NOTSET:
        ours.setLevel(logging.getLogger("vllm").getEffectiveLevel())
    if not ours.hasHandlers():
        ours.addHandler(_ByVllm())

"""Portable logits processors: see ``logitport.spec`` and ``logitport.adapters``."""


def __getattr__(name: str) -> str:
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib.metadata import version  # which takes longer to import than all of this

    return version(__name__)

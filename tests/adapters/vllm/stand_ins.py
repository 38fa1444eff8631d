"""Stands for a ``VllmConfig``, where there is no engine."""

from types import SimpleNamespace
from typing import Any


class Config(SimpleNamespace):
    """Unlike its base it can be referenced weakly, as a ``VllmConfig`` can."""


def configuration(vocab_size: int = 100, kv_role: str | None = None, **others: Any) -> Any:
    """The parts that logitport reads, of an engine with the V1 runner unless ``others`` differ."""
    model_config = SimpleNamespace(
        served_model_name=None,
        model="a model",
        get_vocab_size=lambda: vocab_size,
        try_get_generation_config=dict,
        logits_processors=None,
    )
    parts: dict[str, Any] = {
        "model_config": model_config,
        "scheduler_config": SimpleNamespace(async_scheduling=False),
        "parallel_config": SimpleNamespace(),
        "additional_config": None,
        "speculative_config": None,
        "structured_outputs_config": SimpleNamespace(reasoning_parser="", backend="auto"),
        "use_v2_model_runner": False,
        "kv_transfer_config": kv_role and SimpleNamespace(kv_role=kv_role),
    }
    return Config(**parts | others)

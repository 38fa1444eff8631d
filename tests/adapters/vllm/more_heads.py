"""The model with more attention heads, which do nothing.

Tensor parallelism divides the heads among the workers, and 9 heads with 3 of keys and values cannot
be divided by 2. Heads of zeros add nothing to the output of a layer, so the model with 12 and 4 is
the same function.
"""

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from .small_vocabulary import WEIGHTS


def with_more_heads(model: Path, folder: Path, kv_heads: int = 4) -> Path:
    """Write a checkpoint whose layers have more heads than another's.

    Args:
        model: the checkpoint of a Llama.
        folder: for the new one; made here.
        kv_heads: how many heads of keys and values it has; each serves as many heads as before.

    Returns:
        ``folder``.
    """
    shutil.copytree(model, folder, ignore=shutil.ignore_patterns(WEIGHTS))
    config = json.loads((model / "config.json").read_text())
    before, kv_before = config["num_attention_heads"], config["num_key_value_heads"]
    head_dim = config["hidden_size"] // before
    heads = before // kv_before * kv_heads
    more = {"num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": head_dim}
    (folder / "config.json").write_text(json.dumps(config | more))

    weights = load_file(model / WEIGHTS)
    for name, weight in weights.items():
        # Dimension 1 of what reads all heads' outputs, otherwise 0, is head after head.
        match name.split(".")[-2]:
            case "q_proj":
                size, dim = (heads - before) * head_dim, 0
            case "k_proj" | "v_proj":
                size, dim = (kv_heads - kv_before) * head_dim, 0
            case "o_proj":
                size, dim = (heads - before) * head_dim, 1
            case _:
                continue
        shape = [*weight.shape]
        shape[dim] = size
        weights[name] = torch.cat([weight, weight.new_zeros(shape)], dim)
    save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})
    return folder

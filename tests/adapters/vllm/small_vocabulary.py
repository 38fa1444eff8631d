"""The model with the first tokens of its vocabulary alone, for interpreted kernels.

It is the real model all the same: the ids of a byte-level BPE are in the order of its merges, so
its first ids are a byte-level BPE, too.
"""

import json
import shutil
from pathlib import Path

from safetensors.torch import load_file, save_file

EMBEDDING = "model.embed_tokens.weight"
"""Of the output, too: the model's ``tie_word_embeddings``."""

WEIGHTS = "model.safetensors"


def with_small_vocabulary(model: Path, folder: Path, size: int = 2048) -> Path:
    """Write a checkpoint whose vocabulary are the first ``size`` tokens of another's."""
    shutil.copytree(model, folder, ignore=shutil.ignore_patterns(WEIGHTS))
    weights = load_file(model / WEIGHTS)
    weights[EMBEDDING] = weights[EMBEDDING][:size].clone()
    save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})

    config = json.loads((model / "config.json").read_text())
    assert config["tie_word_embeddings"]
    (folder / "config.json").write_text(json.dumps(config | {"vocab_size": size}))

    tokenizer = json.loads((model / "tokenizer.json").read_text())
    bpe = tokenizer["model"]
    bpe["vocab"] = {token: i for token, i in bpe["vocab"].items() if i < size}
    bpe["merges"] = [pair for pair in bpe["merges"] if "".join(pair) in bpe["vocab"]]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return folder

"""The model with the first tokens of its vocabulary alone.

Interpreted kernels, and tests that look at whole rows of logits, take their time for each column:
with a vocabulary of 2048 tokens instead of 49,152, the batch of all kinds takes half the time.
It is the real model all the same: the ids of a byte-level BPE are in the order of its merges, so
its first ids with the first merges are a byte-level BPE, and any text is tokens of it, shorter
ones. The model speaks in them, since it has seen each of them in training.
"""

import json
import shutil
from pathlib import Path

from safetensors.torch import load_file, save_file

EMBEDDING = "model.embed_tokens.weight"
"""Of the output, too: the model's ``tie_word_embeddings``."""

WEIGHTS = "model.safetensors"


def with_small_vocabulary(model: Path, folder: Path, size: int = 2048) -> Path:
    """Write a checkpoint whose vocabulary are the first ``size`` tokens of another's.

    It takes a second, and as much room as the model.

    Args:
        model: the checkpoint of a Llama with tied embeddings and a byte-level BPE.
        folder: for the new one; made here.
        size: how many tokens remain; the special tokens and the bytes are the first of all.

    Returns:
        ``folder``.
    """
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

"""A tiny language model whose weights are random: it starts at once, and any model will do."""

from typing import Any

EOS = 2


def tiny_model(seed: int, vocab_size: int = 512, heads: int = 4) -> Any:
    """A Llama of transformers, in float32."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=heads,
        eos_token_id=EOS,
        initializer_range=0.5,  # so that a token's choice is no matter of rounding
    )
    return LlamaForCausalLM(config).eval()

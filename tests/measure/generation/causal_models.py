"""A tiny causal model with a tokenizer, which goes on with any text."""

import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from attnscope.bundled import MODEL


def writer():
    """Random weights, large enough that heads differ; and the bundled model's tokenizer."""
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    torch.manual_seed(0)
    sizes = {
        "hidden_size": 16,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_hidden_layers": 2,
        "intermediate_size": 24,
        "max_position_embeddings": 96,
    }
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), eos_token_id=None, bos_token_id=1, **sizes)).eval()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, 0, 0.3)
    return model, tokenizer

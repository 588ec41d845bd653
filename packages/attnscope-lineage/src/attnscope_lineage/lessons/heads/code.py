# %% it
import torch
from transformers import AutoTokenizer

from attnscope.bundled import MODELS
from attnscope.models.transformer import EncoderForMaskedLM

folder = MODELS["bundled:pronoun"]
tokenizer = AutoTokenizer.from_pretrained(folder)
model = EncoderForMaskedLM.from_pretrained(folder, attn_implementation="eager").eval()
for reason in ("tired", "wide"):
    inputs = tokenizer(f"The animal didn't cross the street because it was too {reason}.", return_tensors="pt")
    tokens = tokenizer.convert_ids_to_tokens(inputs.input_ids[0])
    with torch.no_grad():
        outputs = model(**inputs)
    it = tokens.index("▁it")
    weights = outputs.attentions[1][0, 0, it]  # layer 1, head 0, the row of "it"
    print(reason, tokens[weights.argmax()], tokenizer.decode(outputs.logits[0, it].argmax()))

# %% every
from pathlib import Path

import attnscope_lineage

four = Path(attnscope_lineage.__file__).parent / "lessons" / "heads" / "four"
model = EncoderForMaskedLM.from_pretrained(four, attn_implementation="eager").eval()
with torch.no_grad():
    layers = model(**inputs).attentions
for layer, weights in enumerate(layers):
    for head, row in enumerate(weights[0, :, it]):
        print(f"head {layer}.{head}: it -> {tokens[row.argmax()]} {row.max():.2f}")

# %% concat
width, heads = 64, 4
o = torch.randn(heads, width // heads)  # the output of each head for one word
W_O = torch.randn(width, width)
together = o.flatten() @ W_O
parts = sum(o[h] @ block for h, block in enumerate(W_O.split(width // heads)))
print((together - parts).abs().max())

# %% step
changed = inputs.input_ids.clone()
changed[0, 1] = tokenizer("Because", add_special_tokens=False).input_ids[0]
states = []  # after layer 0
for ids in (inputs.input_ids, changed):
    record = model.encoder.layers[0].register_forward_hook(lambda *call: states.append(call[-1][0]))
    with torch.no_grad():
        model(ids)
    record.remove()
before, after = states
change = (after - before)[0].norm(dim=-1) / before[0].norm(dim=-1)
print(dict(zip(tokens, change.tolist(), strict=True)))  # every word notices in one layer

# %% shapes
from torch import nn
from torch.nn import functional as F


class SelfAttention(nn.Module):
    def __init__(self, embed_dim):
        super().__init__()
        self.embed_dim = embed_dim
        self.W_q = nn.Linear(embed_dim, embed_dim)
        self.W_k = nn.Linear(embed_dim, embed_dim)
        self.W_v = nn.Linear(embed_dim, embed_dim)

    def forward(self, x):
        Q, K, V = self.W_q(x), self.W_k(x), self.W_v(x)
        scores = Q @ K.transpose(-2, -1) / self.embed_dim**0.5
        attn_weights = F.softmax(scores, dim=-1)
        return attn_weights @ V, attn_weights


output, attn = SelfAttention(8)(torch.rand(2, 4, 8))
print(output.shape, attn.shape, attn.sum(-1))

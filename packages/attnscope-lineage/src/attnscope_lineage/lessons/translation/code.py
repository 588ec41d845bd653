# %% bottleneck
import json
from pathlib import Path

import torch

import attnscope_lineage
from attnscope_lineage.models.recurrent import RecurrentForConditionalGeneration

folder = Path(attnscope_lineage.__file__).parent / "lessons" / "translation" / "models"
names = json.loads((folder / "vocabulary.json").read_text(encoding="utf-8"))
START, STOP = 1, 2


def ids_of(sentence):
    return [names.index(word) for word in sentence.split()]


source = "monday may sixteen nineteen ninety three , eight hundred and eighteen , twenty seven"
right = "Montag sechzehn Mai neunzehn drei neunzig , acht hundert achtzehn , sieben zwanzig"
ids = torch.tensor([[*ids_of(source), STOP]])
for kind in ("fixed", "dot"):
    model = RecurrentForConditionalGeneration.from_pretrained(folder / kind).eval()
    written = model.generate(ids, max_new_tokens=30, num_beams=1, do_sample=False)[0, 1:].tolist()
    print(kind, *(names[token] for token in written))

# %% alignment
reads = torch.tensor([[START, *ids_of(right)]])
with torch.no_grad():
    output = model(input_ids=ids, decoder_input_ids=reads)
alpha = output.cross_attentions[0][0, 0]  # (target, source)
for word, row in zip(right.split(), alpha, strict=False):
    print(word, "<-", names[ids[0, row.argmax()]], f"{row.max():.2f}")

# %% context
h = output.encoder_last_hidden_state[0]
c_t = alpha @ h
print(c_t.shape)  # a context for each step

# %% scores
s = torch.tensor([0.9, 0.7])
h_i = torch.tensor([[1.2, 0.4], [-0.6, 1.1], [0.3, -1.3]])
W = torch.tensor([[0.0, 1.5], [-1.5, 0.0]])
W1, W2, v = torch.eye(2), torch.tensor([[1.0, 0.5], [-0.5, 1.0]]), torch.tensor([1.5, -1.0])
for e in (h_i @ s, h_i @ W.T @ s, torch.tanh(W1 @ s + h_i @ W2.T) @ v):
    print(e, e.softmax(0))

# %% output
embedding, readout = model.embedding.weight, model.decoder.readout
y = torch.zeros(32)  # without the last word
s_t = torch.zeros(64)  # and without the state: the context alone
p = torch.softmax(embedding @ torch.tanh(readout(torch.cat([s_t, c_t[0], y]))), dim=-1)
print(names[p.argmax()], p.max())

# %% forcing
labels = torch.tensor([[*ids_of(right), STOP]])
with torch.no_grad():
    print(model(input_ids=ids, labels=labels).loss * labels.shape[1])  # the sum over all steps

# %% gradient
seen = []
hook = model.embedding.register_forward_hook(lambda *call: seen.append(call[-1]))
loss = model(input_ids=ids, labels=labels).loss
hook.remove()
[gradient] = torch.autograd.grad(loss, seen[:1])  # the encoder reads first
sizes = gradient[0].norm(dim=-1)
print(sizes / sizes.sum())  # the share of each source word

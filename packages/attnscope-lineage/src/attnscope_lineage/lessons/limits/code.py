# %% cost
import time

import torch

for n in (512, 1024, 2048):
    q, k, v = (torch.randn(1, 1, n, 64) for _ in range(3))
    start = time.process_time()
    weights = torch.softmax(q @ k.transpose(-2, -1) / 64**0.5, dim=-1)
    output = weights @ v
    print(f"n = {n}: {weights.numel() * 4 / 2**20:.0f} MiB of weights, {1000 * (time.process_time() - start):.1f} ms")
    fused = torch.nn.functional.scaled_dot_product_attention(q, k, v)  # the same output, without the matrix
    print(f"  fused, without the matrix: the same output to {(output - fused).abs().max():.0e}")

# %% forms
from attnscope_lineage.efficient import sliding_window_attention

n, w = 2048, 64
q, k, v = (torch.randn(1, 1, n, 64) for _ in range(3))
near = sliding_window_attention(q, k, v, left=w, right=w)
full = torch.nn.functional.scaled_dot_product_attention(q, k, v)
count = n * (2 * w + 1) - w * (w + 1)
print(f"{count:,} pairs of {n * n:,}; the output differs by {(near - full).norm() / full.norm():.2f}")

# %% same
V = torch.tensor([[1.3, 1.0], [-1.1, 1.2], [-1.4, -0.9], [0.9, -1.3]])
a = torch.tensor([0.5, 0.1, 0.3, 0.1])
constraints = torch.cat([V, torch.ones(4, 1)], dim=1)
free = torch.linalg.svd(constraints.T).Vh[-1]  # weights move along it, the output does not
step = (a / free.abs()).min() * 0.9
print(a, a + step * free, a @ V - (a + step * free) @ V)

# %% pronoun
from attnscope_lineage.lessons.limits.pronoun import read, vocabulary

words = vocabulary()
end = read(["The animal didn't cross the street because it was too tired."])
for name, weights in (("its own", end.weights), ("uniform", torch.full_like(end.weights, 1 / 14))):
    p = end.log_probabilities(weights).exp()[0].detach()
    print(name, [(words[i], round(float(p[i]), 3)) for i in p.topk(3).indices])

# %% debate
from attnscope.explanation.study import study
from attnscope_lineage.weights.tests import permutation_test

moved = permutation_test(study("bundled", limit=2), draws=10, heads=[(0, 3), (2, 1)]).mean("window")
for layer, head in ((0, 3), (2, 1)):
    one = moved.sel(layer=layer, head=head)
    print(f"head {layer}.{head}: permuted weights move predictions by {float(one.tvd):.2f}")

# %% order
import torch

words = ["dog", "bites", "man"]
vectors = torch.tensor([[1.0, 0.0, 0.5, 0.2], [0.3, 0.9, -0.4, 0.6], [0.9, -0.2, -0.8, 0.4]])


def sinusoids(length, width):
    omega = 10000 ** (-torch.arange(0, width, 2) / width)
    angle = torch.arange(length)[:, None] * omega
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1)


def attention(x):
    return torch.softmax(x @ x.T / x.shape[-1] ** 0.5, dim=-1) @ x


backwards = [2, 1, 0]
for strength in (0.0, 1.0):
    positions = strength * sinusoids(3, 4)
    one = attention(vectors + positions)
    other = attention(vectors[backwards] + positions)[backwards]  # rows in the first order
    print(f"strength {strength}: largest difference {(one - other).abs().max():.3f}")

# %% rotation
table = sinusoids(60, 16)
p, k, pair = 3, 2, 1
angle = k * 10000 ** torch.tensor(-2 * pair / 16)
R = torch.stack([torch.stack([angle.cos(), angle.sin()]), torch.stack([-angle.sin(), angle.cos()])])
print(R @ table[p, 2 * pair : 2 * pair + 2], table[p + k, 2 * pair : 2 * pair + 2])
print([round(float(table[p] @ table[p + k]), 3) for p in (0, 3, 30)])  # the same at every p

# %% learned
from attnscope.capture.load import load_model
from attnscope.explanation.tables import position_table

columns = torch.from_numpy(position_table(load_model("bundled").model).rows)
spectrum = torch.fft.rfft(columns, dim=0).abs().mean(1)
print(spectrum[1:].topk(3).indices + 1)  # cycles per 128 positions

# %% offsets
import attnscope

scan = attnscope.scan("bundled", limit=4)
print(scan.profile.mean("window").sel(layer=0, head=3, offset=slice(-3, 3)).round(2).values)

# %% shift
from attnscope.explanation.analyses.shift import cross_correlation
from attnscope.explanation.study import study

prepared = study("bundled", limit=4)
print(cross_correlation(prepared).trace_peak_offset.sel(layer=0, range="near").values)  # of the four heads

# %% angle
from attnscope_yamamoto2023.positions.rotation import phase_map  # of packages/attnscope-yamamoto2023

delta = phase_map(prepared).line_shift.sel(layer=0)
print((-delta).round(2).values)  # the offsets: attention is at minus the shift

# %% tables
rows = columns - columns.mean(0)
share = torch.linalg.svdvals(rows).square()
print((share.cumsum(0) / share.sum())[[3, 11]])  # of the variance, in 4 and in 12 dimensions

# %% training
short, length = 0.9, 128  # of BERT
reach = torch.where(torch.arange(1, 513) <= length, 1.0, 1 - short)
print(reach[[0, 127, 128, 511]])  # share of the texts that reach a position

# %% query
import torch

tokens = ["animal", "street", "crossed", "tired", "it"]
K = torch.tensor([[1.5, 0.6], [0.2, 1.6], [-1.4, 0.9], [-0.9, -1.3], [1.0, -1.2]])
V = torch.tensor([[1.3, 1.3], [-1.2, 1.5], [-1.7, -0.4], [0.1, -1.6], [1.6, -0.6]])
q = torch.tensor([1.2, 0.9])

scores = K @ q / K.shape[-1] ** 0.5
weights = torch.softmax(scores, dim=-1)
output = weights @ V
for token, weight in zip(tokens, weights.tolist(), strict=True):
    print(f"{token:8} {weight:.3f}")
print("output", output.tolist())

# %% scaling
for d_k in (1, 4, 16, 64, 256):
    q, K = torch.randn(2000, 1, d_k), torch.randn(2000, 8, d_k)
    products = q @ K.mT
    variances = products.var().item(), (products / d_k**0.5).var().item()
    largest = [torch.softmax(s, -1).amax(-1).mean().item() for s in (products, products / d_k**0.5)]
    print(f"d_k={d_k:3}", "variance {:7.2f} {:.2f}".format(*variances), "largest weight {:.2f} {:.2f}".format(*largest))

# %% mask
S = torch.tensor(
    [
        [0.9, 0.4, -0.3, 0.2, 1.1],
        [0.3, 1.2, 0.1, 1.9, 0.8],
        [-0.2, 1.6, 0.5, 0.4, 1.4],
        [0.1, 2.1, 0.6, 0.7, 0.9],
        [0.5, 0.2, 0.4, 0.6, 1.8],
    ]
)
M = torch.zeros(5, 5).masked_fill(torch.ones(5, 5).triu(1).bool(), -torch.inf)
A = torch.softmax(S + M, dim=-1)
print(A)
print("rows add up to", A.sum(-1).tolist())

# %% compare
features = {"animal": [1.8, 0, 0], "street": [0, 1.8, 0], "cross": [0.5, 0.5, 0], "it": [0.4, 0.4, 0.3]}
features |= {"tired": [1.7, 0.1, 0], "wide": [0.1, 1.7, 0]}
for last in ("tired", "wide"):
    words = [*["the", "animal", "did", "not", "cross", "the", "street", "because", "it", "was"], last]
    X = torch.tensor([features.get(word, [0, 0, 1]) for word in words]) * 1.4
    weights = torch.softmax(X[-1] @ X.T / 3**0.5, dim=-1)
    print(last, {word: round(weights[words.index(word)].item(), 3) for word in ("animal", "street")})

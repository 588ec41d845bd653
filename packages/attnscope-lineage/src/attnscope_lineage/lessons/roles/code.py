# %% dictionary
import torch

entries = ["cat", "lion", "dog", "car", "bus"]
headwords = torch.tensor([[1, 1, 0], [1, 0.9, 0.1], [1.4, 0, 0], [0, 0, 1], [0, 0.1, 1.1]])
contents = torch.tensor([[1, 0, 0], [0.3, 1, 0], [0, 0.3, 0], [0, 0.4, 1], [0, 1, 1]])
tiger = torch.tensor([1, 1, 0.1])
weights = torch.softmax(5 * headwords @ tiger, dim=-1)
print({entry: round(weight, 3) for entry, weight in zip(entries, weights.tolist(), strict=True)})
print("content", (weights @ contents).tolist())

# %% maps
X = torch.tensor([[1, 0, 0.5, 0], [0, 1, 0.5, 0], [0.5, 0, 0, 1], [0.5, 0.5, 1, 0]])
W_Q = torch.tensor([[0, 1.0], [1, 0], [2, 0.5], [0, 1]])
W_K = torch.tensor([[2, 0.0], [-1, 0.5], [0, 0], [0.5, 1]])
W_V = torch.tensor([[1, 0, 0.0], [0, 1, 0], [0, 0, 0.5], [0, 0, 1]])
Q, K, V = X @ W_Q, X @ W_K, X @ W_V
print("Q", tuple(Q.shape), "K", tuple(K.shape), "V", tuple(V.shape))

# %% spaces
P = torch.tensor([[1.5, 0.2], [-0.7, 1.3], [-1.2, -0.8], [0.6, -1.4]])
print("without maps", torch.softmax(P @ P.T / 2**0.5, dim=-1).argmax(-1).tolist())
turn = torch.tensor([[0, 1.0], [-1, 0]])
print("keys turned ", torch.softmax(P @ (P @ turn).T / 2**0.5, dim=-1).argmax(-1).tolist())

# %% swap
A = torch.softmax(Q @ K.T / K.shape[-1] ** 0.5, dim=-1)
other = [1, 0, 2, 3]  # animal and street exchanged
A_keys = torch.softmax(Q @ K[other].T / K.shape[-1] ** 0.5, dim=-1)
print("values exchanged: weights", A[3].tolist(), "output", (A @ V[other])[3].tolist())
print("keys exchanged:   weights", A_keys[3].tolist(), "output", (A_keys @ V)[3].tolist())

# %% summary
S = Q @ K.T / K.shape[-1] ** 0.5
A = torch.softmax(S, dim=-1)
print(A @ V)

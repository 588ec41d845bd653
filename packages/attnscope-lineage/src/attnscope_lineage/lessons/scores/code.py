# %% query
import torch

tokens = ["animal", "street", "crossed", "tired", "it"]
K = torch.tensor([[1.5, 0.6], [0.2, 1.6], [-1.4, 0.9], [-0.9, -1.3], [1.0, -1.2]])
V = torch.tensor([[1.3, 1.3], [-1.2, 1.5], [-1.7, -0.4], [0.1, -1.6], [1.6, -0.6]])
q = torch.tensor([1.2, 0.9])

scores = K @ q / K.shape[-1] ** 0.5  # a score for each key
weights = torch.softmax(scores, dim=-1)
output = weights @ V
print(dict(zip(tokens, weights.tolist(), strict=True)), output)

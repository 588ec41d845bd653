"""Times of tokens from weights over frames: Whisper's median filter and dynamic time warping, many heads at once."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

WIDTH = 7  # frames of Whisper's median filter


def filtered(weights: Tensor) -> Tensor:
    """Weights ``(..., token, frame)``, standardised over the tokens and median-filtered over the frames.

    So Whisper prepares the weights of its alignment heads; the mean over heads goes to `first_frames`.
    """
    deviation, mean = torch.std_mean(weights, dim=-2, keepdim=True, unbiased=False)
    rows = (weights - mean) / deviation.clamp_min(torch.finfo(weights.dtype).tiny)
    side = WIDTH // 2
    if rows.shape[-1] <= side:
        return rows
    lead = rows.shape[:-1]
    padded = torch.nn.functional.pad(rows.reshape(1, -1, rows.shape[-1]), (side, side), mode="reflect")
    return padded.unfold(-1, WIDTH, 1).median(-1).values.reshape(*lead, -1)


def first_frames(maps: np.ndarray) -> np.ndarray:
    r"""The frame at which each token begins, ``(map, token)``, on the path of the largest sum through each map.

    Parameters
    ----------
    maps
        ``(map, token, frame)``: the larger, the more a token belongs to a frame.

    Returns
    -------
    ndarray
        As dynamic time warping finds it (Sakoe and Chiba 1978): a path from the first token and frame to the last
        ones, by steps of one token, one frame or both. The costs of a token are computed for all frames at once: with
        the sums :math:`S_j` of its costs, :math:`c_j = S_j + \min_{i \le j} (m_i - S_{i-1})`, where :math:`m` is the
        smaller cost of the token before, at this frame or the one before.

    Examples
    --------
    >>> import numpy as np
    >>> first_frames(np.repeat(2 * np.eye(3) - 1, 2, axis=1)[None]).tolist()
    [[0, 2, 4]]
    """
    count, tokens, frames = maps.shape
    costs = -maps.astype(np.float64)
    before = np.full((count, frames + 1), np.inf)  # of the token before, from a frame before the first
    before[:, 0] = 0.0
    arrivals = np.empty((tokens, count, frames), np.int32)  # the last frame at which the path came from another token
    diagonal = np.empty((tokens, count, frames), bool)
    every = np.arange(frames, dtype=np.int32)
    for token in range(tokens):
        sums = costs[:, token].cumsum(-1)
        least = np.minimum(before[:, :-1], before[:, 1:])
        reached = np.minimum.accumulate(least - (sums - costs[:, token]), axis=-1) + sums
        along = np.concatenate([np.full((count, 1), np.inf), reached[:, :-1]], -1)
        diagonal[token] = before[:, :-1] < before[:, 1:]
        comes = least < along
        arrivals[token] = np.maximum.accumulate(np.where(comes, every, 0), axis=-1)
        before = np.concatenate([np.full((count, 1), np.inf), reached], -1)
    begins = np.empty((count, tokens), np.int64)
    each, frame = np.arange(count), np.full(count, frames - 1)
    for token in reversed(range(tokens)):
        begins[:, token] = arrivals[token, each, frame]
        frame = begins[:, token] - diagonal[token, each, begins[:, token]]
    return begins

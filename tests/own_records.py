"""Statistics, roles and others of a caller's own, as a module that registers them has them."""

import torch

import attnscope
from attnscope.measure.quantities import RowMeasure, top

LARGEST = RowMeasure(lambda weights: weights.amax(-1), join=torch.maximum)


@attnscope.statistic(needs=["entropy"], units="nats")
def own_entropy(rows):
    """Entropy of a row, ours.

    0: each query attends to one token.
    """
    return rows.mean_of("entropy")


@attnscope.statistic(needs=["largest"], null=False, units="share")
def own_max_weight(rows):
    return rows.mean(rows.measures.largest)


@attnscope.statistic(needs=["received"], units="share")
def own_top_key(rows):
    return top(rows.summed("received"), 1)


@attnscope.statistic(needs=["columns"], units="share")
def own_first_token(rows):
    return rows.first_token


@attnscope.statistic(needs=["largest_key"], null=lambda rows: rows.count * 0 + 0.5)
def own_largest_first(rows):
    return rows.largest_first


@attnscope.statistic(needs=["weights"])
def own_weights(rows):
    return rows.mean(rows.of_weights(lambda weights, _: weights.amax(-1)))


@attnscope.statistic(needs=["weights"])
def own_distance(rows):
    def distance(weights, queries):
        keys = torch.arange(weights.shape[-1])
        return (weights * (keys - queries[:, None])).sum(-1)

    return rows.mean(rows.of_weights(distance))


@attnscope.statistic(needs=[LARGEST])
def own_tiles(rows):
    return rows.mean_of(LARGEST)


@attnscope.statistic(needs=["largest", "largest_key", "offsets", "variance", "collision"])
def own_sum(rows):
    measures = rows.measures
    return rows.mean(measures.largest + measures.collision + measures.mean_offset + measures.offset_variance)

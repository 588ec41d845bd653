"""Whether a head matters: what a model's predictions lose without it, and whether its weights say so.

`intervene` takes heads out one at a time, `patch` puts activations of one text into another's run
(`activation_patch`, `path_patch` and `attribution_patch` of some pairs, without a run folder).
`contribution_profiles` lays every kind of weight along offsets, `token_contributions` scores the tokens of one text,
and the tests put other weights in the place of a head's own. On arrays: `attnscope.faithfulness.arrays`.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

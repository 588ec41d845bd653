"""What was published of position waves, and how the published models are recognised.

Sources: ``S`` is Yamamoto and Matsuzaki (NLP2023), ``E`` their paper of EMNLP 2023, ``K21`` Kobayashi et al. (EMNLP
2021), table 2. All but rows 20 and 21 are about roberta-base. Papers count layers and heads from 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedModel

ROBERTA, GPT2 = "roberta-base", "gpt2"


@dataclass(frozen=True)
class Published:
    """A row of the table: what was published, where, of which model, and what we take for agreement."""

    quantity: str
    value: str
    source: str
    tolerance: str = ""
    model: str = ROBERTA
    not_run: str = ""


@dataclass(frozen=True)
class Shape:
    """How a published model is recognised: its names on the hub, classes, and sizes in its config."""

    hub: tuple[str, ...]
    classes: tuple[str, ...]
    sizes: Mapping[str, int]


SHAPES = {
    ROBERTA: Shape(
        ("roberta-base", "FacebookAI/roberta-base"),
        ("RobertaForMaskedLM",),
        {
            "num_hidden_layers": 12,
            "num_attention_heads": 12,
            "hidden_size": 768,
            "max_position_embeddings": 514,
            "vocab_size": 50265,
        },
    ),
    GPT2: Shape(
        ("gpt2", "openai-community/gpt2"),
        ("GPT2LMHeadModel", "GPT2Model"),
        {
            "num_hidden_layers": 12,
            "num_attention_heads": 12,
            "hidden_size": 768,
            "max_position_embeddings": 1024,
            "vocab_size": 50257,
        },
    ),
}

PUBLISHED: dict[int, Published] = {
    1: Published("variance of the position table in 4 dimensions", "50.51%", "S app. B, E 4.1.2", "0.01 points"),
    2: Published("the same in 12 dimensions", "92.23%", "S, E", "0.01 points"),
    3: Published("dimensions that positions take", "about 15", "E 4.1"),
    4: Published("peak of the table's spectrum", "near f=50", "S 3.3", "in 40..60, 3 x noise"),
    5: Published("periods of the table's waves", "about 8 tokens or more", "E 4.3", "10% at shorter periods"),
    6: Published("spectrum of words", "no peak", "S, E", "no column passes Fisher's g at 0.001"),
    7: Published("profiles clustered", "14,400, k=6, 21 offsets", "S 3.1, E 3"),
    8: Published("heads with one or two labels over the texts", "all", "E 3 (S: most)", "90% of heads"),
    9: Published("head(8,9)", "t=-1, sharp", "S 3.1, 3.5; E", "largest weight at -1, and 0.3 or more"),
    10: Published("head(2,3)", "t=+1", "S 3.4", "largest weight at +1"),
    11: Published("head(1,1)", "left; scores at t=-2", "S 3.4, 3.5", "scores at -3..-1"),
    12: Published("head(7,5)", "right, softly (inferred)", "S 3.1", "D above 0.2, as of rightward heads"),
    13: Published("head(1,1), columns 5 and 6", "t=-2, -3", "E 4.3", "both at -2 or -3"),
    14: Published("head(1,1), lobes that cancel", "near t=±30", "S 3.5"),
    15: Published("periodic columns of a positional head", "4 to 12", "S 3.3, app. B", "median in 4..12"),
    16: Published(
        "spectra of Q and K near f=50", "a peak, none in X, less in deeper layers", "S 3.3, E 4.2.2",
        "Q, K over noise and X in layer 1; last layer lower",
    ),
    17: Published("where position is lost", "layers 3 and 4 (cited)", "E 4.2.2"),
    18: Published(
        "components that X shares with positions", "5 to 20, fewer in deeper layers", "E 4.1.2",
        "5..20 correlations over 0.5",
    ),
    19: Published("tokens behind row 18", "200 x 512", "E"),
    20: Published("GPT-2: waves of its table", "f<10, periods over 51.2", "E app. C", "90% of the energy", model=GPT2),
    21: Published("GPT-2: profiles of scores clustered", "k=2, t=-30..30", "E app. C", model=GPT2),
    22: Published("positions learned anew", "8,645 samples, 3 unknown tokens", "E app. E"),
    23: Published(
        "words for a mask after that", "article, adventure, exercise, essay, experiment", "E table 1",
        not_run="needs roberta-base with positions learned anew, and the paper's sentence",
    ),
    24: Published("BERT's training steps at 128 tokens", "90%", "S, E"),
    25: Published(
        "RoBERTa's mixing ratio: weights, norms, half residual, residual, LayerNorm",
        "95.8, 84.4, 47.9, 19.6, 16.2%", "K21", "2 points",
        not_run="norms of what is mixed: not a part of explain",
    ),
    26: Published(
        "BERT's mixing ratio", "97.1, 85.2, 48.6, 22.3, 18.8%", "K21", "2 points",
        not_run="norms of what is mixed: not a part of explain",
    ),
}  # fmt: skip


#: How many untrained models of the published shape meet a row (benchmarks/paper_chance.py --models 3 --texts 3).
BY_CHANCE = dict.fromkeys((1, 2, 4, 5, 8, 9, 11, 12, 13, 16, 18, 20), "0 of 3") | {6: "3 of 3", 10: "1 of 3"}


def is_shaped_like(model: PreTrainedModel, name: str) -> bool:
    """Whether a model has the class and sizes of a published one, ``"roberta-base"`` or ``"gpt2"``.

    Examples
    --------
    >>> from transformers import GPT2Config, GPT2LMHeadModel
    >>> is_shaped_like(GPT2LMHeadModel(GPT2Config(n_embd=8, n_head=2, n_layer=1)), "gpt2")
    False
    """
    sizes = SHAPES[name].sizes.items()
    return type(model).__name__ in SHAPES[name].classes and all(
        getattr(model.config, size, None) == wanted for size, wanted in sizes
    )


def published_name(hub_name: str, identity: Mapping[str, str]) -> str | None:
    """Which published model this is, if the hub says so: a folder may hold any weights of the shape.

    Parameters
    ----------
    hub_name, identity
        As `attnscope.capture.LoadedModel` has them.

    Examples
    --------
    >>> published_name("openai-community/gpt2", {"revision": "607a30d"})
    'gpt2'
    >>> published_name("gpt2", {"sha256": "fdbd04ef"}) is None
    True
    """
    if "revision" not in identity:
        return None
    return next((name for name, shape in SHAPES.items() if hub_name in shape.hub), None)

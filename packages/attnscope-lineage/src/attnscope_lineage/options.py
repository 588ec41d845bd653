"""The options that the verbs of the lineage share, each declared once."""

from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from attnscope.options import MODEL, Count, SharedRunOptions, TextModelOptions, Typed, of_class, path_of

if TYPE_CHECKING:
    from torch import Tensor

    from attnscope_lineage.config import TrainConfig as TrainConfig
    from attnscope_lineage.links import Gold as Gold
    from attnscope_lineage.parallel_text import Lines as Lines

    AnyTensor: TypeAlias = Tensor
else:
    TrainConfig, Gold, AnyTensor = map(of_class, ("TrainConfig", "Gold", "Tensor"))
    Lines = Annotated[Any, Typed(path_of, "PATH")]

THREADS = 512  # far more crash the process
BEAMS = 1_000  # far more do not fit into memory
BleuTokenizer: TypeAlias = Literal["13a", "intl", "zh", "ja-mecab", "char", "none", "moses"]


class TranslationOptions(TextModelOptions, total=False):
    """How a translation model is loaded, and into which language it translates."""

    target_language: Annotated[
        str | None,
        MODEL,
        Typed(metavar="CODE"),
        "Translate into this language, by the code of a tokenizer of many languages, such as fra_Latn. By default "
        "the model's. That is the tokenizer's ``tgt_lang``, or the model's ``forced_bos_token_id``.",
    ]
    average: Annotated[
        Count | None,
        MODEL,
        "Use the mean of the weights of this many last checkpoints of a training. By default the model that the "
        "training left. A single checkpoint is named by its folder, FOLDER/checkpoints/00001000.",
    ]


class AlignmentReading(TranslationOptions, SharedRunOptions, total=False):
    """A translation model, where results go, and which processes measure them."""

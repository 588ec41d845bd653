"""What a training is made of: every setting, checked before anything is done."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from attnscope.support.checks import SEEDS, THREADS, shortly
from attnscope.support.errors import AttnscopeError, reason_of

SETTINGS = "config.yaml"  # in the folder of a training
WIDEST = 65_536


class TrainConfig(BaseModel):
    """Settings of `attnscope train`; each is a key of the YAML file and a flag."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    # data
    source: Path | None = Field(
        None, description="Source text: a file, a folder, or one file or folder of both sides (JSON Lines, folder)."
    )
    target: Path | None = Field(None, description="Target text, line by line with the source.")
    valid_source: Path | None = Field(
        None, description="Source text for validation, or one file or folder of both sides."
    )
    valid_target: Path | None = Field(None, description="Target text for validation.")
    text: Path | None = Field(None, description="Plain text, for a masked language model.")
    valid_text: Path | None = Field(None, description="Plain text for validation of a masked language model.")
    sides: str = Field(
        "source,target", description="Names of the two sides (fields or suffixes) where one file or folder has both."
    )
    join: int = Field(
        1,
        ge=1,
        le=1_000,
        description="Largest number of neighbouring pairs joined into one, at random, for longer sentences.",
    )
    task_pairs: int = Field(
        20_000, ge=100, le=10_000_000, description="Pairs of the generated task, where no data is given."
    )
    task_longest: int = Field(40, ge=1, le=10_000, description="Words in the longest sentence of the generated task.")
    vocabulary: int = Field(
        8_000, ge=300, le=1_000_000, description="Vocabulary size: joint subwords of source and target."
    )
    lowercase: bool = Field(False, description="Lower-casing of all text.")
    longest: int = Field(
        128, ge=2, le=1_000_000, description="Longest sentence in tokens; longer pairs are left out and counted."
    )

    # model
    model: Literal["transformer", "recurrent", "masked-lm"] = Field("transformer", description="Kind of model.")
    attention: Literal["none", "dot", "scaled_dot", "bilinear", "additive"] = Field(
        "additive", description="Attention of a recurrent model; none is the encoder-decoder with one fixed vector."
    )
    cell: Literal["gru", "lstm"] = Field("gru", description="Cell of a recurrent model.")
    embedding_width: int = Field(256, ge=1, le=WIDEST, description="Width of the embeddings of a recurrent model.")
    encoder_width: int = Field(256, ge=1, le=WIDEST, description="Width of one direction of a recurrent encoder.")
    decoder_width: int = Field(512, ge=1, le=WIDEST, description="Width of a recurrent decoder.")
    width: int = Field(128, ge=1, le=WIDEST, description="Model width of a Transformer.")
    heads: int = Field(4, ge=1, le=1_024, description="Heads of each attention layer of a Transformer.")
    feed_forward: int = Field(
        256, ge=1, le=4 * WIDEST, description="Hidden width of a Transformer's feed-forward part."
    )
    layers: int = Field(4, ge=1, le=1_000, description="Layers of a Transformer's encoder, and of its decoder.")
    positions: Literal["sinusoidal", "learned", "rope", "alibi", "t5", "none"] = Field(
        "sinusoidal", description="Position scheme of a Transformer."
    )
    norm: Literal["pre", "post"] = Field(
        "pre", description="Place of LayerNorm in a Transformer: pre (before sublayers) or post (after the sum)."
    )
    dropout: float = Field(0.1, ge=0, lt=1, description="Dropout rate of embeddings and sublayers.")

    # training
    batch_tokens: int = Field(
        2_048,
        ge=1,
        description="Tokens of one update, at most, over all processes; each pair counts by its longer side.",
    )
    accumulate: int = Field(1, ge=1, description="Parts that an update is computed in, to save memory.")
    updates: int = Field(5_000, ge=1, description="Number of updates, at most.")
    learning_rate: float = Field(2e-3, gt=0, description="Learning rate at its peak.")
    schedule: Literal["inverse_sqrt", "noam", "cosine", "constant"] = Field(
        "inverse_sqrt", description="Schedule of the learning rate after the warm-up."
    )
    warmup: int = Field(500, ge=0, description="Updates until the learning rate peaks.")
    cooldown: int = Field(
        0, ge=0, description="Updates at the end over which the learning rate also falls linearly to 0."
    )
    optimizer: Literal["adamw", "muon"] = Field(
        "adamw",
        description="Optimizer; muon takes orthogonalised steps for the matrices of the layers, as large as AdamW's, "
        "and AdamW's for all else.",
    )
    weight_decay: float = Field(0.0, ge=0, description="Weight decay, on matrices and embedding tables.")
    adam_beta2: float = Field(0.98, gt=0, lt=1, description="Second decay rate of Adam (beta 2).")
    clip: float = Field(1.0, gt=0, description="Largest norm of the gradient; larger ones are clipped.")
    label_smoothing: float = Field(
        0.1, ge=0, lt=1, description="Share of the target distribution that is spread over all words."
    )
    r_drop: float = Field(
        0.0,
        ge=0,
        description="Weight of R-Drop: each batch passes twice, and the divergence between both predictions is part of "
        "the loss (Liang et al. 2021; 5 in their translations); an update then takes twice the work. The training loss "
        "in the log has it, the loss in validation does not.",
    )
    mask_share: float = Field(
        0.15, gt=0, lt=1, description="Share of tokens that are masked, for a masked language model."
    )
    bpe_dropout: float = Field(
        0.0,
        ge=0,
        le=1,
        description="Share of merges left out at random when text for training is cut into subwords, anew in each "
        "update (Provilkov et al. 2020); lengths count without.",
    )
    precision: Literal["auto", "float32", "bfloat16"] = Field(
        "auto", description="Precision of training; auto is bfloat16 where the processor multiplies it natively."
    )
    threads: int | None = Field(
        None,
        ge=1,
        le=THREADS,
        description="Threads of each process. [default: the processors that this process may use]",
    )
    device: str | None = Field(None, description="Device: cpu, cuda, ... [default: cuda if there is one]")
    seed: int = Field(0, ge=0, lt=SEEDS, description="Seed of the random number generator.")

    # looking, keeping, stopping
    log_every: int = Field(50, ge=1, description="Updates between two lines of the log.")
    validate_every: int = Field(500, ge=1, description="Updates between validations, each with a checkpoint.")
    metric: Literal["bleu", "loss"] = Field(
        "bleu", description="Metric of early stopping and of the best checkpoint (see average)."
    )
    bleu_tokenizer: Literal["13a", "intl", "zh", "ja-mecab", "char", "none"] = Field(
        "13a", description="Tokenizer of BLEU in validation."
    )
    patience: int | None = Field(None, ge=1, description="Validations without a better metric before training stops.")
    average: int = Field(
        5,
        ge=1,
        description="Number of last checkpoints that are averaged; the best one is kept where its loss is lower.",
    )
    keep: int = Field(
        3, ge=1, description="Number of last checkpoints that stay on the disk, if more than are averaged."
    )
    tensorboard: bool = Field(False, description="Files for TensorBoard beside the log.")

    def settings(self) -> dict[str, Any]:
        """Those that its kind of model has."""
        return {
            name: value
            for name, value in self.model_dump().items()
            if self.model in _OF_MODELS.get(name, (self.model,))
        }

    @model_validator(mode="after")
    def _something_to_agree_on(self) -> TrainConfig:
        if self.r_drop and not self.dropout:
            raise ValueError(
                f"r_drop is {self.r_drop:g} and dropout 0, so that both passes are the same: give dropout, or leave "
                "r_drop out"
            )
        return self

    @model_validator(mode="after")
    def _pairs_of_files(self) -> TrainConfig:
        for whole, part in _NEEDS.items():
            if getattr(self, whole) is not None and getattr(self, part) is None:
                raise ValueError(f"found {whole} without {part}: give both")
        return self


_NEEDS = {"target": "source", "valid_target": "valid_source", "valid_source": "source", "valid_text": "text"}
_TRANSFORMERS = ("transformer", "masked-lm")
_TRANSLATORS = ("transformer", "recurrent")
MODEL_SETTINGS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("attention", "cell", "embedding_width", "encoder_width", "decoder_width"), ("recurrent",)),
    **dict.fromkeys(("width", "heads", "feed_forward", "layers", "positions", "norm"), _TRANSFORMERS),
}
_OF_MODELS: dict[str, tuple[str, ...]] = {
    **MODEL_SETTINGS,
    **dict.fromkeys(("text", "valid_text", "mask_share"), ("masked-lm",)),
    **dict.fromkeys(("source", "target", "valid_source", "valid_target", "join", "bpe_dropout"), _TRANSLATORS),
}


def read_config(path: Path | None = None, **overrides: Any) -> TrainConfig:
    """Settings from a YAML file, with some of them replaced.

    Parameters
    ----------
    path
        YAML: one mapping; without it the defaults count.
    **overrides
        Values that take the place of the file's; None leaves the file's.

    Raises
    ------
    AttnscopeError
        For a missing or broken file, a key that does not exist, a value of the wrong kind or out of range.

    Examples
    --------
    >>> read_config(updates=10).updates
    10
    >>> read_config(lable_smoothing=0.2)
    Traceback (most recent call last):
    ...
    attnscope.AttnscopeError: there is no setting 'lable_smoothing': did you mean 'label_smoothing'?
    """
    values = {} if path is None else _from_yaml(path)
    values |= {name: value for name, value in overrides.items() if value is not None}
    unknown = [str(name) for name in values if name not in TrainConfig.model_fields]
    if unknown:
        nearest = difflib.get_close_matches(unknown[0], TrainConfig.model_fields, n=1, cutoff=0.5)
        hint = f"did you mean {nearest[0]!r}?" if nearest else f"choose from {', '.join(TrainConfig.model_fields)}"
        raise AttnscopeError(f"there is no setting {unknown[0]!r}: {hint}")
    try:
        config = TrainConfig(**values)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        place = f"{where} is {shortly(first['input'])}: " if where else ""
        raise AttnscopeError(f"{place}{first['msg'].removeprefix('Value error, ')}") from None
    if {*values, *overrides} != {*TrainConfig.model_fields}:  # all of them are of another configuration
        reject_other_settings(values, config.model)
    _reject_other_text(config)
    return config


def _reject_other_text(config: TrainConfig) -> None:
    """Refuse settings of the generated task beside a text: they would change nothing."""
    given = "source" if config.source else "text" if config.text else ""
    for name in ("task_pairs", "task_longest"):
        if given and getattr(config, name) != TrainConfig.model_fields[name].default:
            raise AttnscopeError(
                f"{name} is of the generated task, and {given} is given in its place: leave out one of them"
            )


def reject_other_settings(given: Iterable[str], model: str) -> None:
    """Refuse settings that the kind of model does not have: they would change nothing."""
    for name in given:
        owners = _OF_MODELS.get(name, (model,))
        if model not in owners:
            raise AttnscopeError(
                f"{name!r} is a setting of model {' and '.join(map(repr, owners))}, and the model is {model!r}: leave "
                f"it out, or choose model {owners[0]}"
            )


class _Plain(yaml.SafeLoader):
    """YAML without aliases, by which a few lines can stand for billions."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("it holds an alias (*name): write the value out")
        return super().compose_node(parent, index)


def _from_yaml(path: Path) -> dict[str, Any]:
    from attnscope.read.files import decode_utf8, read_bytes, shown  # heavy: --help needs none of it

    text = decode_utf8(read_bytes(path), shown(path))
    try:
        values: Any = yaml.load(text, _Plain)  # noqa: S506 it is a SafeLoader
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise AttnscopeError(f"{shown(path)} is not YAML: {reason_of(error)}") from None
    if values is None:
        raise AttnscopeError(
            f"{shown(path)} holds no setting; expected one 'name: value' a line, or {{}} for what is usual"
        )
    if not isinstance(values, dict):
        raise AttnscopeError(
            f"{shown(path)} holds a {type(values).__name__}; expected settings, one 'name: value' a line"
        )
    return {str(name): value for name, value in values.items()}  # pyright: ignore[reportUnknownVariableType]


def config_bytes(config: TrainConfig) -> bytes:
    """Settings as YAML, which `read_config` reads."""
    values = {name: str(value) if isinstance(value, Path) else value for name, value in config.settings().items()}
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True).encode()


# Every word is one token. Up to four sentences in one have up to 67 words, more than a vector of 128 numbers was found
# to hold, and there are enough short ones to begin with.
_TASK: dict[str, Any] = {
    "task_longest": 16,
    "task_pairs": 50_000,
    "join": 4,
    "vocabulary": 400,
    "batch_tokens": 1024,
    "validate_every": 300,
    "learning_rate": 4e-3,
    "schedule": "cosine",
    "warmup": 100,
    "dropout": 0.0,
    "label_smoothing": 0.0,
    "average": 3,
    "threads": 1,  # steps this small are not worth sharing,
    "precision": "float32",  # nor their matrices casting to bfloat16 and back
}
_RECURRENT: dict[str, Any] = {
    **_TASK,
    "model": "recurrent",
    "embedding_width": 64,
    "encoder_width": 64,
    "decoder_width": 128,
}
# Without dropout attention looks at neighbours, whose states know the word too.
_ALIGNING: dict[str, Any] = {**_RECURRENT, "dropout": 0.2}
_TRANSFORMER: dict[str, Any] = {
    **_TASK,
    "model": "transformer",
    "width": 96,
    "feed_forward": 192,
    "layers": 2,
    "learning_rate": 3e-3,
    "positions": "rope",  # sinusoidal ones fell behind on the longest sentences
}

PRESETS: dict[str, TrainConfig] = {
    "fixed vector": read_config(**_RECURRENT, attention="none", updates=2400),  # twice: it learns slowly
    "additive": read_config(**_ALIGNING, attention="additive", updates=1100),
    "Transformer": read_config(**_TRANSFORMER, updates=1500),
}


def shown_default(name: str, usual: str) -> str:
    """A setting's default in words, and what the generated task takes in its place."""
    default = TrainConfig.model_fields[name].default
    of = {system: getattr(config, name) for system, config in PRESETS.items() if name in config.settings()}
    if name == "attention" or all(value == default for value in of.values()):
        return usual
    first, *_ = (of[system] for system in ("additive", "Transformer") if system in of)
    others = {"attention none": of.get("fixed vector", first), "transformer": of.get("Transformer", first)}
    others_shown = ", ".join(f"{model}: {value}" for model, value in others.items() if value != first)
    return f"{usual}; without data and config {first}" + (
        f" ({others_shown})" if others_shown and name != "model" else ""
    )


def preset(model: str | None = None, attention: str | None = None) -> TrainConfig:
    """The one for a kind of model; other attention than none is trained as additive attention is."""
    if model in {None, "recurrent"}:
        return PRESETS["fixed vector" if attention == "none" else "additive"]
    return PRESETS["Transformer"]


def describe_preset(config: TrainConfig) -> str:
    """The model of the generated task in words, with what differs from its usual settings."""
    differ = ", ".join(
        f"{name} {value}"
        for name, value in config.settings().items()
        if name in MODEL_SETTINGS and value != TrainConfig.model_fields[name].default
    )
    return f"no data: a generated task, and a small {config.model}" + (f" ({differ})" if differ else "")


def settings_for(config: TrainConfig | Path | str | None, **settings: object) -> TrainConfig:
    """What a training is asked for: a file or settings, else the preset of the model, with some of them replaced."""
    given: dict[str, Any] = {name: value for name, value in settings.items() if value is not None}
    if config is None and not {"source", "text"} & given.keys():
        config = preset(given.get("model"), given.get("attention"))
    if not isinstance(config, TrainConfig):
        return read_config(None if config is None else Path(config), **given)
    asked = read_config(**{**config.model_dump(), **given})
    reject_other_settings(given, asked.model)
    return asked

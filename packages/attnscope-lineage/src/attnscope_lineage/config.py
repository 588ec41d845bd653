"""The settings of a training, checked before it starts."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, get_args

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from attnscope.options import SEEDS
from attnscope.support.checks import shortly
from attnscope.support.errors import AttnscopeError, nearest, reason_of
from attnscope_lineage.options import THREADS

SETTINGS = "config.yaml"  # in the folder of a training
WIDEST = 65_536


def setting(default: Any, description: str, **bounds: Any) -> Any:
    return Field(default, description=description, **bounds)


class TrainConfig(BaseModel):
    """Settings of `attnscope train`; each is a key of the YAML file and a flag."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    # data
    source: Path | None = setting(None, "Source text: a file, or JSON Lines of both sides.")
    target: Path | None = setting(
        None,
        "Target text, line by line with the source. For a masked language model, the source with other words at some "
        "positions, which it learns to restore.",
    )
    valid_source: Path | None = setting(None, "Source text for validation, or JSON Lines of both sides.")
    valid_target: Path | None = setting(None, "Target text for validation.")
    text: Path | None = setting(None, "Plain text, for a masked language model.")
    valid_text: Path | None = setting(None, "Plain text for validation of a masked language model.")
    sides: str = setting("source,target", "Names of the fields of both sides in JSON Lines.")
    join: int = setting(
        1, "Largest number of neighbouring pairs joined at random into longer sentences.", ge=1, le=1_000
    )
    task_pairs: int = setting(20_000, "Pairs of the generated task, if no data is given.", ge=100, le=10_000_000)
    task_longest: int = setting(40, "Words in the longest sentence of the generated task.", ge=1, le=10_000)
    tokens: Literal["subwords", "words"] = setting(
        "subwords", "Tokens that are learned from the text: subwords (BPE), or words between spaces and punctuation."
    )
    vocabulary: int = setting(
        8_000, "Largest vocabulary: joint tokens of source and target; rarer words are <unk>.", ge=300, le=1_000_000
    )
    tokenizer: Path | None = setting(
        None, "Tokenizer to use instead: a SentencePiece model, a file of tokenizers (.json), or a folder."
    )
    lowercase: bool = setting(False, "Lower-casing of all text.")
    longest: int = setting(128, "Longest sentence in tokens; longer pairs are dropped and counted.", ge=2, le=1_000_000)

    # model
    model: Literal["transformer", "recurrent", "masked-lm"] = setting("transformer", "Type of model.")
    init: Path | None = setting(
        None,
        "Weights to begin with, of the same sizes: the folder of a training, or one of its checkpoints. Its tokenizer "
        "is used too, if there is none.",
    )
    attention: Literal["none", "dot", "scaled_dot", "bilinear", "additive"] = setting(
        "additive", "Attention of a recurrent model; none: encoder-decoder with one fixed vector."
    )
    cell: Literal["gru", "lstm"] = setting("gru", "Cell of a recurrent model.")
    embedding_width: int = setting(256, "Width of the embeddings of a recurrent model.", ge=1, le=WIDEST)
    encoder_width: int = setting(256, "Width of one direction of a recurrent encoder.", ge=1, le=WIDEST)
    decoder_width: int = setting(512, "Width of a recurrent decoder.", ge=1, le=WIDEST)
    width: int = setting(128, "Model width of a Transformer.", ge=1, le=WIDEST)
    heads: int = setting(4, "Heads of each attention layer of a Transformer.", ge=1, le=1_024)
    feed_forward: int = setting(256, "Hidden width of a Transformer's feed-forward layers.", ge=1, le=4 * WIDEST)
    layers: int = setting(4, "Layers of a Transformer's encoder, and of its decoder.", ge=1, le=1_000)
    positions: Literal["sinusoidal", "learned", "rope", "alibi", "t5", "none"] = setting(
        "sinusoidal", "Position scheme of a Transformer."
    )
    norm: Literal["pre", "post"] = setting(
        "pre", "Position of LayerNorm in a Transformer: pre (before sublayers) or post (after the sum)."
    )
    dropout: float = setting(0.1, "Dropout rate of embeddings and sublayers.", ge=0, lt=1)

    # training
    batch_tokens: int = setting(
        2_048, "Largest number of tokens per update over all processes; each pair counts by its longer side.", ge=1
    )
    accumulate: int = setting(1, "Parts of each update, to save memory.", ge=1)
    updates: int = setting(5_000, "Largest number of updates.", ge=1)
    learning_rate: float = setting(2e-3, "Learning rate at its peak.", gt=0)
    schedule: Literal["inverse_sqrt", "noam", "cosine", "constant"] = setting(
        "inverse_sqrt", "Schedule of the learning rate after the warm-up."
    )
    warmup: int = setting(500, "Updates until the learning rate peaks.", ge=0)
    cooldown: int = setting(0, "Updates at the end over which the learning rate falls linearly to 0.", ge=0)
    optimizer: Literal["adamw", "muon"] = setting(
        "adamw",
        "Optimizer; muon uses orthogonalised steps of the size of AdamW's for the matrices of the layers, and "
        "AdamW for the rest.",
    )
    weight_decay: float = setting(0.0, "Weight decay, on matrices and embedding tables.", ge=0)
    adam_beta2: float = setting(0.98, "Second decay rate of Adam (beta 2).", gt=0, lt=1)
    clip: float = setting(1.0, "Largest gradient norm before clipping.", gt=0)
    label_smoothing: float = setting(0.1, "Share of the target distribution spread over all words.", ge=0, lt=1)
    r_drop: float = setting(
        0.0,
        "Weight of R-Drop: the loss includes the divergence between two passes of each batch (Liang et al. "
        "2021, who use 5). Each update takes twice the time. The validation loss excludes it.",
        ge=0,
    )
    mask_share: float = setting(
        0.15,
        "Share of tokens that are masked, for a masked language model. With a target, share of its unchanged tokens "
        "that are predicted too.",
        gt=0,
        lt=1,
    )
    bpe_dropout: float = setting(
        0.0,
        "BPE dropout: share of merges skipped at random in each update (Provilkov et al. 2020); sentence lengths "
        "are counted without it.",
        ge=0,
        le=1,
    )
    precision: Literal["auto", "float32", "bfloat16"] = setting(
        "auto", "Precision of training; auto: bfloat16 if the processor supports it natively."
    )
    threads: int | None = setting(
        None, "Threads of each process. [default: all available processors]", ge=1, le=THREADS
    )
    device: str | None = setting(None, "Device: cpu, cuda, ... [default: cuda if there is one]")
    seed: int = setting(0, "Seed of the random number generator.", ge=0, lt=SEEDS)

    # log, checkpoints, stopping
    log_every: int = setting(50, "Updates between log lines.", ge=1)
    validate_every: int = setting(500, "Updates between validations, each with a checkpoint.", ge=1)
    metric: Literal["bleu", "loss"] = setting(
        "bleu", "Metric of early stopping and of the best checkpoint (see average)."
    )
    bleu_tokenizer: Literal["13a", "intl", "zh", "ja-mecab", "char", "none"] = setting(
        "13a", "Tokenizer of BLEU in validation."
    )
    patience: int = setting(8, "Validations without improvement before training stops; 0: never.", ge=0)
    average: int = setting(
        5, "Number of last checkpoints to average; the best one is used if its metric is better.", ge=1
    )
    keep: int = setting(3, "Number of last checkpoints to store, if more than are averaged.", ge=1)
    tensorboard: bool = setting(False, "TensorBoard files next to the log.")

    def settings(self) -> dict[str, Any]:
        """The settings that apply to this type of model."""
        return {
            name: value
            for name, value in self.model_dump().items()
            if self.model in _OF_MODELS.get(name, (self.model,))
        }

    @model_validator(mode="after")
    def _go_together(self) -> TrainConfig:
        if self.r_drop and not self.dropout:
            raise ValueError(
                f"r_drop is {self.r_drop:g} and dropout is 0, so both passes are equal: set dropout, or leave r_drop "
                "out"
            )
        if self.tokenizer is not None and (self.tokens == "words" or self.lowercase):
            name = "lowercase" if self.lowercase else "tokens: words"
            raise ValueError(f"found a tokenizer and {name}, which applies to learned tokens: leave one of them out")
        if self.bpe_dropout and (self.tokenizer is not None or self.tokens == "words"):
            raise ValueError("bpe_dropout applies to subwords that are learned from the text: leave it out")
        for whole, part in _NEEDS.items():
            if getattr(self, whole) is not None and getattr(self, part) is None:
                raise ValueError(f"found {whole} without {part}: set both")
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
    **dict.fromkeys(("join", "bpe_dropout"), _TRANSLATORS),
}


def read_config(path: Path | None = None, **overrides: Any) -> TrainConfig:
    """Read settings from a YAML file (or the defaults) and replace some; None keeps the value of the file."""
    values = {} if path is None else _from_yaml(path)
    values |= {name: value for name, value in overrides.items() if value is not None}
    unknown = [str(name) for name in values if name not in TrainConfig.model_fields]
    if unknown:
        close = difflib.get_close_matches(unknown[0], TrainConfig.model_fields, n=1, cutoff=0.5)
        hint = f"did you mean {close[0]!r}?" if close else f"choose from {', '.join(TrainConfig.model_fields)}"
        raise AttnscopeError(f"unknown setting {unknown[0]!r}: {hint}")
    try:
        config = TrainConfig(**values)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        found = f"{where} is {shortly(first['input'])}"
        if first["type"] == "literal_error":
            choices = first["ctx"]["expected"].replace(" or ", ", ")
            near = nearest(str(first["input"]), choices.replace("'", "").split(", "))
            raise AttnscopeError(f"{where} is {shortly(first['input'])}; expected one of {choices}" + near) from None
        prefix = f"{found}: " if where else ""
        raise AttnscopeError(f"{prefix}{first['msg'].removeprefix('Value error, ')}") from None
    if {*values, *overrides} != {*TrainConfig.model_fields}:  # all of them: a complete configuration
        reject_other_settings(values, config.model)
    text = "source" if config.source else "text" if config.text else ""
    for name in ("task_pairs", "task_longest") if text else ():
        if getattr(config, name) != TrainConfig.model_fields[name].default:
            raise AttnscopeError(f"{name} applies to the generated task only, but found {text}: leave out one of them")
    return config


def reject_other_settings(names: Iterable[str], model: str) -> None:
    """Reject settings that this type of model does not have."""
    for name in names:
        owners = _OF_MODELS.get(name, (model,))
        if model not in owners:
            raise AttnscopeError(
                f"{name!r} applies to model {' and '.join(map(repr, owners))}, but the model is {model!r}: leave it "
                f"out, or use model {owners[0]}"
            )


class _Plain(yaml.SafeLoader):
    """YAML without aliases, which can expand a few lines to billions."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("found an alias (*name): write the value in full")
        return super().compose_node(parent, index)


def _from_yaml(path: Path) -> dict[str, Any]:
    from attnscope.read.files import decode_utf8, read_bytes, shown  # heavy: --help needs none of it

    text = decode_utf8(read_bytes(path), shown(path))
    try:
        values: Any = yaml.load(text, _Plain)  # noqa: S506 it is a SafeLoader
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise AttnscopeError(f"{shown(path)} is not YAML: {reason_of(error)}") from None
    if values is None:
        raise AttnscopeError(f"{shown(path)} is empty; expected one 'name: value' per line, or {{}} for the defaults")
    if not isinstance(values, dict):
        raise AttnscopeError(
            f"{shown(path)} contains a {type(values).__name__}; expected settings, one 'name: value' per line"
        )
    return {str(name): value for name, value in values.items()}  # pyright: ignore[reportUnknownVariableType]


def config_bytes(config: TrainConfig) -> bytes:
    """Settings as YAML, for `read_config`."""
    values = {name: str(value) if isinstance(value, Path) else value for name, value in config.settings().items()}
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True).encode()


# Three joined sentences have up to 38 words, more than a vector of 128 numbers stores after
# so short a training, and there are enough short sentences for the start of training.
_TASK: dict[str, Any] = {
    "task_longest": 12,
    "task_pairs": 30_000,
    "join": 3,
    "tokens": "words",
    "batch_tokens": 1024,
    "validate_every": 200,
    "learning_rate": 4e-3,
    "schedule": "cosine",
    "warmup": 100,
    "dropout": 0.0,
    "label_smoothing": 0.0,
    "average": 3,
    "threads": 1,  # steps are too small to parallelise
    "precision": "float32",  # and to cast to bfloat16
}
_RECURRENT = {"model": "recurrent", "embedding_width": 64, "encoder_width": 64, "decoder_width": 128}
_TRANSFORMER = {"model": "transformer", "width": 96, "feed_forward": 192, "layers": 2, "learning_rate": 3e-3}
_OF_PRESETS: dict[str, dict[str, Any]] = {
    "fixed vector": _RECURRENT | {"attention": "none", "updates": 1600},  # it learns slowly
    "additive": _RECURRENT | {"attention": "additive", "updates": 900},
    "Transformer": _TRANSFORMER | {"positions": "rope", "updates": 900},  # sinusoidal: worse on long sentences
}
PRESETS = {name: TrainConfig(**_TASK | settings) for name, settings in _OF_PRESETS.items()}
_SHORT: Any = {"task_pairs": 10_000, "updates": 300, "validate_every": 50, "warmup": 50}
SCHEMES = {  # a small Transformer for each position scheme, otherwise alike: systems of `compare`
    name: TrainConfig(
        **_TASK | _TRANSFORMER | _SHORT | {"join": 1, "width": 64, "feed_forward": 128, "positions": name}
    )
    for name in get_args(TrainConfig.model_fields["positions"].annotation)
}


def shown_default(name: str, usual: str) -> str:
    """A setting's default in words, and its value for the generated task."""
    default = TrainConfig.model_fields[name].default
    of = {system: getattr(config, name) for system, config in PRESETS.items() if name in config.settings()}
    if name == "attention" or all(value == default for value in of.values()):
        return usual
    first, *_ = (of[system] for system in ("additive", "Transformer") if system in of)
    others = {"attention none": of.get("fixed vector", first), "transformer": of.get("Transformer", first)}
    others_shown = ", ".join(f"{model}: {value}" for model, value in others.items() if value != first)
    others_shown = f" ({others_shown})" if others_shown and name != "model" else ""
    return f"{usual}; without data and config {first}{others_shown}"


def describe_preset(config: TrainConfig) -> str:
    """The model of the generated task in words, with what differs from its usual settings."""
    differ = ", ".join(
        f"{name}={value}"
        for name, value in config.settings().items()
        if name in MODEL_SETTINGS and value != TrainConfig.model_fields[name].default
    )
    return f"no data: a generated task, and a small {config.model} model" + (f" ({differ})" if differ else "")


def settings_for(config: TrainConfig | Path | str | None, **settings: object) -> TrainConfig:
    """The settings of a training: a file or settings, else the preset of the model, with some of them replaced."""
    changed: dict[str, Any] = {name: value for name, value in settings.items() if value is not None}
    if config is None and not {"source", "text"} & changed.keys():
        recurrent = "fixed vector" if changed.get("attention") == "none" else "additive"
        config = PRESETS[recurrent if changed.get("model") in {None, "recurrent"} else "Transformer"]
    if not isinstance(config, TrainConfig):
        return read_config(None if config is None else Path(config), **changed)
    merged = read_config(**{**config.model_dump(), **changed})
    reject_other_settings(changed, merged.model)
    return merged

"""Parameters that verbs share: how a model is loaded, what is read, and where results go. Each is declared here once.

A verb takes them as ``**reading: Unpack[Reading]``. `attnscope.support.arguments.validated` checks them, fills in
defaults, and adds them to the verb's signature and docstring; the command line makes options of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    import torch

    from attnscope.capture.processors import Processor, Tokenizer
    from attnscope.read.encoded import Sources
    from attnscope.read.groups import Groups
    from attnscope.read.words import Words
    from attnscope.store.signature import Signature
    from attnscope.store.units import Task
    from attnscope.support.arguments import Count, Seed
    from attnscope.support.progress import Tell


class ModelOptions(TypedDict, total=False):
    """How a model is loaded.

    Parameters
    ----------
    device
        Device: cpu, cuda, ... By default CUDA where there is one; a model object stays where it is.
    dtype
        Number format: float32, bfloat16, float16, float64, int8, int4. By default as the checkpoint was saved.
    revision
        Branch, tag or commit on the hub.
    trust_remote_code
        Permission to run code that comes with the model. Only for sources that you trust.
    """

    device: str | None
    dtype: str | None
    revision: str | None
    trust_remote_code: bool


class TextModelOptions(ModelOptions, total=False):
    """How a model of texts is loaded.

    Parameters
    ----------
    tokenizer
        Tokenizer (folder or hub id). Also the object itself. By default the model's own.
    """

    tokenizer: Tokenizer


class CorpusOptions(TypedDict, total=False):
    """Which part of the texts is read.

    Parameters
    ----------
    window
        Tokens per window. Special tokens are included. By default the model's maximum, up to a limit of the verb.
    limit
        Largest number of windows.
    seed
        Seed of the random number generators.
    field
        Field of JSON Lines that holds the text.
    by_line
        Lines as texts of their own.
    """

    window: Count | None
    limit: Count | None
    seed: Seed
    field: str | None
    by_line: bool


class OutputOptions(TypedDict, total=False):
    """Where results go.

    Parameters
    ----------
    out
        Run folder, or a function that names it from the signature. With it, results are written as they come, and a
        stopped run resumes there. By default results stay in memory.
    progress
        Function that is called with a `Progress` after each batch.
    """

    out: str | Path | Callable[[Signature], Path] | None
    progress: Tell | None


class UnitOptions(TypedDict, total=False):
    """Which processes measure.

    Parameters
    ----------
    task
        Part of the run for this process, ``"2/3"``, of processes that name the same `out` on a shared disk; ``"env"``
        takes it from torchrun or a Slurm array. The last one to finish returns the results, the others none.
    ray
        Ray cluster whose actors measure: local, auto or HOST:PORT. This process then loads no model.
        See docs/scale/clusters.md.
    workers
        Number of Ray's actors. By default all that fit.
    ray_gpus
        GPUs of each actor, or the part of one. By default 1 if there are any.
    """

    task: str | Task | None
    ray: str | None
    workers: int | None
    ray_gpus: float | None


class RunOptions(OutputOptions, total=False):
    """Where results go, and repair.

    Parameters
    ----------
    repair
        Repair of a finished run: damaged files are measured again. Without it such a run is rejected.
    """

    repair: bool


class SharedRunOptions(RunOptions, UnitOptions, total=False):
    """Where results go, and which processes measure them."""


class TranslationOptions(TextModelOptions, total=False):
    """How a translation model is loaded, and into which language it translates.

    Parameters
    ----------
    target_language
        Language of the translations, by the code of a tokenizer of many languages, such as fra_Latn. By default the
        tokenizer's ``tgt_lang``, or the model's ``forced_bos_token_id``.
    """

    target_language: str | None


class AlignmentReading(TranslationOptions, OutputOptions, UnitOptions, total=False):
    """A translation model, where results go, and which processes measure them."""


class ChatOptions(TypedDict, total=False):
    """How chats are read, and which groups tokens are in.

    Parameters
    ----------
    chat
        Chats: each line of JSON Lines holds messages. Lists of messages are chats in any case.
    chat_template
        Jinja template that writes chats out (a string or a `Path`). By default the tokenizer's.
    groups
        Groups of tokens, whose weights on each other are measured: a function from the tokens of a window, as they are
        shown, to the name of a group for each; ``"types"`` (word starts, punctuation, ...); a `Path` of rules; or
        ``"roles"``, those of a chat, which is the default for chats. See `attnscope.read.groups.grouping_of`.
    """

    chat: bool
    chat_template: str | Path | None
    groups: Groups | None


class Reading(TextModelOptions, CorpusOptions, RunOptions, total=False):
    """A model of texts, the texts, and where results go."""


class PromptReading(Reading, ChatOptions, total=False):
    """The same for prompts, which may be chats."""


class SessionReading(TextModelOptions, CorpusOptions, total=False):
    """A model of texts and the texts, for several verbs.

    Parameters
    ----------
    targets
        Translations for the decoder of an encoder-decoder: line i translates line i of the texts.
    """

    targets: Sources


class StudyReading(SessionReading, SharedRunOptions, total=False):
    """The same, where results go, and which processes measure them."""


class PairReading(TextModelOptions, SharedRunOptions, total=False):
    """The same without texts, for a verb that reads pairs.

    Parameters
    ----------
    seed
        Seed of the random number generators.
    """

    seed: Seed


class ScanReading(ModelOptions, CorpusOptions, SharedRunOptions, ChatOptions, total=False):
    """Inputs of `attnscope.scan`, and how they are read.

    Parameters
    ----------
    tokenizer
        Tokenizer or processor (folder or hub id). Also the object itself. By default the model's own. For
        images, the image processor; for texts with images, the processor.
    targets
        Translations for the decoder of an encoder-decoder, or transcripts of sounds: one sentence a line on both sides
        (each string is one), in the same order. The decoder reads them as in training, after its start token.
        Without them it reads the encoder's input. With a tokenizer of many languages,
        ``{"fra_Latn": texts}`` names theirs (or its ``tgt_lang``, or the model's ``forced_bos_token_id``).
    batch_size
        Windows at a time. By default about 2,048 tokens' worth (with `targets`, of the longest line; of images too).
    stride
        Tokens between window starts. By default windows do not overlap.
    words
        Words to which tokens are merged before measuring: queries of a word's tokens are averaged and keys summed.
        ``"unicode"`` (word boundaries of the Unicode standard), ``"space"``, a `Path` of spans, or a function from a
        text to its spans, from a word segmenter. See `attnscope.read.words.word_rule_of`.
    by
        Field of JSON Lines or of a table (language, source, year) by which heads are compared: each text has its
        value in the coordinate ``by``, and `attnscope.contrasts` reports the differences.
    device_map
        Rule that spreads a large model: auto, balanced, balanced_low_0, sequential. Or a mapping from modules to
        devices; see `attnscope.capture.placement.Placement`.
    max_memory
        Memory that `device_map` may fill, such as ``{0: "10GiB", "cpu": "30GiB"}``; the rest is on disk.
    """

    tokenizer: Processor
    targets: Sources
    batch_size: Count | None
    stride: Count | None
    words: Words | None
    by: str | None
    device_map: str | Mapping[str, int | str | torch.device] | None
    max_memory: Mapping[int | str, int | str] | None


def loading(reading: TextModelOptions) -> TextModelOptions:
    """The part of a verb's options by which `attnscope.capture.load.load_model` loads its model."""
    return {
        "tokenizer": reading["tokenizer"],
        "device": reading["device"],
        "dtype": reading["dtype"],
        "revision": reading["revision"],
        "trust_remote_code": reading["trust_remote_code"],
    }

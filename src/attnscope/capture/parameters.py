"""Parameters that verbs share: how a model is loaded, what is read, and where results go. Each is declared here once.

A verb takes them as ``**reading: Unpack[Reading]``. `attnscope.support.arguments.validated` checks them, fills in
defaults, and adds them to the verb's signature and docstring; the command line makes options of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    import torch

    from attnscope.capture.placement import Placement
    from attnscope.capture.processors import Processor, Tokenizer
    from attnscope.read.encoded import Sources
    from attnscope.read.groups import Groups
    from attnscope.read.words import Words
    from attnscope.report.signature import Signature
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


class SeedOptions(TypedDict, total=False):
    """How random numbers are seeded.

    Parameters
    ----------
    seed
        Seed of the random number generators.
    """

    seed: Seed


class CorpusOptions(SeedOptions, total=False):
    """Which part of the texts is read.

    Parameters
    ----------
    window
        Tokens per window. Special tokens are included. By default the model's maximum, up to a limit of the verb.
    limit
        Largest number of windows.
    field
        Field of JSON Lines that holds the text.
    by_line
        Lines as texts of their own.
    """

    window: Count | None
    limit: Count | None
    field: str | None
    by_line: bool


class FolderOptions(TypedDict, total=False):
    """Where results go.

    Parameters
    ----------
    out
        Run folder, or a function that names it from the signature. With it, results are written as they come, and a
        stopped run resumes there. By default results stay in memory.
    """

    out: str | Path | Callable[[Signature], Path] | None


class ComparisonOptions(FolderOptions, SeedOptions, total=False):
    """Where results go, and the seed, of a comparison of results."""


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


class RunOptions(FolderOptions, total=False):
    """Where results go, how progress is reported, and repair.

    Parameters
    ----------
    progress
        Function that is called with a `Progress` after each batch.
    repair
        Repair of a finished run: damaged files are measured again. Without it such a run is rejected.
    """

    progress: Tell | None
    repair: bool


class SharedRunOptions(RunOptions, UnitOptions, total=False):
    """Where results go, and which processes measure them."""


class ModelReading(TextModelOptions, RunOptions, SeedOptions, total=False):
    """A model of texts and where results go, for a verb that reads no texts."""


class TranslationOptions(TextModelOptions, total=False):
    """How a translation model is loaded, and into which language it translates.

    Parameters
    ----------
    target_language
        Language of the translations, by the code of a tokenizer of many languages, such as fra_Latn. By default the
        tokenizer's ``tgt_lang``, or the model's ``forced_bos_token_id``.
    """

    target_language: str | None


class AlignmentReading(TranslationOptions, SharedRunOptions, total=False):
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


class PairReading(TextModelOptions, SharedRunOptions, SeedOptions, total=False):
    """The same without texts, for a verb that reads pairs."""


OBSERVATION = 32  # queries, as in SnapKV


class ScanOptions(TypedDict, total=False):
    """What `attnscope.scan` measures.

    Parameters
    ----------
    statistics
        Names from ``attnscope.measure.quantities.STATISTICS``, as a list or a comma-separated string. ``default`` means
        all default statistics (``"default,block_recall"`` adds one): all except ``learned_sink``, distances, largest
        weights, and those that need a second pass over the scores (docs/questions/attention-received.md). Labels need
        ``band_sum``, ``bin_sum``, ``entropy``, ``first_token``, ``special_tokens`` and ``mean_offset``; with `clusters`
        only the first.
    band
        Largest offset of the band ``-band..band``: by default 10 tokens, or 3 rows and columns of image patches.
    offsets
        Further offsets (key minus query; negative is left) at which ``weight_at`` is measured: ``[-1, -64]``. Each
        costs as much as an offset of the band. See docs/guides/long-contexts.md.
    rows
        Queries to measure in each window, drawn at random with `seed` (an even number). The model then uses PyTorch's
        fused kernel, and statistics that do not follow from the log-sum-exp are estimates with a standard error
        (``entropy_error``). Shorter windows are measured in full. See docs/guides/long-contexts.md.
    observation
        Queries at the end of each window for ``recent_top_key``, ``recent_top_10_keys`` and ``recent_effective_keys``:
        the observation window of SnapKV and similar methods. In shorter windows they cover all queries, with a note.
    clusters
        Number of clusters by k-means over profiles, as in the papers. By default each head gets a label from its own
        statistics: see `summarize`.
    pool
        Smallest number of windows of a pool. Statistics are then stored for pools, each an entry of ``window``, with
        few numbers for each window, so that a corpus of any size fits on a disk. With `by`, a pool has texts of one
        value. See docs/scale/clusters.md.
    until
        Stop the scan once every 95% interval of a head's mean share is at most this wide (by documents, over all
        statistics that are shares of weight; checked after 4, 8, 16, ... batches). By default everything is measured.
    show
        Heads (layer, head) whose attention over the first three windows is stored token by token for the page, in
        addition to the first of the rankings; the others are stored in tiles, or all heads token by token if they fit.
        It is stored in the run folder, or in ``.encoding["sample"]`` of a result in memory. By default only with a run
        folder and in a notebook; False stores none and saves these passes.
    """

    statistics: Sequence[str] | str | None
    band: Count | None
    offsets: Sequence[int] | None
    rows: int | None
    observation: Count
    clusters: int | None
    pool: Count | None
    until: float | None
    show: Sequence[tuple[int, int]] | bool | None


class ScanReading(ScanOptions, ModelOptions, CorpusOptions, SharedRunOptions, ChatOptions, total=False):
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


@dataclass(frozen=True)
class Loading:
    """Options of `attnscope.capture.load.load_model`."""

    revision: str | None = None
    device: str | None = None
    dtype: str | None = None
    trust_remote_code: bool = False
    placement: Placement | None = None


AS_SAVED = Loading()


@dataclass(frozen=True, kw_only=True)
class ScanSettings:
    """The arguments of `attnscope.scan` for all modalities, under the names of `ScanReading`."""

    # tokenizer, image processor or feature extractor, or a folder of them
    processor: Processor = None
    out: str | Path | Callable[[Signature], Path] | None = None
    repair: bool = False
    limit: int | None = None
    batch_size: int | None = None
    statistics: Sequence[str] | str | None = None
    band: int | None = None
    observation: int = OBSERVATION
    seed: int = 0
    task: Task | None = None
    pool: int | None = None
    until: float | None = None
    rows: int | None = None
    show: Sequence[tuple[int, int]] | None = None
    progress: Tell | None = None
    loading: Loading = AS_SAVED  # how the model is loaded
    targets: Sources = None
    window: int | None = None
    stride: int | None = None
    field: str | None = None
    by_line: bool = False
    clusters: int | None = None
    groups: Groups | None = None
    chat: bool = False
    chat_template: str | Path | None = None
    words: Words | None = None
    by: str | None = None
    offsets: Sequence[int] | None = None


def loading(reading: TextModelOptions) -> TextModelOptions:
    """The part of a verb's options by which `attnscope.capture.load.load_model` loads its model."""
    return {
        "tokenizer": reading["tokenizer"],
        "device": reading["device"],
        "dtype": reading["dtype"],
        "revision": reading["revision"],
        "trust_remote_code": reading["trust_remote_code"],
    }

"""The options that verbs share, each declared once: its name, type, bounds and sentences.

A verb takes them by ``**reading: Unpack[Reading]``. Its check, its command, its docstring and the reference derive from
its signature. An option is ``Annotated[type, ...]`` with its sentences last. The first one is the help of the command
and begins with a verb; ``By default ...`` is what the help shows as the default. A type that is typed in a form of
its own (heads as 3.6,10.5) has that form here. Nothing heavy is imported, so that a help appears at once.
"""

import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, TypedDict

from attnscope.head_names import head_of, heads_of, heads_or_sets, sets_of
from attnscope.support.checked import Bounds, Kind, Reads
from attnscope.support.errors import AttnscopeError

if TYPE_CHECKING:
    from attnscope.read.urls import Url

OBSERVATION = 32  # queries, as in SnapKV
DRAWS = 10_000  # of a path, a search or a test: far more never end
WIDEST = 1_000_000  # tokens of a band
SEEDS = 2**32  # as many as every generator of random numbers takes


# --- what stands next to a type ---


@dataclass(frozen=True)
class Panel:
    """The heading under which a help lists an option; `MEASURE` where there is none."""

    name: str


INPUT, MODEL, MEASURE, OUTPUT, SCALE = PANELS = (*map(Panel, ("Input", "Model", "Measure", "Output", "Scale")),)


@dataclass(frozen=True)
class Typed:
    """How a value is typed on the command line: `parse` takes the flag and what was typed."""

    parse: Callable[[str, str], Any] = lambda _, text: text
    metavar: str = "TEXT"  # with a comma if one word holds several values
    repeated: bool = False  # each use of the flag adds a value
    usual: str = ""  # what stands for an argument that is left out, where the verb needs one
    gathered: Callable[[list[Any]], Any] = list  # of the values of all uses


@dataclass(frozen=True)
class Flag:
    """The name on the command line, where it is not that of the parameter; empty for an option of Python alone."""

    name: str
    short: str = ""
    off: str = ""  # of a flag that is on or off


IN_PYTHON = Flag("")


def of_class(name: str) -> Any:
    """A class that is imported for type checkers alone, or one derived from it."""
    return Annotated[Any, Kind(lambda value: any(base.__name__ == name for base in type(value).__mro__), name, name)]


def _reader(words: str) -> Any:
    def takes(value: Any) -> bool:
        return value is None or callable(value) or isinstance(value, str | os.PathLike)

    return Annotated[Any, Kind(takes, f"{words}, a folder or a hub id", f"{words}s, folders or hub ids"), Typed()]


# --- how values are typed ---


def is_sentence(name: str) -> bool:
    """Whether a text was typed: with a space or letters beyond ASCII, and neither a URL nor the form of a path."""
    typed = " " in name or not (name.isascii() or "/" in name)
    return typed and not re.search(r"://|\.[A-Za-z]\w{1,6}$|/$", name) and not os.path.exists(name)  # noqa: PTH110 of any length


def text_or_place(_: str, name: str) -> "str | Path | Url":
    """A text, a path or a URL."""
    from attnscope.read.urls import Url

    if not name.strip():
        raise AttnscopeError("found an empty text; expected a text, a path or a URL")
    return name if is_sentence(name) else Url(name) if "://" in name else Path(name)


def run_folder(_: str, name: str) -> Path:
    """A local folder; a URL and an empty name are rejected."""
    from attnscope.store.files import local_folder

    return local_folder(name)


def names_of(_: str, text: str) -> list[str]:
    """Names with commas between."""
    return [name.strip() for name in text.split(",")]


def numbers_of(flag: str, text: str) -> list[int]:
    """Whole numbers as people write them."""
    try:
        return [int(number) for number in text.replace("\u2212", "-").split(",")]
    except ValueError:
        example = "-1,-64" if flag == "--offsets" else "10,20,30"
        raise AttnscopeError(
            f"{flag} is {text!r}; expected whole numbers with commas between, as in {example}"
        ) from None


def heads_or_run(flag: str, value: Any) -> Any:
    """Heads, or a scan or its run folder."""
    is_scan = hasattr(value, "data_vars") or (isinstance(value, str | os.PathLike) and Path(value).is_dir())
    return value if is_scan else heads_of(flag, value)


def caches_of(flag: str, text: str) -> list[tuple[int, int]]:
    """Caches as their latest and first tokens."""
    try:
        pairs = [one.split("+") for one in text.split(",")]
        return [(int(recent), int(sinks)) for recent, sinks in pairs]
    except ValueError as error:
        raise AttnscopeError(
            f"{flag} is {text!r:.60}; expected caches such as 64+4,256+4 (latest and first tokens)"
        ) from error


def range_of(flag: str, text: str) -> tuple[int, int]:
    """Two whole numbers, as in 3:60."""
    low, _, high = text.partition(":")
    if not (low.isdecimal() and high.isdecimal() and int(low) <= int(high)):
        raise AttnscopeError(f"{flag} is {text!r}: give two whole numbers, the smaller first, as in 3:60")
    return int(low), int(high)


def memory_of(flag: str, text: str) -> dict[int | str, str]:
    """Memory limits by device, from ``0=10GiB,cpu=30GiB``."""
    sizes: dict[int | str, str] = {}
    for part in text.split(","):
        device, equals, size = part.strip().partition("=")
        if not equals or not size or not (device == "cpu" or device.isdecimal()):
            raise AttnscopeError(f"{flag} is {text!r:.60}; expected devices and sizes, as in 0=10GiB,cpu=30GiB")
        sizes[device if device == "cpu" else int(device)] = size
    return sizes


def path_of(_: str, text: str) -> Path:
    """A path; - is standard input or output."""
    return Path(text)


def paths_of(_: str, text: str) -> Path | list[Path]:
    """A path, or several with commas between."""
    several = [Path(part) for part in text.split(",") if part]
    return Path(text) if Path(text).exists() or len(several) < 2 else several  # noqa: PLR2004


def file_or_task(_: str, text: str) -> str | Path:
    """A path, or the name of a task of `attnscope.pairs`, which has neither a dot nor a slash."""
    path = Path(text)
    return text if path.name == text and not path.suffix and not path.exists() else path


def int_of(flag: str, text: str) -> int:
    """A whole number."""
    try:
        return int(text.replace("\u2212", "-"))
    except ValueError:
        raise AttnscopeError(f"{flag} is {text!r:.60}; expected a whole number") from None


def float_of(flag: str, text: str) -> float:
    """A number."""
    try:
        return float(text)
    except ValueError:
        raise AttnscopeError(f"{flag} is {text!r:.60}; expected a number") from None


def metric_of_file(flag: str, text: str) -> Any:
    """A function of a Python file, which is run."""
    from attnscope.report.registry import load_file

    file, colon, name = text.rpartition(":")
    if not colon:
        raise AttnscopeError(f"{flag} is {text!r:.60}; expected a Python file and its function, as in mine.py:entropy")
    function = getattr(load_file(flag, Path(file)), name, None)
    if not callable(function):
        raise AttnscopeError(f"{flag} is {text!r:.60}, and {file} has no function {name}; expected one of its names")
    return function


def run_of(_: str, name: str) -> Any:
    """The results in a run folder."""
    import attnscope

    return attnscope.open_run(run_folder("", name))


def _rule_or_file(*rules: str) -> Callable[[str, str], str | Path]:
    """A parser of the name of a rule, or of the path of a file of rules."""

    def parse(_: str, text: str) -> str | Path:
        if text in rules:
            return text
        if not Path(text).is_file():
            raise AttnscopeError(f"{text}: no such file; choose {' or '.join(rules)}, or the path of a file of rules")
        return Path(text)

    return parse


def span_of(flag: str, text: str) -> tuple[str, str]:
    """The name of a span and its pattern."""
    name, _, pattern = text.partition("=")
    if not name.strip() or not pattern:
        raise AttnscopeError(f"{flag} is {text!r:.60}; expected a name and a pattern, as document='<doc>...</doc>'")
    return name.strip(), pattern


def _is_vector(value: Any) -> bool:
    """Whether a value is an array, numbers, a direction, or names a file."""
    numbers = isinstance(value, list | tuple) and all(isinstance(one, int | float) for one in value)
    return numbers or isinstance(value, str | os.PathLike) or hasattr(value, "__array__") or hasattr(value, "vector")


# --- types ---

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    import torch
    import xarray as xr
    from torch import nn

    from attnscope.capture.load import Model as Model
    from attnscope.capture.processors import Processor as Processor
    from attnscope.capture.processors import Tokenizer as Tokenizer
    from attnscope.detection.probes import Needles as Needles
    from attnscope.explanation.study import Analysis as Analysis
    from attnscope.intervention.directions import Direction
    from attnscope.intervention.pair_sources import Pairs as Pairs
    from attnscope.measure.generation_rows import GivenSpans as GivenSpans
    from attnscope.measure.watched import Mask as Mask
    from attnscope.measure.watched import Weights as Weights
    from attnscope.read.encoded import Sources as Sources
    from attnscope.read.groups import Groups as Groups
    from attnscope.read.words import Words as Words
    from attnscope.report.signature import Signature as Signature
    from attnscope.store.units import Task as Task
    from attnscope.support.progress import Tell as Tell

    Models: TypeAlias = Any  # a model, which is all that a verb's body sees, or several
    Array: TypeAlias = np.ndarray
    Vector: TypeAlias = np.ndarray | Sequence[float] | str | Path | Direction
    Dataset: TypeAlias = xr.Dataset
    Tree: TypeAlias = xr.DataTree
    Scan: TypeAlias = str | Path | xr.Dataset
    Scans: TypeAlias = Scan | Sequence[Scan]
    Module: TypeAlias = nn.Module
    Device: TypeAlias = torch.device
    Out: TypeAlias = str | Path | Callable[[Signature], Path]
    Memory: TypeAlias = Mapping[int | str, int | str]
    Head: TypeAlias = str | tuple[int, int]
    Table: TypeAlias = pd.Series | xr.DataArray
    Heads: TypeAlias = str | Path | tuple[int, int] | Collection[str | tuple[int, int]] | Table
    HeadSets: TypeAlias = str | Collection[str | tuple[int, int] | Collection[str | tuple[int, int]]]
    HeadsOrSets: TypeAlias = Heads | HeadSets
    ComponentSets: TypeAlias = Heads | Collection[Heads]
    HeadsOrScan: TypeAlias = Heads | xr.Dataset
    Metric: TypeAlias = Callable[..., Any]
else:
    Array = Annotated[Any, Kind(lambda value: hasattr(value, "__array__"), "an array", "arrays")]
    Vector = Annotated[Any, Kind(_is_vector, "numbers or a file", "numbers or files"), Typed(metavar="FILE[:TENSOR]")]
    Dataset, Tree, Module, Task, Analysis = map(of_class, ("Dataset", "DataTree", "Module", "Task", "Analysis"))
    Device = Any
    Tell = Annotated[Any, Kind(callable, "a function", "functions")]
    Model = Models = Annotated[Any, Typed()]
    Metric = Annotated[Any, Kind(callable, "a function", "functions"), Typed(metric_of_file, "FILE:NAME")]
    GivenSpans = Weights = Mask = Any
    Tokenizer, Processor = _reader("a tokenizer"), _reader("a tokenizer, a processor")
    Sources = Annotated[Any, Typed(text_or_place, "PATH", repeated=True)]
    Scan = Annotated[Any, Typed(path_of, "PATH")]
    Scans = Annotated[Any, Typed(paths_of, "PATH,...")]
    Needles = Annotated[Any, Typed(path_of, "PATH")]
    Pairs = Annotated[Any, Typed(file_or_task, "PATH|TASK", repeated=True)]
    Groups = Annotated[Any, Typed(_rule_or_file("types", "roles"), "RULE|FILE")]
    Words = Annotated[Any, Typed(_rule_or_file("unicode", "space"), "RULE|FILE")]
    Out = Annotated[str | Path | Callable[..., Any], Typed(run_folder, "PATH")]
    Memory = Annotated[Mapping[Any, Any], Typed(memory_of, "SIZE,...")]
    Head = Annotated[Any, Reads(head_of), Typed(head_of, "L.H")]
    Heads = Annotated[Any, Reads(heads_of), Typed(heads_of, "L.H,...")]
    HeadSets = Annotated[Any, Reads(sets_of), Typed(heads_of, "L.H,...", repeated=True)]
    ComponentSets = Annotated[Any, Typed(repeated=True)]
    HeadsOrScan = Annotated[Any, Reads(heads_or_run), Typed(heads_or_run, "L.H,...|RUN")]
    HeadsOrSets = Annotated[Any, Reads(heads_or_sets), Typed(heads_or_sets, "L.H,...")]

#: The formats of `attnscope.runs.export`.
Format: TypeAlias = Literal[
    "parquet", "csv", "nc", "zarr", "safetensors",
    "duo", "minference", "qrhead", "alignment", "names", "contacts", "latex", "graph"
]  # fmt: skip
Count: TypeAlias = Annotated[int, Bounds(1)]
Natural: TypeAlias = Annotated[int, Bounds(0)]
Draws: TypeAlias = Annotated[int, Bounds(1, DRAWS)]
Share: TypeAlias = Annotated[float, Bounds(0.0, 1.0)]
Steps: TypeAlias = Annotated[int, Bounds(0, DRAWS)]
Seed: TypeAlias = Annotated[int, Bounds(0, SEEDS - 1)]
Beams: TypeAlias = Annotated[int, Bounds(1, 1_000)]  # far more do not fit into memory
PathOrName: TypeAlias = Annotated[str | Path, Typed(path_of, "PATH")]
Names: TypeAlias = Annotated[Sequence[str], Typed(names_of, "NAME,...")]
Several: TypeAlias = Annotated[Sequence[str], Typed(repeated=True)]
Numbers: TypeAlias = Annotated[Sequence[int], Typed(numbers_of, "N,...")]
Caches: TypeAlias = Annotated[Sequence[tuple[int, int]], Typed(caches_of, "W+S,...")]
Range: TypeAlias = Annotated[tuple[int, int], Typed(range_of, "LOW:HIGH")]
Spans: TypeAlias = Annotated[Mapping[str, str], Typed(span_of, "NAME=PATTERN", repeated=True, gathered=dict)]

_OBJECTS = (
    "In Python also a loaded model, with its `tokenizer`, if it was "
    "loaded from elsewhere. It may be inside a TransformerLens bridge, nnsight's ``LanguageModel``, a "
    "``PeftModel`` or a ``SentenceTransformer``, or the result of `attnscope.capture.load.load_model`. The "
    "folder of an adapter means its base model with the adapter. For any other module: `attnscope.watch`. "
)
_SEVERAL = (
    "Several are measured one after another, each in a run of its own, and reported in one table: they are a list or a "
    "mapping of names to models, as text have commas between, as in a,b, or are a pattern or a folder of checkpoints; "
    "see docs/questions/what-changed.md. "
)
_BUNDLED = "By default bundled. That is a small model of attnscope."
ModelOrBundled: TypeAlias = Annotated[
    Model | None, INPUT, "Measure this model: a folder or a hub id. " + _OBJECTS + _BUNDLED
]
ModelsOrBundled: TypeAlias = Annotated[
    Models,
    INPUT,
    "Measure this model, or several with commas between: folders or hub ids. " + _OBJECTS + _SEVERAL + _BUNDLED,
]
Texts: TypeAlias = Annotated[
    Sources,
    INPUT,
    "Read these texts, in quotes, or files, folders or URLs of text, as .txt .md .jsonl .csv .parquet; - is "
    "standard input. See `attnscope.scan`. By default the bundled sample.",
]
TextsOrSounds: TypeAlias = Annotated[
    Sources,
    INPUT,
    "Read these texts, in quotes, or files, folders or URLs of text, as .txt .md .jsonl .csv .parquet; - is "
    "standard input. Or sounds (.wav .flac .ogg .mp3) for Whisper, Wav2Vec2 and similar models, with transcripts for a "
    "decoder next to them (``name.txt``). See `attnscope.scan`. By default the bundled sample.",
]
Part: TypeAlias = Annotated[
    str,
    "Predict only tokens in this part: first-half, second-half, after:TEXT, or a span by name. Halves are of each "
    "window, ``after:TEXT`` is what follows the first TEXT. Spans are characters in the field ``spans`` of JSON Lines "
    'or mappings: ``{"text": "The key is old", "spans": {"subject": [4, 7]}}``. Pairs have them too, in the field '
    "``clean`` or ``corrupted``. By default all tokens.",
]
Band: TypeAlias = Annotated[Count, "Measure profiles up to this offset."]
PairsOrBundled: TypeAlias = Annotated[
    Pairs | None,
    Flag("pairs"),
    "Read pairs of a clean and a corrupted text, or make up to 50 of a task: agreement, greater-than, "
    "indirect-objects, induction, pronouns, brackets, docstrings. Files are one of JSON Lines with clean, "
    "corrupted, answer and wrong in each line; or two of texts with the same lines in order; or four, with the "
    "answers and the wrong ones. In Python also pairs, as `attnscope.intervention.pairs.Pair` or mappings with "
    "``clean``, ``corrupted``, ``answer`` and ``wrong``, or a data frame of them; of an encoder-decoder also "
    "``target``, the text that the decoder has written before the answer, and ``corrupted_target`` (by default the "
    "same). Answers that are lists have one token each, and count by their summed probability. ``spans`` names "
    'characters of both texts, ``{"subject": [4, 7]}``, or ``[[4, 7], [4, 8]]`` if they differ. For tasks see '
    "`attnscope.pairs`. By default those of the bundled model.",
]

PairMetric: TypeAlias = Annotated[
    Metric,
    "Measure this in place of answer minus wrong answer: FILE:NAME, a function in a Python file, which is run. Name "
    "only files that you trust. It is a function of the logits ``(text, position, vocabulary)`` and of the model's "
    "inputs, a dict of tensors, that returns a number for each text. The inputs also have ``answer`` and ``wrong`` "
    "(token ids, padded with -100) and ``position``, that of the mask or of the last token. Pairs then "
    "need no answers. `attnscope.metric` gives it a name and a unit.",
]
PairAnswer: TypeAlias = Annotated[
    str | None,
    "Expect this answer of all pairs that have none of their own: for a mask a token. After the texts of a "
    "causal model it may have several tokens: then the difference is that of their summed log probabilities, "
    "which for one token each is that of the logits.",
]
PairWrong: TypeAlias = Annotated[str | None, "Compare with this wrong answer of all pairs that have none of their own."]
ScoredHeads: TypeAlias = Annotated[
    Heads | None,
    "Score only these heads, as in 4.2,5.1. docs/guides/own-questions.md has all forms. By default every head.",
]
HiddenNeedles: TypeAlias = Annotated[
    Needles | None,
    "Hide the needles of this file for retrieval heads: JSON Lines with needle, and question or prompt. Also "
    "such objects; see `attnscope.detection.probes.needles_of`. By default three sentences in English.",
]
Controls: TypeAlias = Annotated[
    Names | str | None,
    "Compare with these untrained controls, with commas between: initialised, shuffled; or none. "
    "``initialised`` has new random weights, ``shuffled`` each matrix in a random order. By default "
    "initialised,shuffled.",
]


# --- how a model is loaded ---


class ModelOptions(TypedDict, total=False):
    """How a model is loaded."""

    revision: Annotated[str | None, MODEL, "Load this branch, tag or commit of the hub."]
    trust_remote_code: Annotated[
        bool, MODEL, "Run code that comes with the model. Use it only for sources that you trust."
    ]
    device: Annotated[
        str | None,
        MODEL,
        "Compute on this device: cpu, cuda, ... By default cuda if there is one. A model object stays where it is.",
    ]
    dtype: Annotated[
        str | None,
        MODEL,
        "Load weights in this format: float32, bfloat16, float16, float64, int8, int4, nf4. By default as saved.",
    ]
    device_map: Annotated[
        str | Mapping[str, int | str | Device] | None,
        MODEL,
        Typed(metavar="RULE"),
        "Spread a large model: auto, balanced, balanced_low_0, sequential. Over GPUs, memory and disk. Also a mapping "
        "from modules to devices; see `attnscope.capture.placement.Placement`.",
    ]
    max_memory: Annotated[
        Memory | None,
        MODEL,
        "Limit each device to this, as 0=10GiB,cpu=30GiB; the rest is on disk. With `device_map`. In Python "
        '``{0: "10GiB", "cpu": "30GiB"}``.',
    ]


class TextModelOptions(ModelOptions, total=False):
    """How a model of texts is loaded."""

    tokenizer: Annotated[
        Tokenizer, MODEL, "Use this tokenizer (folder or hub id). Also the object itself. By default the model's."
    ]


class SeedOptions(TypedDict, total=False):
    """How random numbers are seeded."""

    seed: Annotated[Seed, "Seed the random number generators with this number."]


class LimitOptions(SeedOptions, total=False):
    """How many inputs are read."""

    limit: Annotated[Count | None, INPUT, "Read at most this many windows, images or prompts. By default all."]


class CorpusOptions(LimitOptions, total=False):
    """Which part of the texts is read."""

    window: Annotated[
        Count | None,
        INPUT,
        "Cut texts into windows of this many tokens. Special tokens are included. By default the model's length, up to "
        "a limit of the command.",
    ]
    field: Annotated[str | None, INPUT, "Read texts from this field of JSON Lines. By default text."]
    by_line: Annotated[bool, INPUT, "Read each line as a text of its own."]


class FolderOptions(TypedDict, total=False):
    """Where results go."""

    out: Annotated[
        Out | None,
        OUTPUT,
        "Write results to this run folder; a stopped run resumes there. Also a function that names it from the "
        "signature. Results are written as they come. By default one under attnscope-runs. In Python, results stay "
        "in memory without `out`.",
    ]


class ComparisonOptions(FolderOptions, SeedOptions, total=False):
    """Where results go, and the seed, of a comparison of results."""


class UnitOptions(TypedDict, total=False):
    """Which processes measure."""

    task: Annotated[
        str | Task | None,
        SCALE,
        Typed(metavar="I/N|env"),
        "Measure this part of the run, I of N; env: as torchrun or Slurm says. Processes that name the same `out` on a "
        "shared disk measure the parts. The last one to finish returns the results, the others none.",
    ]
    ray: Annotated[
        str | None,
        SCALE,
        Typed(metavar="ADDRESS"),
        "Measure by actors of this Ray cluster: local, auto or HOST:PORT. This process then loads no model. "
        "See docs/scale/clusters.md.",
    ]
    workers: Annotated[Count | None, SCALE, "Start this many of Ray's actors. By default as many as fit."]
    ray_gpus: Annotated[
        Annotated[float, Bounds(0.0)] | None,
        SCALE,
        "Give each actor this many GPUs, or a part of one. By default 1 if any.",
    ]


class RunOptions(FolderOptions, total=False):
    """Where results go, how progress is reported, and repair."""

    progress: Annotated[Tell | None, IN_PYTHON, "Call this function with a `Progress` after each batch."]
    repair: Annotated[bool, SCALE, "Measure damaged files of a finished run again. Without it such a run is rejected."]


class PlanOptions(TypedDict, total=False):
    """Whether a run is planned in place of being done."""

    dry_run: Annotated[
        bool,
        SCALE,
        "Report the passes, memory, disk and time of the run; write nothing. The folder of a model needs only its "
        "config and tokenizer. If its weights are there and fit into memory, a pass is timed. Returns a "
        "`attnscope.report.schema.Report`. See docs/scale/planning.md.",
    ]


class SharedRunOptions(RunOptions, UnitOptions, total=False):
    """Where results go, and which processes measure them."""


class ModelReading(TextModelOptions, RunOptions, SeedOptions, PlanOptions, total=False):
    """A model of texts and where results go, for a verb that reads no texts."""


class ChatOptions(TypedDict, total=False):
    """How chats are read, and which groups tokens are in."""

    chat: Annotated[
        bool,
        INPUT,
        "Read each line of JSON Lines as a chat of messages. Lists of messages are chats in any case. By default by "
        "the first line.",
    ]
    chat_template: Annotated[
        PathOrName | None,
        INPUT,
        "Write chats out by this Jinja template. In Python a `Path`, or the template itself. By default "
        "the tokenizer's.",
    ]
    groups: Annotated[
        Groups | None,
        "Measure the weights of groups of tokens on each other: types, roles, or a file of rules. ``types`` are word "
        "starts, punctuation, ...; ``roles`` those of a chat; rules are a `Path`. Also a function from the tokens of a "
        "window, as they are shown, to the name of a group for each. See `attnscope.read.groups.grouping_of`. By "
        "default roles of a chat.",
    ]


class Reading(TextModelOptions, CorpusOptions, RunOptions, PlanOptions, total=False):
    """A model of texts, the texts, and where results go."""


class PromptReading(Reading, ChatOptions, total=False):
    """The same for prompts, which may be chats."""


class SessionReading(TextModelOptions, CorpusOptions, total=False):
    """A model of texts and the texts, for several verbs."""

    targets: Annotated[
        Sources,
        INPUT,
        Flag("target"),
        "Read this translation with the decoder, line by line; may be repeated. Line i translates line i of the texts.",
    ]


class StudyReading(SessionReading, SharedRunOptions, PlanOptions, total=False):
    """The same, where results go, and which processes measure them."""


class PairReading(TextModelOptions, SharedRunOptions, SeedOptions, PlanOptions, total=False):
    """The same without texts, for a verb that reads pairs."""


class EveryScanReading(ModelOptions, LimitOptions, RunOptions, PlanOptions, total=False):
    """How `attnscope.scan` reads and measures inputs of every modality."""

    tokenizer: Annotated[
        Processor,
        MODEL,
        "Use this tokenizer (folder or hub id). Also the object itself. For images, the image processor; for texts "
        "with images, the processor. By default the model's.",
    ]
    statistics: Annotated[
        Names | str | None,
        "Measure these statistics, with commas between; default for the usual ones, list shows all. They are names "
        "from ``attnscope.measure.quantities.STATISTICS``, as a list or a comma-separated string. ``default`` means "
        'all default statistics (``"default,block_recall"`` adds one): all except ``learned_sink``, distances, largest '
        "weights, and those that need a second pass over the scores (docs/questions/attention-received.md). Labels "
        "need ``band_sum``, ``bin_sum``, ``entropy``, ``first_token``, ``special_tokens`` and ``mean_offset``; with "
        "`clusters` only the first. By default the usual ones.",
    ]
    band: Annotated[
        Count | None,
        "Measure profiles up to this offset: the band ``-band..band``. By default 10 tokens; images 3 patches.",
    ]
    observation: Annotated[
        Count,
        "Observe this many queries at the end of each window for statistics of recent queries. These are "
        "``recent_top_key``, "
        "``recent_top_10_keys`` and ``recent_effective_keys``: the observation window of SnapKV and similar methods. "
        "In shorter windows they cover all queries, with a note.",
    ]
    show: Annotated[
        Heads | bool | None,
        OUTPUT,
        "Show these heads token by token on the page. The attention of these heads (layer, head) over the first three "
        "windows is stored in addition to the first of the rankings; the others are stored in tiles, or all heads "
        'token by token if they fit. It is stored in the run folder, or in ``.encoding["sample"]`` of a result in '
        "memory. Without `show`, it is stored only with a run folder and in a notebook; False stores none and saves "
        "these passes.",
    ]


class ScanReading(EveryScanReading, CorpusOptions, SharedRunOptions, ChatOptions, total=False):
    """The same, with options for texts; a reader of another modality names those that it accepts."""

    targets: Annotated[
        Sources,
        INPUT,
        Flag("target"),
        "Read this translation with the decoder, or transcripts of sounds, line by line; may be repeated. One sentence "
        "is a line on both sides (each string is one), in the same order. The decoder reads them as in training, after "
        "its start token. Without them it reads the encoder's input. With a tokenizer of many languages, "
        '``{"fra_Latn": texts}`` names theirs (or its ``tgt_lang``, or the model\'s ``forced_bos_token_id``).',
    ]
    offsets: Annotated[
        Numbers | None,
        Typed(numbers_of, "OFFSET,..."),
        "Measure the share of weight at these further offsets, such as -1,-64. An offset is key minus query; negative "
        "is left. ``weight_at`` has the shares. Each costs as much as an offset of the band. See "
        "docs/guides/long-contexts.md.",
    ]
    by: Annotated[
        str | None,
        Typed(metavar="FIELD"),
        "Compare heads by this field of JSON Lines or of a table (language, source, year). Each text has its value in "
        "the coordinate ``by``, and `attnscope.contrasts` reports the differences.",
    ]
    clusters: Annotated[
        Annotated[int, Bounds(2)] | None,
        "Label heads by this number of clusters, by k-means over profiles. This is as in the papers. Otherwise "
        "each head gets a label from its own statistics: see `summarize`. By default as many as are named.",
    ]
    rows: Annotated[
        int | None,
        "Measure this many random queries per window: estimates, at little cost. They are drawn with `seed` (an even "
        "number). The model then uses PyTorch's fused kernel, and statistics that do not follow from the log-sum-exp "
        "are estimates with a standard error (``entropy_error``). Shorter windows are measured in full. See "
        "docs/guides/long-contexts.md. By default all.",
    ]
    stride: Annotated[int | None, INPUT, "Start a window every this many tokens. By default no overlap."]
    words: Annotated[
        Words | None,
        INPUT,
        "Merge tokens to these words before measuring: unicode, space, or a file of spans. Queries of a word's tokens "
        "are averaged and keys summed. ``unicode`` means word boundaries of the Unicode standard; spans are a `Path`, "
        "or a function from a text to its spans, from a word segmenter. See `attnscope.read.words.word_rule_of`.",
    ]
    batch_size: Annotated[
        Count | None,
        SCALE,
        "Measure this many windows at a time. By default about 2,048 tokens' worth. With `targets` they are those "
        "of the longest line; of images too.",
    ]
    pool: Annotated[
        Count | None,
        SCALE,
        "Pool at least this many windows: results by pool, for a corpus of any size. Statistics are then stored "
        "for pools, each an entry of ``window``, with few numbers for each window, so that a corpus of any size "
        "fits on a disk. With `by`, a pool has texts of one value. See docs/scale/clusters.md. By default by "
        "window.",
    ]
    until: Annotated[
        Share | None,
        SCALE,
        "Stop once every 95% interval of a head's mean share is at most this wide. Intervals are by documents, over "
        "all statistics that are shares of weight; they are checked after 4, 8, 16, ... batches. Without it "
        "everything is measured.",
    ]

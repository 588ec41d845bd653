"""Where a command's results lie, what is drawn of them there, and what it says about that."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from attnscope.bundled import MODEL
from attnscope.cli.options import BUNDLED
from attnscope.cli.output import emit, json_text, new_console, print_note, working
from attnscope.read.chats import are_chats
from attnscope.read.files import files_below
from attnscope.read.image_text import pictured_of
from attnscope.read.images import images_of
from attnscope.read.sounds import sounds_of
from attnscope.read.texts import Corpus
from attnscope.read.videos import videos_of
from attnscope.store.files import file_state, read_as
from attnscope.store.folder import OwnedFolder, manifest_of
from attnscope.store.runs import RunFolder
from attnscope.store.signature import package_versions, short_hash
from attnscope.support.errors import AttnscopeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import xarray as xr
    from matplotlib.figure import Figure

    from attnscope.read.image_text import PicturedTexts
    from attnscope.read.images import Images
    from attnscope.read.sounds import Sounds
    from attnscope.read.videos import Videos
    from attnscope.store.signature import Signature

PAGE = "report.html"


class OutputFolder:
    """The folder asked for, or the one that the signature names; remembers whether the run was finished there before."""

    def __init__(self, asked: Path | None, usual: Callable[[Any], Path], parts: tuple[str, ...] = ()) -> None:
        self.asked, self.usual, self.parts = asked, usual, parts
        self.finished, self.signature = False, cast("Signature | None", None)
        self.found = False

    def __call__(self, signature: Signature | dict[str, Any]) -> Path:
        """Name the folder of a run with that signature."""
        from attnscope.store.files import RUN
        from attnscope.store.folder import manifest_of
        from attnscope.store.runs import is_finished
        from attnscope.store.signature import Signature

        self.signature = Signature.of(signature)
        folder = self.asked or self.usual(signature)
        manifest = manifest_of(folder)
        self.found = manifest is not None and bool(manifest.files.keys() - {RUN})
        self.finished = is_finished(folder) and all((folder / part).exists() for part in self.parts)
        return folder

    def reading(self, folder: Path) -> AbstractContextManager[None]:
        """Where results were there before, whatever goes wrong with them is told of in one line."""
        from attnscope.store.files import read_as

        return read_as(folder) if self.found else nullcontext()

    def say(self, folder: Path, page: Path | None) -> None:
        """Name the results, the page and the signature; on standard error, that nothing was measured anew."""
        console, where = new_console(), folder
        console.print(f"results: {where}", highlight=False, markup=False, soft_wrap=True)
        if page is not None:
            console.print(
                f"report:  {where}/{page.relative_to(folder)}", highlight=False, markup=False, soft_wrap=True
            )
        if self.signature is not None:
            console.print(
                f"signature: {self.signature.format()}", highlight=False, markup=False, soft_wrap=True
            )
        if self.finished:
            print_note(f"already finished in {where}: delete it or give another --out to measure again")


@dataclass(frozen=True)
class Forms:
    """In which forms a command prints its results."""

    record: Callable[[Any, Path], object]  # makes what is printed as JSON, from the results and their folder
    rows: Callable[[Any], None]  # print the results as CSV, and as tables
    tables: Callable[[Any], None]  # print the results as CSV, and as tables

    def show(
        self,
        results: object,
        place: OutputFolder,
        folder: Path,
        page: Path | None,
        *,
        as_json: bool,
        as_csv: bool,
    ) -> None:
        """Print results as JSON or CSV; else as tables, and where everything lies."""
        with place.reading(folder):
            if as_json:
                emit(json_text(self.record(results, folder)) + "\n")
            elif as_csv:
                self.rows(results)
            else:
                self.tables(results)
                place.say(folder, page)


def draw_views(folder: OwnedFolder, shown: object, draw: Callable[[Path], None]) -> Path | None:
    """Draw the page and the figures, unless they lie there already or nothing can be written."""
    from attnscope import __version__
    from attnscope.store.files import VIEWS, explained
    from attnscope.store.signature import short_hash

    drawn = short_hash([__version__, shown])
    page = folder.path / PAGE
    if folder.state.get("views") != drawn or PAGE not in folder.files:
        with explained(
            "write the page", "The results are safe: free some room and give the same command again"
        ):
            if folder.is_writable():
                with folder.replacing(*VIEWS, views=drawn) as new:
                    draw(new)
                from attnscope.results.figures.style import LACKING

                if LACKING:  # drawn again the next time: a font may have been installed
                    folder.forget([], views=None)
    return page if PAGE in folder.files else None


def usual_folder(command: str) -> Callable[[Any], Path]:
    """Name the folders of a command's runs, where nothing else is asked for: one for each signature."""

    def named(signature: Any) -> Path:
        from attnscope.measure.stored import default_out

        folder = default_out(signature)
        return folder.with_name(f"{command}-{folder.name}")

    return named


def draw_page(
    result: xr.Dataset | xr.DataTree,
    formats: tuple[str, ...],
    figures_of: Callable[[Any], Iterable[tuple[str, Figure]]],
    write: Callable[[Any, Path, dict[str, Figure]], Path],
) -> Path | None:
    """Draw the figures and the page of a finished run into its folder, unless they lie there already."""
    import json
    from pathlib import Path

    from attnscope.results.figures.style import save_figure
    from attnscope.store.runs import RunFolder

    def draw(place: Path) -> None:
        figures = dict(figures_of(result))
        (place / "figures").mkdir(parents=True, exist_ok=True)
        for name, figure in figures.items():
            save_figure(figure, place / "figures" / name, formats)
        write(result, place / PAGE, figures)

    with RunFolder(Path(result.attrs["run"]), json.loads(result.attrs["signature"])) as run:
        return draw_views(run, [sorted(getattr(result, "children", ())), formats], draw)


Answer = TypeVar("Answer")

_GPU = ("nvidia*", "nvhost*", "nvgpu*", "nvmap", "dxg", "kfd")  # in /dev, where PyTorch may find one
_INDEX = "model.safetensors.index.json"


@dataclass(frozen=True, eq=False)
class RepeatedCommand:
    """What is asked of a model and texts, images or sounds that lie in files here."""

    arguments: dict[str, Any]  # all that results depend on, but the files
    # folders of the model, of the tokenizer where it has its own, and of other models that are asked for beside it
    folders: tuple[Path, ...]
    given: InputFiles  # what is read
    files: dict[Path, tuple[int, ...]]  # all files of the folders, and their state at the first look

    @classmethod
    def of(
        cls,
        model: str,
        texts: Sequence[object] | None,
        *,
        command: str,
        tokenizer: str | None,
        device: str | None,
        field: str | None,
        by_line: bool,
        also: Sequence[str] = (),
        **arguments: Any,
    ) -> RepeatedCommand | None:
        """Take a command's arguments; None where only loading tells what they stand for."""
        places = [place for place in texts or () if isinstance(place, Path)]
        if len(places) != len(texts or ()):
            return None
        named = [model, *([] if tokenizer is None else [tokenizer]), *also]
        folders = tuple(MODEL if name == BUNDLED else Path(name) for name in named)
        arguments |= {"name": folders[0].name, "folders": [str(place.absolute()) for place in folders]}
        arguments |= {"field": field, "by_line": by_line, "has_tokenizer": tokenizer is not None}
        arguments |= {"command": command}
        with suppress(AttnscopeError, OSError, ValueError, TypeError, AttributeError):
            if model and _is_processor(device) and all(map(_is_plain, folders)):
                given = InputFiles.of(places or None, named=field, by_line=by_line)
                if given is None or (given.has_template and any(map(_writes_the_date, folders))):
                    return None
                return cls(arguments, folders, given, _states(folders))
        return None

    def key(self) -> str:
        """What tells most questions apart at once: arguments, versions, names and sizes of files."""
        sizes = [[str(path.absolute()), path.stat().st_size] for path in self.files]
        return _digest([self.arguments, package_versions(*self.given.packages), sizes])

    def digest(self) -> str:
        """What tells all questions apart: the content of everything too."""
        return _digest([self.key(), list(map(_sha256, self.files)), self.given.digests()])

    def is_answered_by(self, state: dict[str, Any]) -> bool:
        """Whether a run of that state is finished, and was an answer to this."""
        asked = state.get("asked", {}).get(self.key()) if state.get("complete") else None
        return asked is not None and asked == _digest([self.digest(), *_made(state)])

    def found(self, place: OutputFolder) -> RunFolder | None:
        """The run that answers this, where the command would find it."""
        command, name = self.arguments["command"], self.arguments["name"]
        usual = Path("attnscope-runs").glob(f"{f'{command}-' * (command != 'scan')}{escape(name)}-*")
        for folder in usual if place.asked is None else [place.asked]:
            manifest = manifest_of(folder)
            if manifest is not None and self.is_answered_by(manifest.state):
                signature = manifest.state.get("signature", {})
                if place(signature) == folder:
                    return RunFolder(folder, signature)
        return None

    def answer(self, place: OutputFolder, read: Callable[[RunFolder], Answer | None]) -> Answer | None:
        """What is read from the run that answers this; None where the model is needed, if only to say what is wrong."""
        with suppress(AttnscopeError, OSError):
            run = self.found(place)
            if run is None:
                return None
            with run, read_as(run.path):
                made = read(run) if run.complete else None
            if made is not None:
                working()
            return made
        return None

    def note(self, folder: Path, signature: dict[str, Any]) -> None:
        """Let the finished run of that folder know what it answers, unless something changed since it was asked."""
        with suppress(AttnscopeError, OSError):  # it is only that the next answer takes longer
            if signature["settings"]["device"] != "cpu":
                return
            key, digest = self.key(), self.digest()
            if not self.given.were_read_by(signature) or _states(self.folders) != self.files:
                return
            with OwnedFolder(folder, signature["command"]) as run:
                before = run.state.get("asked", {})
                asked = {key: _digest([digest, *_made(run.state)])}
                if run.state.get("complete") and before | asked != before:
                    run.write({}, asked=before | asked)


def _made(state: dict[str, Any]) -> list[Any]:
    """What a later command may have made otherwise in the same run: the analyses of an explanation."""
    return [state[name] for name in ("analyses", "also") if name in state]


def _writes_the_date(folder: Path) -> bool:
    """Whether a chat template there says something else each day."""
    files = [*folder.glob("*.json"), *folder.glob("*.jinja")]
    return any(b"strftime_now" in file.read_bytes() for file in files)


def _is_processor(device: str | None) -> bool:
    """Whether a model is put on the processor, as far as can be told without PyTorch."""
    if device is not None:
        return device == "cpu"
    places = Path("/dev")
    return sys.platform in ("linux", "darwin") and not any(any(places.glob(pattern)) for pattern in _GPU)


def _is_plain(folder: Path) -> bool:
    """Whether all that is read of a model lies in that folder itself."""
    named: dict[str, Any] = {}
    for name in ("config.json", _INDEX):
        if (folder / name).is_file():
            named |= json.loads((folder / name).read_bytes())
    shards = named.get("weight_map", {}).values()
    elsewhere = "transformers_weights" in named or any(
        "/" in str(shard) or "\\" in str(shard) for shard in shards
    )
    return folder.is_dir() and not elsewhere and not any(path.is_symlink() for path in folder.iterdir())


def _states(folders: tuple[Path, ...]) -> dict[Path, tuple[int, ...]]:
    return {path: file_state(path) for folder in folders for path in _files(folder)}


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.iterdir()) if path.is_file())


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True, eq=False)
class InputFiles:
    """All that a model may read of what was given, whichever it reads."""

    texts: Corpus | None  # as texts, or as chats; None where there is no text
    # as images, as sounds with the transcripts beside them, as texts with images, as videos; None where there are
    # none
    images: Images | None
    # as images, as sounds with the transcripts beside them, as texts with images, as videos; None where there are
    # none
    sounds: Sounds | None
    # as images, as sounds with the transcripts beside them, as texts with images, as videos; None where there are
    # none
    pictured: PicturedTexts | None
    is_chat: bool  # whether the texts are chats
    paths: tuple[Path, ...]  # every file, but those of the bundled sample
    # as images, as sounds with the transcripts beside them, as texts with images, as videos; None where there are
    # none
    videos: Videos | None = None
    # states of these at the first look
    states: dict[Path, tuple[int, ...]] = field(default_factory=dict[Path, tuple[int, ...]])

    @classmethod
    def of(cls, given: Sequence[Path] | None, *, named: str | None, by_line: bool) -> InputFiles | None:
        """Look at what lies there; None where something can be read only once."""
        places = list(given or ())
        pictured = pictured_of(places, named) if places else None
        images = images_of(places) if places else None
        sounds = sounds_of(places) if places else None
        videos = None
        with suppress(AttnscopeError):  # not videos alone
            videos = videos_of(places) if places and named is None else None
        is_chat = pictured is None and bool(places) and are_chats(places, named)
        texts = None
        if pictured is None and (videos is None or images is not None):
            with suppress(AttnscopeError):  # no texts there
                texts = Corpus.from_sources(
                    given, field=named, by_line=by_line and not is_chat, chats=is_chat
                )
        forms = (images, sounds, pictured, videos)
        if texts is None and all(form is None for form in forms):
            return None
        if texts is not None and texts.streams:
            return None
        beside = [file for form in forms if form is not None for file in form.files]
        paths = tuple(dict.fromkeys([*_below(places), *beside]))
        files = cls(texts, images, sounds, pictured, is_chat, paths, videos)
        files.states.update({path: file_state(path) for path in paths})
        return files

    @property
    def packages(self) -> tuple[str, ...]:
        """Packages that read these, beside the usual ones."""
        seen = (self.images, self.pictured, self.videos)
        pillow = ("pillow",) if any(form is not None for form in seen) else ()
        return (*pillow, "scipy") if self.sounds is not None else pillow

    @property
    def has_template(self) -> bool:
        """Whether a chat template may write them out."""
        return self.is_chat or self.pictured is not None

    def digests(self) -> dict[str, str]:
        """Hash of the contents in each form in which they may be read."""
        forms = {
            "texts": self.texts,
            "images": self.images,
            "sounds": self.sounds,
            "pictured": self.pictured,
            "videos": self.videos,
        }
        digests = {name: form.sha256() for name, form in forms.items() if form is not None}
        said = None if self.sounds is None else self.sounds.transcripts()
        return digests if said is None else {**digests, "said": short_hash(said)}

    def were_read_by(self, signature: dict[str, Any]) -> bool:
        """Whether a run of that signature read these contents, and no file changed since the first look."""
        digests = self.digests()
        known = signature["corpus"]["sha256"] in digests.values()
        if self.images is None and self.sounds is None and self.has_template:
            known = True  # written out by a template: the files say whether they are the same
        if signature.get("target") is not None:
            known = known and signature["target"]["sha256"] == digests.get("said")
        return known and self.states == {path: file_state(path) for path in self.paths}


def _below(places: Sequence[Path]) -> Iterator[Path]:
    for place in places:
        yield from files_below(place) if place.is_dir() else [place]

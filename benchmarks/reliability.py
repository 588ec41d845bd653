"""What stops, starves or damages a command, and what becomes of its results.

    python benchmarks/reliability.py                     # every class; power cuts and small disks want root on Linux
    python benchmarks/reliability.py kills damage --times 50

Real commands in processes of their own: real SIGKILL, SIGINT and SIGTERM at random moments; power cuts on a real ext4
that is shut down without writing its journal out; disks that are full; little memory; bytes flipped, cut off, zeroed
and deleted at random; manifests that name other people's files, and links; clocks that go backwards; the same command
twice at once; bad input. After each, the same command is given again, and its
results are held against those of a run that nothing disturbed, array for array and weight for weight.

For each class: how often it was tried; how often the command said clearly what is wrong (one or two lines, exit code
2); how often the results were those of the undisturbed run; **lost**: neither, or a traceback; **silently other**:
other numbers and exit code 0. The last two must be 0.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import itertools
import json
import os
import random
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

os.environ |= {"OMP_WAIT_POLICY": "passive", "ATTNSCOPE_FLUSH_SECONDS": "0.05", "HF_HUB_OFFLINE": "1"}

import torch
from bad_inputs import bad_inputs
from rich.console import Console
from rich.table import Table

import attnscope.cli  # so that no child has to import it
from attnscope.bundled import TEXT
from attnscope.measure import scan as _also_loaded  # noqa: F401
from attnscope.store.arrays import unpacked
from attnscope.store.files import MANIFEST, json_bytes
from attnscope.store.folder import manifest_of
from attnscope.store.runs import RunFolder

OUTCOMES = ("refused clearly", "the same", "lost", "silently other")
_SHUTDOWN, _WITHOUT_LOG = 0x8004587D, 2  # EXT4_IOC_SHUTDOWN and its flag
_TRAINING = """
task_pairs: 300
task_longest: 8
vocabulary: 320
batch_tokens: 300
updates: 12
validate_every: 3
log_every: 2
average: 2
threads: 1
metric: loss
model: recurrent
attention: {attention}
embedding_width: 8
encoder_width: 8
decoder_width: 16
"""


@dataclass
class Ended:
    """How a command ended."""

    code: int  # negative: the signal
    said: str
    seconds: float
    out: str = ""


@dataclass
class Work:
    """A command, and what of its results must not depend on what happened to it."""

    name: str
    words: Sequence[str]
    out: str
    results: Callable[[Path], object]
    seconds: float = 0.0
    expected: object = None
    done: Path = Path()


@dataclass
class Counts:
    tried: int = 0
    of: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)

    def note(self, outcome: str, what: str) -> None:
        self.tried += 1
        self.of[outcome] += 1
        if outcome in OUTCOMES[2:]:
            self.notes.append(f"{outcome}: {what}")


def start(words: Sequence[str], cwd: Path, said: Path, prepare: Callable[[], None] = lambda: None) -> int:
    """Run the command in a child that has everything imported already; its process number."""
    child = os.fork()
    if child:
        return child
    try:
        os.setsid()
        os.chdir(cwd)
        for descriptor, file in ((1, said.with_suffix(".out")), (2, said)):
            os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), descriptor)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        sys.stdin, sys.stdout, sys.stderr = (open(i, mode, closefd=False) for i, mode in enumerate("rww"))  # noqa: SIM115
        signal.signal(signal.SIGINT, signal.default_int_handler)
        prepare()
        sys.argv = ["attnscope", *words]
        attnscope.cli.main()
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else 0
    except BaseException:  # noqa: BLE001 what Python would do
        import traceback

        traceback.print_exc()
        code = 1
    with contextlib.suppress(Exception):
        sys.stderr.flush()
    os._exit(code)


def finish(child: int, said: Path, patience: float = 120.0) -> Ended:
    began = time.monotonic()
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            break
        if time.monotonic() - began > patience:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return Ended(-999, f"hangs for more than {patience:.0f} s", patience)
        time.sleep(0.005)
    out = said.with_suffix(".out")
    return Ended(
        os.waitstatus_to_exitcode(status),
        said.read_text(errors="replace"),
        time.monotonic() - began,
        out.read_text(errors="replace") if out.exists() else "",
    )


def run(words: Sequence[str], cwd: Path, prepare: Callable[[], None] = lambda: None, patience: float = 120.0) -> Ended:
    with tempfile.TemporaryDirectory() as place:
        said = Path(place, "said")
        return finish(start(words, cwd, said, prepare), said, patience)


def is_clear(ended: Ended) -> bool:
    """Exit code 2 and one or two lines, after those of progress and notes on what was damaged."""
    said = itertools.dropwhile(lambda line: not line.startswith("attnscope: "), ended.said.strip().splitlines())
    lines = [line for line in said if "will be recomputed" not in line]
    return ended.code == 2 and 1 <= len(lines) <= 2 and "Traceback" not in ended.said


def scanned(folder: Path) -> object:
    with RunFolder(folder, manifest_of(folder).state["signature"]) as opened:
        return opened.results().load().to_dict(), opened.load("summary").to_dict()


def explained(folder: Path) -> object:
    with RunFolder(folder, manifest_of(folder).state["signature"]) as opened:
        return {name: opened.load(name).to_dict() for name in opened.state["analyses"]["names"]}


def trained(folder: Path) -> object:
    return {name: (folder / name).read_bytes() for name in ("model.safetensors", "tokenizer.json", "config.json")}


def compared(folder: Path) -> object:
    scores = unpacked((folder / "scores.npz").read_bytes())
    kept = ("score", "lower", "upper", "parameters", "score_by_length", "alignment_error_rate")
    texts = {path.name: path.read_bytes() for path in (folder / "translations").glob("*.txt")}
    return {name: scores[name].values.tolist() for name in kept if name in scores}, texts


def aligned(folder: Path) -> object:
    return {name: (folder / name).read_bytes() for name in ("links.txt", "run.json")}


def changed(folder: Path) -> object:
    with RunFolder(folder, manifest_of(folder).state["signature"]) as opened:
        return opened.load("changes").to_dict()


def written(path: Path) -> object:
    """A file, or all files of a folder."""
    files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
    return {str(file.relative_to(path)): file.read_bytes() for file in files}


def works(place: Path) -> list[Work]:
    """The commands that write folders, each done once undisturbed."""
    (place / "text").mkdir()
    for file in sorted(TEXT.glob("*.txt"))[:4]:
        shutil.copy(file, place / "text")
    for attention in ("none", "additive"):
        (place / f"{attention}.yaml").write_text(_TRAINING.format(attention=attention))
    scan = "scan bundled ../text --batch-size 1 --stride 60 --out out"
    explain = "explain bundled ../text --window 32 --limit 3 --no-report --out out"
    compare = "compare ../none.yaml ../additive.yaml --out out --beams 1 --resamples 20 --threads 1 --no-report"
    found = [
        Work("scan", scan.split(), "out", scanned),
        Work("explain", explain.split(), "out", explained),
        Work("train", ["train", "../additive.yaml", "--out", "out"], "out", trained),
        Work("compare", compare.split(), "out", compared),
    ]
    before = "../undisturbed-"
    text = f"{before}compare/out/text/source.txt"
    model = f"{before}train/out"
    found += [
        Work(
            "align",
            f"align {model} {text} --target {before}compare/out/text/reference.txt --out out".split(),
            "out",
            aligned,
        ),
        Work("diff", f"diff {before}scan/out {before}scan/out --no-report --out out".split(), "out", changed),
        Work("export", f"runs export {before}scan/out --to csv --out out".split(), "out", written),
        Work("translate", f"translate {model} {text.split(maxsplit=1)[0]} --out out".split(), "out", written),
    ]
    for work in found:
        home = place / f"undisturbed-{work.name}"
        home.mkdir()
        ended = run(work.words, home)
        if ended.code:
            raise SystemExit(f"{work.name} fails undisturbed: {ended.said}")
        work.seconds, work.done = ended.seconds, home / work.out
        work.expected = work.results(work.done)
    return found


def judge(work: Work, home: Path, ended: Ended) -> tuple[str, str]:
    """What became of it, after the last try."""
    what = f"{work.name}: exit {ended.code}, {ended.said.strip()[-300:]!r}"
    if ended.code == 0:
        try:
            same = _equal(work.results(home / work.out), work.expected)
        except Exception as error:  # noqa: BLE001
            return "lost", f"{work.name}: {error!r}"
        return ("the same", "") if same else ("silently other", work.name)
    return ("refused clearly", what) if is_clear(ended) else ("lost", what)


def _equal(one: object, other: object) -> bool:
    import numpy as np

    try:
        np.testing.assert_equal(one, other)
    except AssertionError:
        return False
    return True


@contextlib.contextmanager
def folder(place: Path) -> Iterator[Path]:
    home = Path(tempfile.mkdtemp(dir=place))
    try:
        yield home
    finally:
        shutil.rmtree(home, ignore_errors=True)


def again(work: Work, home: Path) -> tuple[str, str]:
    if work.name == "export" and (home / work.out).exists():  # it never writes over what is there
        return judge(work, home, Ended(0, "", 0.0))
    return judge(work, home, run(work.words, home))


def kills(place: Path, all_works: list[Work], times: int, draw: random.Random) -> Counts:
    """SIGKILL at up to three random moments, then the same command to its end."""
    counts = Counts()
    for number in range(times):
        work = all_works[number % len(all_works)]
        with folder(place) as home:
            for _ in range(draw.randint(1, 3)):
                child = start(work.words, home, home / "said")
                time.sleep(draw.uniform(0, work.seconds))
                os.killpg(child, signal.SIGKILL)
                os.waitpid(child, 0)
            outcome, what = again(work, home)
            counts.note("lost" if outcome == "refused clearly" else outcome, what)
    return counts


def signals(place: Path, all_works: list[Work], times: int, draw: random.Random) -> Counts:
    """Ctrl-C or SIGTERM at a random moment; a command says so in a line, and goes on when it is given again."""
    counts = Counts()
    for number in range(times):
        work = all_works[number % len(all_works)]
        with folder(place) as home:
            which = draw.choice([signal.SIGINT, signal.SIGTERM])
            child = start(work.words, home, home / "said")
            time.sleep(draw.uniform(0.05, work.seconds))
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, which)
            ended = finish(child, home / "said")
            expected = {0, 130} if which == signal.SIGINT else {0, -signal.SIGTERM}
            outcome, what = again(work, home)
            if ended.code not in expected or "Traceback" in ended.said:
                outcome, what = ("lost", f"{work.name} on {which.name}: exit {ended.code}, {ended.said[-300:]!r}")
            counts.note("lost" if outcome == "refused clearly" else outcome, what)
    return counts


def starts(place: Path, _: list[Work], times: int, draw: random.Random) -> Counts:
    """Ctrl-C in the first seconds, while Python and PyTorch are still loaded: one line and exit code 130."""
    counts = Counts()
    for _number in range(times):
        with folder(place) as home:
            interruptible = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
            code = interruptible + "from attnscope.__main__ import main; main()"
            child = subprocess.Popen(
                [sys.executable, "-c", code, "scan", "--no-report", "--stride", "5"],
                cwd=home, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )  # fmt: skip
            time.sleep(draw.uniform(0.3, 7.0))
            child.send_signal(signal.SIGINT)
            _, said = child.communicate(timeout=60)
            clear = child.returncode == 130 and said.strip() == "attnscope: stopped"
            counts.note("refused clearly" if clear else "lost", f"exit {child.returncode}: {said[-300:]!r}")
    return counts


def power(place: Path, all_works: list[Work], times: int, draw: random.Random) -> Counts:
    """An ext4 of its own is shut down at a random moment without writing anything more, and mounted again."""
    counts = Counts()
    for number in range(times):
        work = all_works[number % len(all_works)]
        with folder(place) as home, disk(home) as mount:
            (mount / "home").mkdir()
            for path in (place / "text", place / "none.yaml", place / "additive.yaml"):
                (shutil.copytree if path.is_dir() else shutil.copy)(path, mount / path.name)
            os.sync()
            child = start(work.words, mount / "home", home / "said")
            time.sleep(draw.uniform(0.1, work.seconds))
            handle = os.open(mount, os.O_RDONLY)
            fcntl.ioctl(handle, _SHUTDOWN, struct.pack("I", _WITHOUT_LOG))
            os.close(handle)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            mount_again(home)
            outcome, what = again(work, mount / "home")
            counts.note("lost" if outcome == "refused clearly" else outcome, what)
    return counts


@contextlib.contextmanager
def disk(home: Path, megabytes: int = 96) -> Iterator[Path]:
    image, mount = home / "disk", home / "mount"
    mount.mkdir()
    with image.open("wb") as file:
        file.truncate(megabytes << 20)
    subprocess.run(["mkfs.ext4", "-q", image], check=True)
    subprocess.run(["mount", "-o", "loop", image, mount], check=True)
    try:
        yield mount
    finally:
        subprocess.run(["umount", "-l", mount], check=False)


def mount_again(home: Path) -> None:
    for _ in range(50):
        if not subprocess.run(["umount", home / "mount"], check=False, capture_output=True).returncode:
            break
        time.sleep(0.1)
    subprocess.run(["mount", "-o", "loop", home / "disk", home / "mount"], check=True)


def full(place: Path, all_works: list[Work], times: int, draw: random.Random) -> Counts:
    """A disk too small by a random part; it must be said, and after some room is made the command goes on."""
    counts = Counts()
    for number in range(times):
        work = all_works[number % len(all_works)]
        need = sum(path.stat().st_size for path in work.done.rglob("*") if path.is_file())
        with folder(place) as home:
            mount = home / "small"
            mount.mkdir()
            size = int(need * draw.uniform(0.02, 0.9))
            subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", mount], check=True)
            try:
                for path in (place / "text", place / "none.yaml", place / "additive.yaml"):
                    (home / path.name).symlink_to(path)
                words = [str(mount / "out") if word == "out" else word for word in work.words]
                ended = run(words, mount)
                said = is_clear(ended) or ended.code == 0
                subprocess.run(["mount", "-o", f"remount,size={8 * need + (64 << 20)}", mount], check=True)
                outcome, what = again(work, mount)
                if not said:
                    outcome, what = "lost", f"{work.name}: exit {ended.code}, {ended.said.strip()[-300:]!r}"
                counts.note("lost" if outcome == "refused clearly" else outcome, what)
            finally:
                subprocess.run(["umount", "-l", mount], check=False)
    return counts


def memory(place: Path, all_works: list[Work], times: int, draw: random.Random) -> Counts:
    """Little more address space than the process has at its start."""
    now = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    counts = Counts()
    for number in range(times):
        work = all_works[number % len(all_works)]
        with folder(place) as home:
            limit = now + int(draw.uniform(1, 1500) * (1 << 20))
            ended = run(work.words, home, lambda limit=limit: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)))
            first = judge(work, home, ended)
            outcome, what = again(work, home) if first[0] == "refused clearly" else first
            counts.note(first[0] if outcome == "the same" else "lost", what)
    return counts


def damage(place: Path, all_works: list[Work], times: int, draw: random.Random) -> Counts:
    """A random file of a finished or unfinished folder: a bit flipped, its end cut off, zeroed, emptied, deleted."""
    counts = Counts()
    for number in range(times):
        work = all_works[number % len(all_works)]
        with folder(place) as home:
            if draw.random() < 0.5:
                shutil.copytree(work.done, home / work.out)
            else:
                child = start(work.words, home, home / "said")
                time.sleep(draw.uniform(0.3, 1.0) * work.seconds)
                os.killpg(child, signal.SIGKILL)
                os.waitpid(child, 0)
            files = [path for path in (home / work.out).rglob("*") if path.is_file() and path.name != "lock"]
            if not files:
                continue
            victim = draw.choice(files)
            _spoil(victim, draw)
            ended = run(work.words, home)
            outcome, what = judge(work, home, ended)
            if outcome == "refused clearly" and "--repair" in ended.said:
                repaired = run([*work.words, "--repair"], home)
                if judge(work, home, repaired)[0] != "the same":
                    outcome, what = "lost", f"{work.name} after --repair: {repaired.said[-300:]!r}"
            counts.note(outcome, f"{what} ({victim.relative_to(home)})")
    return counts


def hostile(place: Path, all_works: list[Work], times: int, draw: random.Random) -> Counts:
    """A manifest under a right checksum that names files outside, or holds anything in any place."""
    counts = Counts()
    for number in range(times):
        work = _owned(all_works, number)
        with folder(place) as home:
            precious = home / "home" / "thesis.tex"
            precious.parent.mkdir()
            precious.write_text("mine")
            shutil.copytree(work.done, home / work.out)
            content = json.loads((home / work.out / MANIFEST).read_bytes())
            del content["sha256"]
            what = _forge(content, draw, str(precious))
            checksum = hashlib.sha256(json_bytes(content)).hexdigest()
            (home / work.out / MANIFEST).write_bytes(json_bytes(content | {"sha256": checksum}))
            outcome, said = judge(work, home, run(work.words, home))
            if not precious.exists() or precious.read_text() != "mine":
                outcome = "lost"
            counts.note(outcome, f"{said} ({what})")
    return counts


def _forge(content: dict, draw: random.Random, precious: str) -> str:
    name = draw.choice(["../home/thesis.tex", precious, "pieces/../../home/thesis.tex"])
    values = [None, -1, "x", [], {}, [[]], {"x": {}}, True, 1e300]
    match draw.randrange(5):
        case 0:
            content["undefined"].append(name)
        case 1:
            content["files"][name] = [5, "0" * 64]
            content["state"].pop("complete", None)
        case 2:
            content[draw.choice(["command", "files", "growing", "undefined", "state"])] = draw.choice(values)
        case 3:
            content["state"][draw.choice([*content["state"], "complete", "signature"])] = draw.choice(values)
        case _:
            signature = content["state"].get("signature", {})
            signature[draw.choice([*signature, "settings", "model"])] = draw.choice(values)
    return str(content)[:300]


def _owned(all_works: list[Work], number: int) -> Work:
    """Those that leave a folder with a manifest."""
    owned = [work for work in all_works if (work.done / MANIFEST).is_file()]
    return owned[number % len(owned)]


def links(place: Path, all_works: list[Work], times: int, draw: random.Random) -> Counts:
    """A file or folder in a run is a link to another place, where nothing may change."""
    counts = Counts()
    for number in range(times):
        work = _owned(all_works, number)
        with folder(place) as home:
            shutil.copytree(work.done, home / work.out)
            victim = draw.choice(sorted((home / work.out).rglob("*")))
            elsewhere = home / "elsewhere"
            victim.rename(elsewhere)
            if draw.random() < 0.3 and elsewhere.is_file():
                elsewhere.write_text("mine")
            victim.symlink_to(elsewhere)
            before = written(elsewhere)
            outcome, said = judge(work, home, run(work.words, home))
            if written(elsewhere) != before:
                outcome = "lost"
            counts.note(outcome, f"{said} ({victim.relative_to(home)})")
    return counts


def clocks(place: Path, all_works: list[Work], times: int, draw: random.Random) -> Counts:
    """SIGKILL at a random moment, then the rest at a clock that goes backwards by up to a year at every look."""
    counts = Counts()
    for number in range(times):
        work = all_works[number % len(all_works)]
        with folder(place) as home:
            child = start(work.words, home, home / "said")
            time.sleep(draw.uniform(0, work.seconds))
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            for path in home.rglob("*"):
                os.utime(path, (draw.uniform(0, 4e9),) * 2, follow_symlinks=False)
            if work.name == "export" and (home / work.out).exists():
                continue
            outcome, what = judge(work, home, run(work.words, home, _backwards))
            counts.note("lost" if outcome == "refused clearly" else outcome, what)
    return counts


def _backwards() -> None:
    real = time.time
    steps = itertools.count()
    time.time = lambda: real() - next(steps) % 365 * 86_400.0


def _spoil(victim: Path, draw: random.Random) -> None:
    content = bytearray(victim.read_bytes())
    how = draw.choice(["flip", "flip", "cut", "zero", "empty", "delete"]) if content else "delete"
    if how == "delete":
        victim.unlink()
        return
    if how == "flip":
        content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    elif how == "cut":
        del content[draw.randrange(len(content)) :]
    elif how == "zero":
        at = draw.randrange(len(content))
        content[at : at + 512] = bytes(len(content[at : at + 512]))
    else:
        content.clear()
    victim.write_bytes(content)


def twice(place: Path, all_works: list[Work], times: int, draw: random.Random) -> Counts:
    """The same command twice at once: one does it, the other is refused or finds it done."""
    counts = Counts()
    for number in range(times):
        work = all_works[number % len(all_works)]
        with folder(place) as home:
            one = start(work.words, home, home / "one")
            time.sleep(draw.uniform(0, 0.5))
            other = start(work.words, home, home / "other")
            ends = [finish(child, home / name) for child, name in ((one, "one"), (other, "other"))]
            judged = [judge(work, home, ended) for ended in ends]
            outcomes = {outcome for outcome, _ in judged}
            if "the same" in outcomes and not outcomes & set(OUTCOMES[2:]):
                counts.note("the same", "")
            else:
                counts.note("lost", str(judged))
    return counts


def inputs(place: Path, _: list[Work], times: int, draw: random.Random) -> Counts:  # noqa: ARG001
    """Bad input to every command: exit code 2, one or two lines, within seconds."""
    counts = Counts()
    for what, words, prepare in bad_inputs(place):
        with folder(place) as home:
            prepare(home)
            ended = run(words, home, _half_of_memory, patience=30.0)
            told = f"{what}: exit {ended.code}, {ended.seconds:.1f} s, {ended.said[-200:]!r}"
            counts.note("refused clearly" if is_clear(ended) else "lost", told)
    return counts


def tiny(place: Path, _: list[Work], times: int, draw: random.Random) -> Counts:
    """Texts of 1 to 40 words, with page and figures: a result, or one or two lines."""
    counts = Counts()
    for number in range(times):
        text = " ".join(draw.choices("a I . the dog ran 猫 of and 3.5".split(), k=draw.randint(1, 40)))  # noqa: SIM905
        command = ("scan", "explain", "intervene", "roles", "walk")[number % 5]
        more = draw.choice(([], ["--words", "unicode"], ["--groups", "types"])) if command == "scan" else []
        with folder(place) as home:
            (home / "text.txt").write_text(text)
            words = [command, "bundled", text if command == "walk" else "text.txt", *more]
            ended = run(words, home, _half_of_memory, patience=120.0)
            done = "refused clearly" if is_clear(ended) else "lost"
            counts.note("the same" if ended.code == 0 else done, f"{words}: {ended.said[-200:]!r}")
    return counts


def ambient(place: Path, all_works: list[Work], times: int, draw: random.Random) -> Counts:
    """Modes of PyTorch that somebody set before: another default type, autocast, inference mode, no gradients."""
    counts = Counts()
    modes = [partial(torch.set_default_dtype, torch.float64)]
    modes += [context.__enter__ for context in (torch.autocast("cpu"), torch.inference_mode(), torch.no_grad())]
    for number in range(times):
        work, chosen = all_works[number % len(all_works)], draw.sample(modes, draw.randint(1, len(modes)))
        with folder(place) as home:
            counts.note(*judge(work, home, run(work.words, home, lambda chosen=chosen: [mode() for mode in chosen])))
    return counts


def _half_of_memory() -> None:
    """What reads without end is stopped before the machine is."""
    limit = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


CLASSES: dict[str, tuple[str, Callable[..., Counts], int]] = {
    "kills": ("SIGKILL at random moments", kills, 96),
    "signals": ("Ctrl-C, SIGTERM at random moments", signals, 32),
    "starts": ("Ctrl-C in the first 7 seconds", starts, 10),
    "power": ("power cuts (ext4 shut down)", power, 32),
    "full": ("full disks", full, 32),
    "memory": ("little memory", memory, 24),
    "damage": ("random damage to files", damage, 200),
    "hostile": ("hostile folders", hostile, 120),
    "links": ("links in folders", links, 60),
    "clocks": ("clocks that go backwards", clocks, 24),
    "twice": ("two writers", twice, 16),
    "inputs": ("bad input", inputs, 1),
    "tiny": ("texts of 1 to 40 words", tiny, 40),
    "ambient": ("modes of PyTorch set before", ambient, 24),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("classes", nargs="*", choices=[*CLASSES, []], help="Classes to try; all by default")
    parser.add_argument("--times", type=int, help="Tries of each class, instead of its own number")
    parser.add_argument("--seed", type=int, default=0, help="Seed of the random moments and damages")
    options = parser.parse_args()
    torch.set_num_threads(1)  # threads do not survive a fork
    table = Table(title="reliability")
    for heading in ("class", "tried", *OUTCOMES):
        table.add_column(heading, justify="left" if heading == "class" else "right")
    with tempfile.TemporaryDirectory(prefix="attnscope-reliability-") as folder_name:
        place = Path(folder_name)
        all_works = works(place)
        for name in options.classes or CLASSES:
            title, attack, times = CLASSES[name]
            if name in {"power", "full"} and os.getuid():
                print(f"{title}: only root can mount a disk", file=sys.stderr)
                continue
            counts = attack(place, all_works, options.times or times, random.Random(options.seed))
            table.add_row(title, str(counts.tried), *(str(counts.of[outcome]) for outcome in OUTCOMES))
            print(name, counts.tried, dict(counts.of), file=sys.stderr)
            for note in counts.notes:
                print("  ", note, file=sys.stderr)
    Console().print(table)


if __name__ == "__main__":
    main()

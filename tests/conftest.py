"""What all tests share: shapes checked at run time, the folders of real data and models."""

import gc
import logging
import os
import sys
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path

if "PYTEST_XDIST_WORKER" in os.environ:  # before PyTorch is imported: there are as many workers as cores
    os.environ.setdefault("OMP_NUM_THREADS", "1")

import jaxtyping
import pytest
import torch
from matplotlib import font_manager
from threadpoolctl import threadpool_limits

from tests.shape_checks import install
from tests.undrawn_figures import sketched

if "PYTEST_XDIST_WORKER" in os.environ:  # plugins have loaded NumPy: two threads take ten times as long for an SVD
    threadpool_limits(1)

gc.disable()  # until all is collected: nothing of what is imported becomes garbage

# what is killed loses nothing without it, and no test cuts the power; a file must still be open
os.fsync = os.fstat

if not torch.cuda.is_available():  # before Triton is imported: kernels run on the CPU, in its interpreter
    os.environ.setdefault("TRITON_INTERPRET", "1")

os.environ["LC_ALL"] = "C.UTF-8"  # messages are in English, whoever runs the tests

# as it is within our functions, which then need not set it
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "critical")
# of small models: to start threads takes longer than to read
os.environ.setdefault("HF_DEACTIVATE_ASYNC_LOAD", "1")
logging.getLogger("accelerate").setLevel(logging.CRITICAL)

if "ATTNSCOPE_TEST_BARE" in os.environ:  # fonts that are installed here are not found; nor is a browser
    font_manager.findSystemFonts = lambda *_, **__: []

if find_spec("torchvision") is not None and not torch.cuda.is_available():
    # before transformers imports it: PyPI's wheel has its operators for CUDA alone, and no test calls them
    for operator in ("nms", "qnms"):
        torch.library.define(f"torchvision::{operator}", "(Tensor boxes, Tensor scores, float limit) -> Tensor")

_ROOT = Path(__file__).parents[1]
_SOURCES = [_ROOT / "src", *_ROOT.glob("packages/*/src")]
install(
    [
        ".".join(path.relative_to(source).with_suffix("").parts).removesuffix(".__init__")
        for source in _SOURCES
        for path in source.rglob("*.py")
        # machine code takes no wrapped functions; configurations are checked by transformers, which wants them bare
        if path.stem not in {"compiled", "_triton_kernels", "_triton_parts", "_triton_results", "configs", "__init__"}
    ]
)

_BESIDE = Path(__file__).parents[2] / "shared"


#: Files of `pytest -m quick`, a minute on two cores: words and layout, mathematics, kernels, reading, a scan.
_QUICK = (
    *("test_contributing.py", "test_docstrings.py", "test_head_names.py", "test_packages.py", "test_words.py"),
    *("capture/test_weights.py", "detection/test_scores.py", "explanation/arrays", "intervention/test_arrays.py"),
    *("kernels/test_measure.py", "measure/test_scan.py", "read/test_files.py", "read/test_texts.py", "statistics"),
)


def pytest_collection_modifyitems(items):
    """First what one worker then has for itself: commands in forks of a server, and the browser.

    Then what takes long, documents too: among the last tests it would leave the other workers without work.
    """
    quick = tuple(str(_ROOT / "tests" / name) for name in _QUICK)
    for item in items:
        if str(item.path).startswith(quick):
            item.add_marker("quick")
    forking = {
        item.path for item in items if vars(getattr(item, "module", pytest)).keys() & {"Started", "in_two_processes"}
    }
    in_browser = [item for item in items if "browser" in getattr(item, "fixturenames", ())]
    for item in in_browser:
        item.add_marker("browser")
    browsing = {item.path for item in in_browser}

    def order(item):
        if item.path in forking | browsing:
            return 0 if item.path in forking else 1
        return 2 if item.get_closest_marker("slow") or item.path.suffix == ".md" else 3

    items.sort(key=order)


def pytest_collection_finish():
    """Leave what imports and collection made out of every collection of garbage: a tenth of the tests' time."""
    gc.freeze()
    gc.enable()
    gc.set_threshold(20_000, 20, 50)


def pytest_sessionfinish():
    """Leave what is alive out of the five collections with which pytest ends: they take a second each."""
    gc.collect()
    gc.freeze()


_DEVICE = "ATTNSCOPE_TEST_DEVICE"
_DEVICES = [os.environ[_DEVICE]] if _DEVICE in os.environ else ["cuda"]


@pytest.fixture(params=_DEVICES)
def device(request, monkeypatch):
    """Names the device of a test: the one that ATTNSCOPE_TEST_DEVICE names, else a GPU, or a simulated one.

    The same facts are tested on the CPU by the other tests.
    """
    if request.param == "cuda" and not torch.cuda.is_available() and _DEVICE not in os.environ:
        from tests.simulated_gpu import gpu  # it imports the package, which is wrapped by now

        with gpu(monkeypatch):
            yield request.param
    else:
        torch.empty(0, device=request.param)  # fails where there is none
        yield request.param


_DRAWN = (
    "tests.packages.yamamoto2023.test_figures",
    "tests.results.figures",
    "tests.cli.test_scan_command",
    "tests.results.page.test_page_in_browser",
    "tests.results.page.test_accessible",
    "tests.results.page.test_in_notebooks",
    "tests.packages.relations.test_page",
)


@pytest.fixture(scope="module", autouse=True)
def figures_are_sketched(request):
    """Pages and files of figures hold what is in the figures; they are drawn where that is what is tested.

    Drawing takes most of the time of a command.
    """
    with nullcontext() if request.module.__name__.startswith(_DRAWN) else sketched():
        yield


@pytest.fixture(scope="module", autouse=True)
def records_are_forgotten():
    """Statistics and others that a file registers as its own are gone after it."""
    yield
    registry = sys.modules.get("attnscope.report.registry")
    if registry is not None:
        registry.forget()


@pytest.fixture
def no_types(monkeypatch):
    """What a user has: no annotation is checked when a function is called."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


@pytest.fixture(scope="session")
def tokenizer():
    """The bundled model's; a file may have another of this name."""
    from transformers import AutoTokenizer

    from attnscope.bundled import MODEL

    return AutoTokenizer.from_pretrained(MODEL)


@pytest.fixture(scope="session")
def data():
    return _folder("ATTNSCOPE_DATA", _BESIDE / "data")


@pytest.fixture(scope="session")
def models():
    return _folder("ATTNSCOPE_MODELS", _BESIDE / "models")


def _folder(variable, default):
    folder = Path(os.environ.get(variable, default))
    if not folder.is_dir():
        pytest.skip(f"{folder} is not there: set {variable} to the folder of real data to run this test")
    return folder

"""Figures that are made but not drawn: laying out and drawing text takes most of the time of a page."""

import hashlib
import html
from contextlib import contextmanager
from unittest.mock import patch

import numpy as np
from matplotlib.collections import Collection
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.text import Text


@contextmanager
def sketched():
    """Within, the file of a figure has its texts and a digest: other texts, lines or colours are another file.

    For tests of which figures there are, and when they are written anew. `tests/results/figures` has how they look.
    """

    def write(figure, file, **_):
        digest = hashlib.sha256()
        for part in _parts(figure):
            digest.update(part)
        texts = "".join(f"<text>{html.escape(text.get_text())}</text>" for text in figure.findobj(Text))
        file.write(f"<svg><!-- {digest.hexdigest()} -->{texts}</svg>".encode())

    with patch.object(Figure, "savefig", write), patch.object(ConstrainedLayoutEngine, "execute"):
        yield


def _parts(figure):
    for artist in figure.findobj():
        yield type(artist).__name__.encode()
        match artist:
            case Text():
                yield artist.get_text().encode()
            case Line2D():
                yield np.asarray(artist.get_xydata()).tobytes()
            case AxesImage():
                yield np.ma.getdata(artist.get_array()).tobytes()
            case Collection():
                yield np.ma.getdata(artist.get_offsets()).tobytes()
                yield b"".join(path.vertices.tobytes() for path in artist.get_paths())
                yield artist.get_facecolor().tobytes()
            case Patch():
                yield artist.get_path().vertices.tobytes() + repr(artist.get_facecolor()).encode()

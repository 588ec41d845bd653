"""An image as a page shows it: what the model read, small."""

from __future__ import annotations

import base64
import io
from typing import TYPE_CHECKING, Any

import torch

from attnscope.capture import Processor

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

_PIXELS = 448  # on the longer side


def jpeg(pixels: Tensor, processor: Processor) -> str:
    """What a model reads of an image, base64 of a small JPEG; "" without Pillow.

    The processor's mean and standard deviation are taken back; without them, the range of the numbers is spread.

    Parameters
    ----------
    pixels
        Numbers of the image, ``(channel, row, column)``.
    processor
        Image processor that made them; None where it is not known.

    Examples
    --------
    >>> from base64 import b64decode
    >>> from io import BytesIO
    >>> from types import SimpleNamespace
    >>> from PIL import Image
    >>> processor = SimpleNamespace(do_normalize=True, image_mean=[0.5] * 3, image_std=[0.5] * 3)
    >>> white = jpeg(torch.ones(3, 4, 4), processor)  # 1 is white, as this one makes its numbers
    >>> Image.open(BytesIO(b64decode(white))).getpixel((0, 0))
    (255, 255, 255)
    """
    try:
        from PIL import Image as pillow  # noqa: N813
    except ImportError:
        return ""
    values = pixels.float().cpu()
    mean, spread = (getattr(processor, name, None) for name in ("image_mean", "image_std"))
    if getattr(processor, "do_normalize", False) and mean is not None and len(mean) == len(values):
        values = values * values.new_tensor(spread)[:, None, None] + values.new_tensor(mean)[:, None, None]
    elif processor is None:
        values = (values - values.amin()) / (values.amax() - values.amin()).clamp_min(1e-9)
    bytes_ = (values.clamp(0, 1) * 255).round().to(torch.uint8).permute(1, 2, 0).numpy()
    return _packed(
        pillow.fromarray(bytes_[..., 0] if bytes_.shape[-1] == 1 else bytes_[..., :3]).convert("RGB")
    )


def jpeg_of(pixels: np.ndarray, shape: float) -> str:
    """An image that was given, ``(row, column, 3)`` of 8 bits, drawn to so many columns for a row; "" without Pillow.

    For processors that scale an image to their patches, without cutting anything off.

    Parameters
    ----------
    pixels
        Numbers of the image, ``(row, column, 3)``, 8 bits.
    shape
        Columns for a row.

    Examples
    --------
    >>> import numpy as np
    >>> jpeg_of(np.zeros((4, 4, 3), dtype=np.uint8), shape=1.0)[:4]  # base64 of the start of every JPEG
    '/9j/'
    """
    try:
        from PIL import Image as pillow  # noqa: N813
    except ImportError:
        return ""
    longer = max(1.0, shape), max(1.0, 1 / shape)
    size = (round(_PIXELS * longer[0] / max(longer)), round(_PIXELS * longer[1] / max(longer)))
    return _packed(pillow.fromarray(pixels).resize(size))


def _packed(image: Any) -> str:
    image.thumbnail((_PIXELS, _PIXELS))
    file = io.BytesIO()
    image.save(file, "JPEG", quality=85)
    return base64.b64encode(file.getvalue()).decode("ascii")

"""Models in one .gguf file, as llama.cpp stores them: converted once into a folder of the cache."""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub import constants
from transformers.utils.import_utils import is_gguf_available

from attnscope.capture.borrow import quiet
from attnscope.capture.placement import no_larger_than
from attnscope.support.errors import AttnscopeError, explaining

SUFFIX = ".gguf"


def converted(file: Path) -> Path:
    """The folder with the weights of a .gguf file as float32 in safetensors, its config and its tokenizer.

    Quantised weights become the numbers that they stand for. Each content of a file has a folder of its own.
    """
    with file.open("rb") as opened:
        if opened.read(4) != b"GGUF":
            raise AttnscopeError(f"{file} is not a GGUF file: it does not start with GGUF. Download it again")
        opened.seek(0)
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
    folder = Path(constants.HF_HOME) / "attnscope" / "gguf" / digest
    if not folder.is_dir():
        if not is_gguf_available():
            raise AttnscopeError(f"{file} is a GGUF file, which needs gguf: pip install 'attnscope[gguf]'")
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
            _convert(file, Path(temporary) / digest)
            try:
                (Path(temporary) / digest).rename(folder)
            except OSError:  # another process was faster
                if not folder.is_dir():
                    raise
    return folder


def _sizes(file: Path) -> list[int]:
    """Sizes of the tensors of a file that describes no more layers than it has tensors."""
    from gguf import GGUFReader

    stored = GGUFReader(file)
    for name, field in stored.fields.items():
        if name.endswith(".block_count") and not 0 < (layers := int(field.contents())) <= len(stored.tensors):
            raise AttnscopeError(f"{file.name} describes {layers:,} layers; it has {len(stored.tensors):,} tensors")
    return [int(tensor.n_elements) for tensor in stored.tensors]


def _convert(file: Path, folder: Path) -> None:
    source = str(file.parent)
    advice = "Is it complete, and of an architecture that transformers reads?"
    with quiet(), explaining(f"{file} cannot be converted", advice), no_larger_than(_sizes(file), file.name):
        made: Any = transformers.AutoModelForCausalLM.from_pretrained(
            source,
            gguf_file=file.name,
            local_files_only=True,
            dtype=torch.float32,
            quantization_config=transformers.GgufConfig(dequantize=True),
            output_loading_info=True,
        )
        model, report = made
        if report["missing_keys"]:
            raise AttnscopeError(f"{file} lacks {min(report['missing_keys'])}. Is the file complete?")
        model.save_pretrained(folder)
        tokenizer = transformers.AutoTokenizer.from_pretrained(source, gguf_file=file.name, local_files_only=True)
        tokenizer.save_pretrained(folder)

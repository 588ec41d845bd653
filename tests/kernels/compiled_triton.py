"""Compile the Triton kernel for a GPU that is not here, as a call would: what the interpreter forgives, this does not.

    python -m tests.kernels.compiled_triton 80 90 [--only BERT]

prints a line for each call and compute capability: registers a thread, bytes that do not fit into them, bytes of shared
memory. The process must not be one of Triton's interpreter.
"""

import argparse
import re
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver

from attnscope.kernels import _triton_kernels
from attnscope.kernels import triton as _triton
from attnscope.kernels.call import AttentionCall, Need, RowMeasures
from attnscope.kernels.masks import OffsetBias
from attnscope.kernels.reference import causal_mask

BINS = (9, 17, 33, 65, 129, 257)


class Elsewhere:
    """A driver of a GPU that is not here."""

    def __init__(self, capability):
        self.capability = capability

    def get_current_target(self):
        return GPUTarget("cuda", self.capability, 32)

    def get_current_device(self):
        return self.capability

    def get_current_stream(self, device):
        return 0


class Compiled:
    """A kernel that is compiled where it would be launched."""

    def __init__(self, kernel):
        self.kernel, self.last = kernel, None

    def __getitem__(self, grid):
        def compiled(*args, **options):
            self.last = self.kernel.warmup(*args, grid=grid, **options)

        return compiled


def calls():
    """What a scan asks for, and each part of it that changes what is compiled."""
    x = torch.zeros(1, 4, 256, 64, dtype=torch.float16)
    everything = Need.everything(10, torch.zeros(1, 256, 2), BINS)
    need = replace(everything, largest_key=False)
    call = AttentionCall(x, x, x, 0.125)
    wide = torch.zeros(1, 4, 256, 128, dtype=torch.bfloat16)
    single = torch.zeros(1, 4, 256, 80)
    full = causal_mask(256, 256).expand(1, 1, 256, 256)
    some = full.clone()
    some[..., 7, 3] = False
    return {
        "BERT": (call, need),
        "BERT, and largest keys": (call, everything),
        "nothing but attention": (call, Need()),
        "Llama": (replace(AttentionCall(wide, wide[:, :2], wide[:, :2], 0.1), causal=True, mask=full), need),
        "everything at once": (
            replace(call, mask=some, bias=torch.zeros(1, 4, 256, 256), softcap=50.0, sinks=torch.zeros(4)),
            replace(everything, columns=torch.zeros(1, 256, 20)),
        ),
        "T5": (replace(call, bias=OffsetBias(torch.zeros(1, 4, 511), 256)), need),
        "float32, no power of two": (AttentionCall(single, single, single, 0.1, causal=True), need),
    }


def resources(kernel):
    """Registers a thread, spilled bytes, bytes of shared memory."""
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        said = subprocess.run(
            [tool, "--dump-resource-usage", file.name], check=True, capture_output=True, text=True
        ).stdout
    registers, spilled = re.search(r"REG:(\d+) STACK:(\d+)", said).groups()
    return int(registers), int(spilled), kernel.metadata.shared


def compiled(call, need, capability):
    """The kernel that a call launches."""
    driver.set_active(Elsewhere(capability))
    kernel = _triton_kernels.attend_rows
    _triton_kernels.attend_rows = wrapped = Compiled(kernel)
    try:
        _, rows = _triton._launched(call, need)
    finally:
        _triton_kernels.attend_rows = kernel
    assert isinstance(rows, RowMeasures)
    return wrapped.last


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("capability", type=int, nargs="+")
    parser.add_argument("--only", choices=[*calls()])
    given = parser.parse_args()
    for capability in given.capability:
        for name, (call, need) in calls().items():
            if given.only in {None, name}:
                registers, spilled, shared = resources(compiled(call, need, capability))
                print(f"sm_{capability} {name}: {registers} registers, {spilled} spilled, {shared} shared")


if __name__ == "__main__":
    main()

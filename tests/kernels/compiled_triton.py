"""Compile the Triton kernel for a GPU that is not here, as a call would: what the interpreter forgives, this does not.

    python -m tests.kernels.compiled_triton 80 90 [--only BERT]
    python -m tests.kernels.compiled_triton 80 90 100 --table 64

prints a line for each call and compute capability: registers a thread, bytes that do not fit into them, bytes of shared
memory. `--table` prints those of what benchmarks/gpu.py times for heads of this width, from attention alone on, and
counts the loop over whole tiles: the instructions of a warp on the shortest path through it, all that it has, and the
cycles that tensor cores need for its products as a share of those instructions, which a scheduler starts one a cycle.
The process must not be one of Triton's interpreter.
"""

import argparse
import re
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver

from attnscope.kernels import _triton_kernels
from attnscope.kernels import triton as _triton
from attnscope.kernels.bins import far_starts
from attnscope.kernels.call import AttentionCall, Need, RowMeasures
from attnscope.kernels.masks import OffsetBias
from attnscope.kernels.reference import causal_mask

BINS = (9, 17, 33, 65, 129, 257)
TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
PRODUCTS = {80: 1024, 90: 2048, 100: 4096}  # multiplications of float16 by a multiprocessor in a cycle
INSTRUCTION = re.compile(r"^\s*/\*([0-9a-f]{4,})\*/\s+(@\S+\s+)?([A-Z][\w.]*)([^;]*);", re.MULTILINE)


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


def ladder(width):
    """What benchmarks/gpu.py times, each with all that the one before it has; attention alone is flash attention's."""
    x = torch.zeros(1, 4, 4096, width, dtype=torch.float16)
    rows, columns = Need.everything(10), torch.zeros(1, 4096, 2)
    needs = {
        "attention alone": Need(),
        "without largest key": replace(rows, largest_key=False),
        "row statistics and band": rows,
        "and two columns": Need.everything(10, columns),
        "and bins (scan)": Need.everything(10, columns, far_starts(10, 4096)),
    }
    return AttentionCall(x, x, x, width**-0.5), needs


def dumped(kernel, what):
    """What a tool says about a kernel."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        return subprocess.run([TOOLS / "cuobjdump", what, file.name], check=True, capture_output=True, text=True).stdout


def resources(kernel):
    """Registers a thread, spilled bytes, bytes of shared memory."""
    registers, spilled = re.search(r"REG:(\d+) STACK:(\d+)", dumped(kernel, "--dump-resource-usage")).groups()
    return int(registers), int(spilled), kernel.metadata.shared


class Instruction(NamedTuple):
    """An instruction, and where it may branch to."""

    address: int
    name: str
    target: int | None
    may_go_on: bool  # to the next one


def instructions(kernel):
    """The instructions of a kernel in their order."""
    for address, guard, name, rest in INSTRUCTION.findall(dumped(kernel, "-sass")):
        branch = re.search(r"0x([0-9a-f]+)", rest) if name.startswith("BRA") else None
        is_conditional = bool(guard or re.search(r"\bU?P\d", rest))
        target = None if branch is None else int(branch[1], 16)
        yield Instruction(int(address, 16), name, target, branch is None or is_conditional)


def loop_of_tiles(kernel):
    """Instructions of a warp for a whole tile: those on the shortest path, and all that the loop has."""
    whole = [*instructions(kernel)]
    loops = []
    for end in whole:
        if end.target is not None and end.target < end.address:
            loop = [one for one in whole if end.target <= one.address <= end.address]
            if any("MMA" in one.name for one in loop):
                loops.append(loop)
    inner = []  # the shortest, which overlap with none that is shorter; waits far behind a loop jump back into it
    for loop in sorted(loops, key=len):
        if all(loop[-1].address < other[0].address or loop[0].address > other[-1].address for other in inner):
            inner.append(loop)
    products = [sum("MMA" in one.name for one in loop) for loop in inner]
    # the band has half the products, and tiles that some rows see in part have checks besides
    loop = min((loop for loop, count in zip(inner, products, strict=True) if count == max(products)), key=len)
    return shortest_path(loop), len(loop)


def shortest_path(loop):
    """The least number of instructions from the first of a loop to its last."""
    least = {loop[0].address: 1}
    for at, one in enumerate(loop[:-1]):
        steps = least.get(one.address)
        if steps is None:
            continue
        ways = [one.target] if one.target is not None and one.address < one.target <= loop[-1].address else []
        for address in [*ways, *([loop[at + 1].address] if one.may_go_on else [])]:
            least[address] = min(steps + 1, least.get(address, steps + 1))
    return least[loop[-1].address]


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


def print_table(capabilities, width):
    """A row for each capability and what is measured."""
    heading = ["GPU", "measured", "registers", "spilled, bytes", "shared, KiB", "instructions a tile", "at most", "MMA"]
    print("| " + " | ".join(heading) + " |\n" + "|---" * len(heading) + "|")
    call, needs = ladder(width)
    for capability in capabilities:
        for name, need in needs.items():
            kernel = compiled(call, need, capability)
            registers, spilled, shared = resources(kernel)
            common, all_of_loop = loop_of_tiles(kernel)
            tile = _triton.launch_of(width, torch.float16)
            share = 2 * tile.queries * tile.keys * width / PRODUCTS[capability] / common
            cells = [f"sm_{capability}", name, registers, spilled, shared // 1024, common, all_of_loop, f"{share:.2f}"]
            print("| " + " | ".join(map(str, cells)) + " |", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("capability", type=int, nargs="+")
    parser.add_argument("--only", choices=[*calls()])
    parser.add_argument("--table", type=int, metavar="WIDTH")
    given = parser.parse_args()
    if given.table:
        print_table(given.capability, given.table)
        return
    for capability in given.capability:
        for name, (call, need) in calls().items():
            if given.only in {None, name}:
                registers, spilled, shared = resources(compiled(call, need, capability))
                print(f"sm_{capability} {name}: {registers} registers, {spilled} spilled, {shared} shared")


if __name__ == "__main__":
    main()

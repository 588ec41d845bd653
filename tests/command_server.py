"""What the server has done once that commands in processes of their own are forked from: `tests.command_processes`.

No thread may be begun here: a fork has none but its own.
"""

import os
from functools import cache

import numba  # noqa: F401
import scipy.signal  # noqa: F401
import sklearn.cluster  # noqa: F401
import torch
import typer
import xarray  # noqa: F401
from transformers import modeling_utils  # noqa: F401
from transformers.conversion_mapping import get_checkpoint_conversion_mapping

from attnscope import cli, explain, intervene, scan  # noqa: F401
from attnscope.kernels.call import AttentionCall, Need
from attnscope.kernels.engines import measure
from attnscope_lineage import train  # noqa: F401

os.fsync = os.fstat  # as in conftest

get_checkpoint_conversion_mapping("bert")  # compiles a thousand regular expressions

typer.main.get_command = cache(typer.main.get_command)
typer.main.get_command(cli.app)

threads = torch.get_num_threads()
torch.set_num_threads(1)
vectors = torch.zeros(1, 1, 2, 8)
measure(AttentionCall(vectors, vectors, vectors, scale=1.0), Need(entropy=True))  # loads machine code
torch.set_num_threads(threads)

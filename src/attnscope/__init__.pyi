import collections.abc
import typing

from . import figures as figures
from . import kernels as kernels
from . import results as results
from . import testing as testing
from .intervention.metrics import metric as metric
from .session import Session as Session
from .support.errors import AttnscopeError as AttnscopeError
from .verbs.ablation import ablation as ablation
from .verbs.contrasts import contrasts as contrasts
from .verbs.diff import diff as diff
from .verbs.edit import edit as edit
from .verbs.examples import examples as examples
from .verbs.expect import expect as expect
from .verbs.explain import explain as explain
from .verbs.generate import generate as generate
from .verbs.head_outputs import head_outputs as head_outputs
from .verbs.intervene import intervene as intervene
from .verbs.measure_weights import measure_weights as measure_weights
from .verbs.open_run import open_run as open_run
from .verbs.pairs import pairs as pairs
from .verbs.patch import patch as patch
from .verbs.reader import reader as reader
from .verbs.received import received as received
from .verbs.role import role as role
from .verbs.roles import roles as roles
from .verbs.runs import runs as runs
from .verbs.scan import scan as scan
from .verbs.set_language import set_language as set_language
from .verbs.statistic import statistic as statistic
from .verbs.view import view as view
from .verbs.watch import watch as watch
from .verbs.weights import weights as weights

__version__: str

def attach(
    package: str, file: str
) -> tuple[collections.abc.Callable[[str], typing.Any], collections.abc.Callable[[], list[str]], list[str]]: ...

"""What can be done with a tiny random model of a family, and how far its statistics are from its own eager weights."""

import warnings
from dataclasses import asdict, dataclass

import torch
from transformers import PretrainedConfig

from attnscope.capture.eager import as_weights
from attnscope.capture.families import is_attention, main_output, without_cache
from attnscope.capture.notes import capture_notes
from attnscope.capture.verify import verify
from attnscope.capture.watching import capture_of, watching
from attnscope.explanation.projections import projections
from attnscope.explanation.tables import position_scheme, position_tables
from attnscope.kernels.bins import far_starts
from attnscope.kernels.blocks import BLOCK
from attnscope.kernels.call import RowMeasures
from attnscope.measure.maps import BlockSums
from attnscope.measure.passes import OBSERVATION, StatisticsObserver, WindowBatch
from attnscope.measure.quantities import STATISTICS
from attnscope.measure.rows import SecondPass, indicator_columns, reduce_call
from attnscope.read.windows import Batch
from attnscope.support.errors import AttnscopeError, reason_of
from attnscope.support.state import same_random_numbers
from tests.capture.every_family.inputs import inputs_of
from tests.capture.every_family.models import NoModelError, tiny_model
from tests.capture.every_family.settings import NOTES, REASONS
from tests.capture.every_family.stand_ins import stand_in
from tests.kernels.statistics_of_weights import from_weights

BAND, REACH = 5, 23
# rounding may choose another of two keys that weigh alike: these are held to the weights in tests/kernels
NAMES = tuple(name for name, statistic in STATISTICS.items() if "largest_key" not in statistic.needs)
FAST, EAGER, REFUSED, NONE, UNTRIED = "fast", "eager", "refused", "no attention", "untried"
PART = "part"  # of another: it has no model of its own


@dataclass
class Row:
    """One line of the table."""

    family: str
    status: str
    model: str = ""
    reads: str = ""
    layers: str = ""
    difference: float | None = None
    reason: str = ""
    positions: str = ""
    projections: str = ""

    as_dict = asdict


def judge(family: str) -> Row:
    """Try everything with one family."""
    warnings.simplefilter("ignore")
    stand_in(family)
    try:
        model = larger(tiny_model(family))
        given = inputs_of(model)
        with torch.no_grad():
            model(**given)
    except NoModelError as error:
        return Row(family, PART, reason=str(error))
    except Exception as error:  # noqa: BLE001 families raise what they like
        return Row(family, UNTRIED, reason=REASONS.get(family) or reason_of(error))
    row = Row(family, NONE, type(model).__name__, ", ".join(given))
    try:
        sites = verify(model, given, weights_suffice=True)
    except AttnscopeError as error:
        attends = any(is_attention(module) for module in model.modules())
        row.status, row.reason = REFUSED if attends else NONE, str(error)
        return row
    row.status = FAST if capture_of(model) == "registry" else EAGER
    kinds = [site.kind for site in sites]
    row.layers = ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds))
    row.difference, row.reason = _difference(model, given)
    row.reason = row.reason or NOTES.get(family, "") or _disagreement(model, given) or _aside(model)
    if row.status == FAST and "input_ids" in given:
        row.positions = _positions(model)
        row.projections = _projections(model, given)
    return row


def _aside(model):
    notes = capture_notes(model)
    return "deformable attention has no weights from token to token, and is not measured" if "points" in notes else ""


def larger(model):
    """With weights so large that no head is uniform."""
    torch.manual_seed(1)
    for parameter in model.parameters():
        if parameter.ndim == 2:
            torch.nn.init.normal_(parameter, std=0.15)
    return model


def _positions(model):
    tables = position_tables(model)
    return f"table of {len(tables[0].rows)}" if tables else position_scheme(model)


def _projections(model, given):
    try:
        found = projections(model, given).values()
    except Exception as error:  # noqa: BLE001 it is what the table is there to show
        return reason_of(error)
    whole = sum(one.query is not None and one.key is not None for one in found)
    return f"{whole} of {len(found)}"


@torch.no_grad()
def _disagreement(model, given):
    """Whether the model's own attention gives another output than its own eager attention."""
    configs = [module.config for module in model.modules() if _has_config(module)]
    before = [config._attn_implementation for config in configs]
    with same_random_numbers():
        own = main_output(model(**given))
    try:
        for config in configs:
            config._attn_implementation = "eager"
        with same_random_numbers():
            eager = main_output(model(**given))
    finally:
        for config, old in zip(configs, before, strict=True):
            config._attn_implementation = old
    apart = float((own - eager).abs().max() / own.abs().max())
    return "" if apart < 1e-3 else f"its default ({before[0]}) and eager outputs differ; attnscope measures the default"


@torch.no_grad()
def _difference(model, given):
    """Largest difference of any statistic from that of the eager weights which it fits best; and what was not found."""
    sizes = []

    def observe(site, call):
        sizes.append((site, *call.query.shape))
        sizes[-1] += (call.key.shape[2], call.group)
        here = _everything_real(call)
        observer = StatisticsObserver(NAMES, BAND, here, REACH)
        output = observer(site, call)
        measured.extend(observer.layers())
        return output

    measured = []
    with watching(model, observe, weights_suffice=True), same_random_numbers():
        model(**given)
    weights = eager_weights(model, given)
    largest = 0.0
    for found, (site, batch, heads, queries, _, keys, group) in zip(measured, sizes, strict=True):
        fitting = [one for one in weights if one.shape == (batch, heads, queries, keys)]
        if not fitting:
            return None, f"layer {site.index} ({site.name}): eager attention returns no weights of this size"
        largest = max(largest, min(_apart(found, one, group) for one in fitting))
    return largest, ""


def _everything_real(call):
    def side(length):
        valid = torch.ones(call.query.shape[0], length, dtype=torch.bool)
        special = torch.zeros_like(valid)
        special[:, 0] = True
        return Batch(torch.zeros_like(valid, dtype=torch.int64), valid, special)

    queries, keys = side(call.query.shape[2]), side(call.key.shape[2])
    return _Sides(queries, keys)


class _Sides(WindowBatch):
    """Queries and keys of one call, whatever its kind."""

    def sides(self, kind):
        return self.text, self.target


def _apart(found, weights, group):
    weights = weights.double()
    queries, keys = weights.shape[-2:]
    valid = [torch.ones(weights.shape[0], length, dtype=torch.bool) for length in (queries, keys)]
    special = torch.zeros_like(valid[1])
    special[:, 0] = True
    columns = indicator_columns(valid[1], special).double()[:, None]
    measured = from_weights(weights, BAND, far_starts(BAND, REACH))
    rows = RowMeasures(log_sum_exp=measured["mass"], columns=weights @ columns, **measured)
    wanted = reduce_call(rows, NAMES, *valid, second=_second_pass(weights, group))
    return max(
        float(((found[name] - wanted[name]).abs() / wanted[name].abs().clamp_min(1)).nan_to_num(0).max())
        for name in NAMES
    )


def _second_pass(weights, group):
    """Sums over queries, over diagonals and over blocks, of the weights themselves."""
    queries, keys = weights.shape[-2:]
    offsets = [weights.diagonal(t, -2, -1).sum(-1) for t in range(-REACH, REACH + 1)]
    padded = torch.nn.functional.pad(weights, (0, -keys % BLOCK, 0, -queries % BLOCK))
    total = padded.unflatten(-1, (-1, BLOCK)).sum(-1).unflatten(-2, (-1, BLOCK)).sum(-2)
    blocks = BlockSums(total, (total > 0).any(1, keepdim=True))
    recent = weights[:, :, -OBSERVATION:].sum(2)
    return SecondPass(weights.sum(2), recent, torch.stack(offsets, -1), blocks, group=group)


def eager_weights(model, given):
    """All weights that eager attention shows: what the model returns when asked, and what its modules return."""
    found = []

    def look(module, _, output):
        inner = isinstance(module, torch.nn.Softmax | torch.nn.Dropout)
        for one in output if isinstance(output, tuple) else (output,) if inner else ():
            _gather(as_weights(module, one, _tokens(given)) if isinstance(one, torch.Tensor) else one, found)

    hooks = [module.register_forward_hook(look) for module in model.modules()]
    before = [(module.config, module.config._attn_implementation) for module in model.modules() if _has_config(module)]
    try:
        for config, _ in before:
            config._attn_implementation = "eager"
        given = without_cache(model) | given
        try:
            with same_random_numbers():
                output = model(**given, output_attentions=True)
        except (TypeError, ValueError):
            with same_random_numbers():
                output = model(**given)
        for name, value in output.items() if hasattr(output, "items") else ():
            if "attentions" in name:
                _gather(value, found)
    finally:
        for hook in hooks:
            hook.remove()
        for config, old in before:
            config._attn_implementation = old
    return found


def _has_config(module):
    return isinstance(getattr(module, "config", None), PretrainedConfig)


def _tokens(given):
    return given["input_ids"].shape[1] if "input_ids" in given else None


def _gather(value, found):
    if isinstance(value, torch.Tensor):
        if value.ndim == 4 and value.is_floating_point() and value.numel() and bool((value >= 0).all()):
            found.append(value)
    elif isinstance(value, (tuple, list)):
        for one in value:
            _gather(one, found)

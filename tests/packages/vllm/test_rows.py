"""Rows from inside an engine, in chunks over a paged cache and in files of two workers: the statistics of `scan`."""

import numpy as np
import pytest
import torch

import attnscope
from attnscope import AttnscopeError
from attnscope.capture.watching import watching
from attnscope.kernels import Need
from attnscope.kernels.bins import far_starts
from attnscope.kernels.engines import output_of
from attnscope.measure import rows as measured
from attnscope.read.shown import special_ids
from attnscope_vllm import rows as stored
from attnscope_vllm.paged import PagedCall, measure_paged
from attnscope_vllm.rows import heads_of_rows, packed, read_rows, write_rows
from tests.tiny_models import tiny

BAND, LONGEST, SLOTS = 4, 256, 4
STATISTICS = (
    "default,learned_sink,attention_distance,largest_distance,largest_first,largest_previous,within_64,"
    "top_key,top_10_keys,effective_keys,strongest"
)


def texts(count=3):
    draws = torch.Generator().manual_seed(0)
    lengths = torch.randint(12, 40, (count,), generator=draws).tolist()
    return [torch.randint(1, 60, (length,), generator=draws).tolist() for length in lengths]


def calls_of(model, ids):
    """The attention calls of one pass, with their layers."""
    calls = []

    def observe(site, call):
        calls.append((site, call))
        return output_of(call)

    with torch.no_grad(), watching(model, observe):
        model(torch.tensor([ids]))
    return calls


def window_of(call):
    """The keys that the last query sees; None for all."""
    start, stop = call.extent
    seen = int(stop[0, -1] - start[0, -1])
    return None if seen == call.key.shape[2] else seen


def chunked(call, places, chunk):
    """Rows and sums of the columns of a call, whose queries come in chunks over a paged cache."""
    keys, length = call.key[0].transpose(0, 1), call.key.shape[2]
    pages = torch.nn.functional.pad(keys, (0, 0, 0, 0, 0, -length % SLOTS)).unflatten(0, (-1, SLOTS))
    columns = torch.zeros(1, length, 2)
    columns[0, 0, 0] = 1
    columns[0, places, 1] = 1
    need = Need.everything(BAND, columns, far_starts(BAND, LONGEST - 1))
    options = {"scale": call.scale, "softcap": call.softcap, "sinks": call.sinks, "window": window_of(call)}
    rows, received = [], torch.zeros(call.query.shape[1], length, dtype=torch.float64)
    for first in range(0, length, chunk):
        query = call.query[0, :, first : first + chunk].transpose(0, 1)
        end = first + len(query)
        table, starts = torch.arange(len(pages))[None], torch.tensor([0, len(query)])
        paged = PagedCall(query, pages, table, starts, torch.tensor([end]), **options)
        measured = measure_paged(paged, need, received=True)[0]
        rows.append(packed(measured.measures)[0])
        received[:, :end] += measured.received
    return torch.cat(rows, 1).numpy(), received.numpy()


def write(folder, model, every, special, *, prompt=5):
    """Files of two workers, each with half of the heads."""
    arrays, windows = [{}, {}], {}
    for number, ids in enumerate(every):
        places = [place for place, token in enumerate(ids) if token in special]
        for site, call in calls_of(model, ids):
            layer = f"{site.name}.attn"
            windows[layer] = window_of(call)
            for kind, whole in zip(("rows", "received"), chunked(call, places, chunk=7), strict=True):
                for rank, half in enumerate(np.split(whole, 2)):
                    arrays[rank][f"{kind}/{number}/{layer}"] = half
    about = {"model": "tiny", "band": BAND, "bins": far_starts(BAND, LONGEST - 1), "special": special}
    about["windows"] = windows
    about["requests"] = [
        {"name": f"{number}-0123abcd", "prompt": prompt, "tokens": [*ids, 7]} for number, ids in enumerate(every)
    ]
    for rank, own in enumerate(arrays):
        write_rows(folder, rank, about, own)


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt_oss"])
def test_statistics_are_those_of_a_scan(family, tokenizer, tmp_path):
    model, every = tiny(family), texts()
    write(tmp_path, model, every, sorted(special_ids(tokenizer)))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rows-0.npz", "rows-1.npz"]
    rows = read_rows(tmp_path)
    assert [text.token.values.tolist() for text in rows] == every
    found = heads_of_rows(rows, statistics=STATISTICS)
    expected = attnscope.scan(model, every, tokenizer=tokenizer, statistics=STATISTICS, band=BAND)
    assert {*found.data_vars} == {*expected.data_vars, "prompt_length"}
    assert found.source.values.tolist() == ["0", "1", "2"]
    for name, values in expected.data_vars.items():
        of_rows = found[name]
        if "offset_bin" in values.dims:  # a scan has bins up to the model's longest text
            of_rows = of_rows.reindex(offset_bin=values.offset_bin, fill_value=0.0)
        np.testing.assert_allclose(of_rows.values, values.values, rtol=1e-5, atol=1e-5, err_msg=name)


def missing(path, kind, first):
    """Turn the beginning of the first request's rows, or of what its keys receive, into NaN."""
    with np.load(path) as stored:
        arrays = {name: stored[name] for name in stored.files}
    for name, values in arrays.items():
        if name.startswith(f"{kind}/0/"):
            values[:, :first] = np.nan
    np.savez(path, **arrays)


def test_requests_without_all_their_rows_are_left_out(tokenizer, tmp_path):
    every = texts()
    write(tmp_path, tiny("llama"), every, [])
    for rank in (0, 1):
        missing(tmp_path / f"rows-{rank}.npz", "rows", 4)
    rows = read_rows(tmp_path)
    found = heads_of_rows(rows)
    assert found.source.values.tolist() == ["1", "2"]
    assert found.left_out.startswith("1 of 3 requests are left out")
    with pytest.raises(AttnscopeError, match=r"none of 1 requests has all its rows.*reset_prefix_cache"):
        heads_of_rows(rows[:1])


def test_what_keys_of_a_cached_prefix_received_is_not_made_up(tokenizer, tmp_path):
    write(tmp_path, tiny("llama"), texts(), [])
    missing(tmp_path / "rows-0.npz", "received", 4)
    rows = read_rows(tmp_path)
    found = heads_of_rows(rows, statistics="top_key,entropy")
    assert found.top_key.isnull().any("layer").values.tolist() == [[True, True, False, False], [False] * 4, [False] * 4]
    assert bool(found.entropy.notnull().all())
    assert bool(rows[0].received[:, :, 4:].notnull().all())


def test_statistics_that_rows_do_not_give_are_rejected(tmp_path):
    write(tmp_path, tiny("llama"), texts(1), [])
    rows = read_rows(tmp_path)
    with pytest.raises(AttnscopeError, match="block_recall needs blocks, which the engine did not measure"):
        heads_of_rows(rows, statistics="block_recall")
    with pytest.raises(AttnscopeError, match="top_key needs received"):
        heads_of_rows([text.drop_vars("received") for text in rows], statistics="entropy,top_key")


def test_a_folder_without_rows_is_named(tmp_path):
    with pytest.raises(AttnscopeError, match=r"found no rows in .*; expected the folder that write_heads wrote"):
        read_rows(tmp_path)


def test_the_columns_of_a_worker_are_those_of_a_scan():
    assert stored.COLUMNS == measured.COLUMNS

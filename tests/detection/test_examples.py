"""`examples` against all weights written out, on planted heads, and under chance."""

import itertools
import json
import re
import signal
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import scipy.stats
import torch
import xarray as xr
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config, GPT2LMHeadModel

import attnscope
from attnscope import AttnscopeError
from attnscope.bundled import MODEL
from attnscope.detection.common import LEAST_KEYS, ExamplePair, common_features
from attnscope.detection.examples import Choice, ExampleReader
from attnscope.measure.reader import scan_settings
from attnscope.measure.sample import leading_heads
from attnscope.results.reports import report_of, write_page
from attnscope.statistics.tests import at_least
from attnscope.store.runs import RunFolder, is_finished
from attnscope_zoo.catalogue import build
from tests.cli.command import attnscope as command
from tests.command_processes import Started, wait_until
from tests.tiny_models import tiny_reader

TEXTS = [
    "The keeper lit the lamp before the tide came in, and the lamp burned until the morning came.",
    "A boat left the harbour at noon; the harbour was quiet until the boat came back.",
    "Bread rises because yeast feeds on sugar, and the gas it gives off stretches the dough.",
]


def of_planted(name, **options):
    planted = build(name)
    texts = [" ".join(f"t{token}" for token in row) for row in planted.ids[:8].tolist()]
    return attnscope.examples(planted.model, texts, tokenizer=planted.tokenizer, window=planted.ids.shape[1], **options)


@cache
def weights_of(model, text):
    return attnscope.weights(model, text, window=64)


def expected_of(model, text, head, *, by):
    """The strongest row over uniform attention, from all weights; neither first nor special tokens count."""
    weights = weights_of(model, text)
    matrix = weights.sel(layer=head[0], head=head[1]).values
    special = np.isin(weights.query_token.values, ["<s>", "</s>"])
    rows = [i for i in range(len(matrix)) if not special[i] and (matrix[i] > 0).sum() >= LEAST_KEYS]
    columns = [j for j in range(1, matrix.shape[1]) if not special[j]]
    if by == "entropy":
        rows = [i for i in rows if matrix[i, columns].max() >= matrix[i].max()]
        return max(scipy.stats.entropy(matrix[i] > 0) - scipy.stats.entropy(matrix[i]) for i in rows)
    return max(matrix[i, j] * (matrix[i] > 0).sum() for i in rows for j in columns)


@pytest.mark.parametrize("by", ["weight", "entropy"])
@pytest.mark.parametrize("name", ["", "stories260K-llama"])
def test_the_strongest_row_is_that_of_all_weights_written_out(name, by, models):
    model = str(models / name) if name else None
    found = attnscope.examples(model, TEXTS, heads=[(1, 2), (2, 0)], k=2, by=by, window=64, limit=3)
    for layer, head in [(1, 2), (2, 0)]:
        top = found.isel(example=(found.layer == layer) & (found["head"] == head) & (found.set == "top"))
        best = [expected_of(model, text, (layer, head), by=by) for text in TEXTS]
        assert top.score.values == pytest.approx(sorted(best, reverse=True)[:2], rel=1e-5)
        assert top.window_number.values.tolist() == np.argsort(best)[::-1][:2].tolist()


def test_a_planted_induction_head_attends_to_the_token_after_an_earlier_occurrence():
    planted = build("induction-decoder-2")
    head = next(
        (layer, head)
        for layer, call in enumerate(planted.roles)
        for head, role in enumerate(call)
        if "induction head" in role
    )
    result = of_planted("induction-decoder-2", heads=head, k=8)
    shared = {row["kind"]: row for row in report_of("examples", result).tables[1].rows if row["significant"]}
    assert shared["relation"]["value"] == "token after an earlier occurrence of the query"
    assert shared["relation"]["found"] == 8
    assert "the key is the token after an earlier occurrence" in report_of("examples", result).finding.sentences[0]


def test_examples_of_a_stream_are_those_of_all_windows_at_once(monkeypatch):
    options = {"heads": [(0, 1), (2, 3)], "k": 3, "limit": 40, "window": 32, "batch_size": 2}
    whole = attnscope.examples(None, **options)
    monkeypatch.setattr("attnscope.detection.examples._AT_ONCE", 8)
    in_memory, own = [], ExampleReader._remaining
    monkeypatch.setattr(
        ExampleReader, "_remaining", lambda reader, part: in_memory.append(part.sizes["window"]) or own(reader, part)
    )
    assert attnscope.examples(None, **options).identical(whole)
    monkeypatch.setattr(ExampleReader, "median_of", 9)
    in_memory.clear()
    few = attnscope.examples(None, **options)
    assert max(in_memory) < 9 + 2 * 2 * 3 + 8
    assert few.isel(example=few.set != "middle").equals(whole.isel(example=whole.set != "middle"))


def test_the_middle_is_around_the_median_and_random_rows_are_uniform():
    """Over seeds, the mean rank of random examples is that of uniform draws; the middle is always the same."""
    reader = ExampleReader(
        None, TEXTS, scan_settings({}, window=64), [(0, 0)], Choice(3, "weight", None, None, sinks=False)
    )
    random, ranks = np.random.default_rng(0), []
    score = np.stack([random.random((101, 1)), np.zeros((101, 1))], -1)
    rows = np.full((101, 1), 9)
    for seed in range(400):
        draw = np.random.default_rng(seed).random(101)
        results = xr.Dataset(
            {
                "row_score": (("window", "chosen", "drawn"), score),
                "rows": (("window", "chosen"), rows),
                "draw": ("window", draw),
            }
        )
        sets = reader._sets(results, 0)
        ranks += np.argsort(np.argsort(score[:, 0, 0]))[sets["random"]].tolist()
    order = np.argsort(-score[:, 0, 0])
    assert sets["top"].tolist() == order[:3].tolist()
    assert sets["middle"].tolist() == order[3:][47:50].tolist()
    assert abs(np.mean(ranks) - 50) < 4 * np.sqrt((101**2 - 1) / 12 / len(ranks))


def test_the_heads_of_a_scan_are_those_of_its_rankings(tmp_path):
    scanned = attnscope.scan(limit=8, window=64, out=tmp_path / "scan")
    found = attnscope.examples(heads=scanned, k=1, limit=8, window=64)
    assert list(
        dict.fromkeys(zip(found["layer"].values.tolist(), found["head"].values.tolist(), strict=True))
    ) == leading_heads(scanned)
    again = command("examples", "--heads", "scan", "-k", "1", "--limit", "8", "--window", "64", "--json", cwd=tmp_path)
    assert json.loads(again.stdout)["finding"]["heads"] == [list(head) for head in leading_heads(scanned)]
    planted = build("induction-decoder-2")
    with pytest.raises(AttnscopeError, match="heads are those of a scan of another model"):
        attnscope.examples(planted.model, TEXTS, tokenizer=planted.tokenizer, heads=tmp_path / "scan", window=16)


def test_a_search_finds_a_pair_of_tokens_alone():
    found = attnscope.examples(None, TEXTS, heads=(0, 1), query="the", key="/lamp|harbour|b|l/", window=64)
    assert {token.strip() for token in found.query_token.values} == {"the"}
    assert {token.strip() for token in found.key_token.values} <= {"lamp", "harbour", "b", "l"}
    with pytest.raises(AttnscopeError, match=r"found no example in 3 windows.*the query be 'zebra'"):
        attnscope.examples(None, TEXTS, heads=(0, 1), query="zebra", window=64)


def test_heads_of_a_decoder_with_an_encoder_have_queries_in_the_target():
    model, tokenizer = tiny_reader("bart")
    found = attnscope.examples(model, TEXTS, tokenizer=tokenizer, targets=TEXTS[::-1], heads=(5, 0), k=2, window=64)
    assert not any(row["kind"] == "offset" for row in report_of("examples", found).tables[1].rows)
    assert all("←" in "".join(text for text, _ in json.loads(pieces)) for pieces in found.context.values)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"heads": (9, 0)}, "there is no head 9.0"),
        ({"heads": (0, 0), "by": "size"}, "by is 'size'; expected weight, value_norm or entropy"),
        ({"heads": (0, 0), "query": "/(/"}, "query is '/(/', which is no regular expression"),
        ({"heads": (0, 0), "k": 0}, "k (--k) is 0"),
    ],
)
def test_bad_input_is_rejected(options, words):
    with pytest.raises(AttnscopeError, match=re.escape(words)):
        attnscope.examples(None, TEXTS, window=64, **options)


def pair(random, tokens, causal=True):
    """A pair drawn as uniform attention draws it."""
    words = random.choice([*"abcdefgh"], tokens).tolist()
    rows = np.array([at + 1 >= LEAST_KEYS for at in range(tokens)])
    query = int(random.choice(np.flatnonzero(rows)))
    key = int(random.integers(0, query + 1))
    kinds = ["word start"] * tokens
    return ExamplePair(words, words, kinds, kinds, rows, np.ones(tokens, bool), (tokens - 1, 0), query, key)


def test_chances_are_those_of_a_random_key_of_the_query_and_a_query_at_the_place_of_an_example():
    one = pair(np.random.default_rng(0), 14)
    counted = {}
    for key in range(one.query + 1):
        related = [("relation", "same token")] if one.queries[one.query] == one.keys[key] else []
        if key and one.keys[key - 1] == one.queries[one.query]:
            related.append(("relation", "token after an earlier occurrence of the query"))
        for feature in [("offset", key - one.query), ("key token", one.keys[key]), *related]:
            counted[feature] = counted.get(feature, 0) + 1 / (one.query + 1)
    for query in (LEAST_KEYS - 1, 13, 13):  # the first candidate, and twice the last
        feature = "query token", one.queries[query]
        counted[feature] = counted.get(feature, 0) + 1 / 3
    chances = one.chances([0.0, 1.0, 1.0])
    assert {name: chances[name] for name in counted} == pytest.approx(counted)
    assert {name for name, chance in chances.items() if chance} - {*counted} == {
        ("query kind", "word start"),
        ("key kind", "word start"),
    }


def of_noise(random, spread):
    """Twelve sentences that end with a full stop, and the strongest weight over uniform of scores without a cause."""
    ranked = []
    for _ in range(24):
        words = [*random.choice([*"abcdefgh"], random.integers(14, 30)), "."]
        tokens = len(words)
        weights = np.tril(np.exp(random.normal(size=(tokens, tokens)) * spread))
        weights[: LEAST_KEYS - 1] = 0
        over = weights / weights.sum(1, keepdims=True).clip(1e-9) * np.arange(1, tokens + 1)[:, None]
        query, key = (int(at) for at in np.unravel_index(over.argmax(), over.shape))
        kinds = ["word start"] * (tokens - 1) + ["punctuation"]
        rows = np.arange(tokens) >= LEAST_KEYS - 1
        one = ExamplePair(words, words, kinds, kinds, rows, np.ones(tokens, bool), (tokens - 1, 0), query, key)
        ranked.append((float(over.max()), one))
    return [one for _, one in sorted(ranked, key=lambda pair: -pair[0])[:12]]


@pytest.mark.parametrize("spread", [0.1, 5.0])
def test_scores_without_a_cause_seldom_give_a_shared_feature(spread):
    """With peaked scores the strongest queries are the last ones: full stops."""
    random = np.random.default_rng(2)
    wrong = sum(any(common_features({(0, 0): of_noise(random, spread)})["significant"]) for _ in range(60))
    assert wrong <= scipy.stats.binom.ppf(0.999, 60, 0.05)


def test_untrained_causal_heads_share_no_offset():
    """Without positions. Weights of early queries are large because they see few keys."""
    random, tokenizer = np.random.default_rng(0), AutoTokenizer.from_pretrained(MODEL)
    ids = [token for token in range(20, len(tokenizer)) if tokenizer.decode([token]).strip()]
    texts = [random.choice(ids, 24).tolist() for _ in range(24)]
    shared = []
    for seed in range(4):
        torch.manual_seed(seed)
        config = GPT2Config(vocab_size=len(tokenizer), n_positions=32, n_embd=32, n_layer=1, n_head=4)
        model = GPT2LMHeadModel(config).eval()
        model.transformer.wpe.weight.data.zero_()
        found = attnscope.examples(model, texts, tokenizer=tokenizer, window=24, heads=[*np.ndindex(1, 4)], k=12)
        shared += [str(kind) for kind in found.feature_kind.values[found.feature_significant.values]]
    assert "offset" not in shared


def test_the_order_of_features_does_not_depend_on_the_hash_seed():
    """Features of equal p come in the order of their kinds and examples."""
    examples = [pair(np.random.default_rng(seed), 40) for seed in range(12)]
    kinds = ["query token", "key token", "query kind", "key kind", "offset"]
    assert all([kind for kind, _ in one.features()][:5] == kinds for one in examples)


def test_the_tail_is_that_of_the_poisson_binomial_distribution():
    chances = np.array([0.1, 0.5, 0.25, 0.8])
    by_hand = sum(
        np.prod([chance if yes else 1 - chance for chance, yes in zip(chances, each, strict=True)])
        for each in itertools.product([0, 1], repeat=4)
        if sum(each) >= 2
    )
    assert at_least(2, chances) == pytest.approx(by_hand)
    assert at_least(3, np.full(9, 0.3)) == pytest.approx(scipy.stats.binom.sf(2, 9, 0.3))


def test_uniform_attention_seldom_has_something_in_common():
    random = np.random.default_rng(1)
    wrong = sum(
        any(common_features({(0, 0): [pair(random, 40) for _ in range(12)]})["significant"]) for _ in range(200)
    )
    assert wrong <= scipy.stats.binom.ppf(0.999, 200, 0.05)


def test_the_command_resumes_and_its_page_marks_both_tokens(tmp_path):
    arguments = ("examples", "--heads", "0.1,2.3", "-k", "2", "--limit", "12", "--window", "64")
    done = command(*arguments, "--out", tmp_path / "whole", cwd=tmp_path)
    assert "Head 0.1: the 2 strongest windows" in done.stdout
    page = (tmp_path / "whole" / "report.html").read_text(encoding="utf-8")
    assert '<mark class="query">' in page
    assert '<mark class="key">' in page
    for number in (2, 1):
        command(*arguments, "--batch-size", "1", "--out", tmp_path / "parts", "--task", f"{number}/2", cwd=tmp_path)
    whole, parts = (attnscope.open_run(tmp_path / name) for name in ("whole", "parts"))
    assert parts.context.values.tolist() == whole.context.values.tolist()
    assert json.loads(command(*arguments, "--out", tmp_path / "whole", "--json", cwd=tmp_path).stdout)["finding"][
        "heads"
    ] == [[0, 1], [2, 3]]


def test_strength_by_value_norm_is_the_weight_times_the_norm_of_the_value(models):
    """Against the outputs of the value projection, which four heads share in pairs."""
    folder = models / "stories260K-llama"
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    found = attnscope.examples(model, TEXTS[:1], tokenizer=tokenizer, heads=(2, 3), k=1, by="value_norm", window=64)
    weights = attnscope.weights(model, TEXTS[0], tokenizer=tokenizer, layer=2, head=3, window=64)
    values = []
    projection = model.model.layers[2].self_attn.v_proj
    hook = projection.register_forward_hook(lambda _, __, output: values.append(output[0]))
    with torch.no_grad():
        model(tokenizer(TEXTS[0], return_tensors="pt").input_ids)
    hook.remove()
    group = model.config.num_attention_heads // model.config.num_key_value_heads
    norms = values[0].unflatten(-1, (model.config.num_key_value_heads, -1))[:, 3 // group].norm(dim=-1).numpy()
    strength = (weights.values * norms * np.arange(1, len(norms) + 1)[:, None])[LEAST_KEYS - 1 :, 1:]
    assert found.score.values[0] == pytest.approx(strength.max(), rel=1e-5)


def test_the_first_token_of_a_source_counts_in_cross_attention():
    model, tokenizer = tiny_reader("t5")
    settings = scan_settings({}, targets=["A boat."], tokenizer=tokenizer, statistics="entropy", window=64)
    reader = ExampleReader(model, ["The tide."], settings, [(3, 0)], Choice(1, "weight", None, None, sinks=False))
    window = next(iter(reader.items()))
    window = replace(window, special=(False,) * len(window))
    window = replace(window, target=replace(window.target, special=(False,) * len(window.target)))
    assert [bool(reader.sides(window, kind).columns[0]) for kind in ("self", "causal", "cross")] == [False, False, True]


def test_one_example_shares_nothing_and_is_not_tested(tmp_path):
    attnscope.examples(None, TEXTS[:1], heads=(0, 1), window=64, out=tmp_path / "run")
    report = report_of("examples", attnscope.open_run(tmp_path / "run"))
    assert not report.tables[1].rows
    assert "No test possible" in report.finding.sentences[0]
    write_page(report, tmp_path / "page.html")


@pytest.mark.slow
def test_a_killed_run_resumes_and_its_examples_are_the_same_bytes(tmp_path):
    words = ("examples", "--heads", "0.1,2.3", "-k", "3", "--limit", "48", "--window", "24", "--batch-size", "1")
    command(*words, "--no-report", "--out", tmp_path / "whole", cwd=tmp_path)
    process = Started(*words, "--no-report", "--out", "run", cwd=tmp_path, ATTNSCOPE_FLUSH_SECONDS="0.1")
    wait_until(lambda: RunFolder(tmp_path / "run", {"command": "examples"}).look().texts >= 12, process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not is_finished(tmp_path / "run")
    command(*words, "--no-report", "--out", tmp_path / "run", cwd=tmp_path)
    assert (tmp_path / "run" / "examples.npz").read_bytes() == (tmp_path / "whole" / "examples.npz").read_bytes()

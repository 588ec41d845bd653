"""The commands of circuits: weights alone, parts of logits and scores, patched activations, edges."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from attnscope.cli import options
from attnscope.cli.options import argument, option, varied
from attnscope.cli.output import run


@options.takes(
    "model", *options.LOADING, "seed", "repair", *options.WRITING,
    own={
        "band": option(int, 10, "Largest offset of the preferred offsets.", show_default=True),
        "tokens": option(int, 5, "Tokens and pairs of tokens listed for each head.", show_default=True),
    },
    examples=(
        ("attnscope circuits", "the bundled model"),
        ("attnscope circuits gpt2 --csv", "a model of the hub, one line for each head"),
    ),
)  # fmt: skip
def circuits(arguments: dict[str, Any], output: options.Output) -> None:
    """Read circuits off the weights alone: copying, preferred tokens and offsets, composition of heads."""
    run("circuits", output, **arguments)


@options.takes(
    *options.READING, "target", "window", "limit", "seed", *options.UNITS, "batch_size", "repair", *options.WRITING,
    limit=100,
    own={
        "token": option(
            str | None, None, "Token after each text, or at its masks.", show_default="the next token, everywhere"
        ),
        "against": option(str | None, None, "Token whose logit is subtracted."),
        "pairs": option(Path | None, None, "Pairs in place of texts: answer against wrong after each clean text."),
        "head": option(
            str | None, None, "Head whose scores are split in place of a logit, as layer.head, counted from 0.",
            metavar="L.H",
        ),
        "by_position": option(bool, False, "Parts of every prediction, not only their means.", "--by-position"),
    },
    examples=(
        ("attnscope attribute gpt2 corpus.txt", "the next token, everywhere in a file"),
        ('attnscope attribute gpt2 "The Eiffel Tower is in" --token " Paris" --against " Rome"', "one prompt"),
        ("attnscope attribute gpt2 corpus.txt --head 5.1", "why a head attends where it does"),
        ("attnscope attribute gpt2 --pairs pairs.jsonl", "pairs with clean, corrupted, answer and wrong"),
    ),
)  # fmt: skip
def attribute(arguments: dict[str, Any], output: options.Output) -> None:
    """Split the logit of a token into what heads, feed-forward layers and embeddings add; logit lens."""
    if arguments["head"] is not None:
        [arguments["head"]] = options.heads_of("--head", arguments["head"])
    run("attribute", output, **arguments)


_PAIRS = (
    "Pairs of a clean and a corrupted text: one file of JSON Lines with clean, corrupted, answer and wrong in each "
    "line; or two text files with the same lines in order; or four, with the answers and the wrong ones."
)


_OF_PAIRS = {
    "pairs": argument(list[Path] | None, None, _PAIRS, show_default="those of the bundled model"),
    "answer": option(str | None, None, "Right answer, of all pairs that have none of their own: for a mask a token."),
    "wrong": option(str | None, None, "Wrong answer, of all pairs that have none of their own."),
}


@options.takes(
    "model", *options.LOADING, "seed", *options.UNITS, "batch_size", "variants", "repair", *options.WRITING,
    batch_size=varied("batch_size", help="Pairs at a time."),
    as_csv=varied("as_csv", False, help="CSV on standard output: one line for each position and set."),
    own=_OF_PAIRS | {
        "what": option(
            str, "heads",
            "Activations that are patched: heads, query, key, value or weights (of a head), attention, mlp or residual "
            "(the stream after a block).",
        ),
        "by_position": option(bool, False, "Heads at one position at a time.", "--by-position"),
        "direction": option(
            str | None, None,
            "Direction: denoising puts clean activations into the corrupted run, noising does the opposite.",
            show_default="denoising; noising with --receiver",
        ),
        "receiver": option(
            str | None, None, "Path patching: what alone passes the effect on: a later head (3.6), its queries, keys "
            "or values (3.6.q, 3.6.k, 3.6.v), an MLP (m3), several with commas, or logits.",
        ),
        "together": option(
            list[str] | None, None, "Heads and MLPs patched together, in addition, as in 4.2,3.1,m3; may be repeated."
        ),
        "steps": option(int, 5, "Gradients of the EAP-IG estimate; 0 leaves out all estimates."),
    },
    examples=(
        ("attnscope patch", "the bundled model on its pairs"),
        ("attnscope patch gpt2 pairs.jsonl", "pairs with clean, corrupted, answer and wrong"),
        ("attnscope patch gpt2 pairs.jsonl --what residual", "the stream after each block"),
        ("attnscope patch google-t5/t5-small pairs.jsonl", "encoder-decoder; pairs may add target"),
    ),
)  # fmt: skip
def patch(arguments: dict[str, Any], output: options.Output) -> None:
    """Find what carries a difference: put activations of a clean run into a corrupted one."""
    arguments |= {name: arguments[name] or default for name, default in (("pairs", None), ("together", ()))}
    run("patch", output, **arguments)


@options.takes(
    "model", *options.LOADING, "seed", "batch_size", "repair", *options.WRITING,
    batch_size=varied("batch_size", help="Pairs at a time."),
    as_csv=varied("as_csv", False, help="CSV on standard output: one line for each edge."),
    own=_OF_PAIRS | {
        "method": option(
            str, "eap_ig", "Score of an edge: eap (one gradient), eap_ig (mean of gradients) or exact (patched).",
        ),
        "steps": option(int, 5, "Gradients of eap_ig."),
        "size": option(
            list[float] | None, None, "Size of a circuit, as a share of all edges; may be repeated.",
            show_default="11 sizes from 0 to 1",
        ),
        "draws": option(int, 3, "Random orders of the edges, next to which circuits are shown."),
    },
    examples=(
        ("attnscope edges", "the bundled model on its pairs"),
        ("attnscope edges gpt2 pairs.jsonl", "pairs with clean, corrupted, answer and wrong"),
        ("attnscope edges gpt2 pairs.jsonl --method exact --csv", "every edge patched, one line for each"),
        ("attnscope edges google-t5/t5-small pairs.jsonl", "encoder-decoder: pairs may add target, the answer so far"),
    ),
)  # fmt: skip
def edges(arguments: dict[str, Any], output: options.Output) -> None:
    """Find the edges between heads, MLPs and logits that carry an answer, and test circuits of the best ones."""
    arguments["pairs"] = arguments["pairs"] or None
    sizes = arguments.pop("size")
    run("edges", output, **arguments, **({"sizes": sizes} if sizes else {}))

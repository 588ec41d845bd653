"""`attnscope_relations.relations`."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Unpack

from attnscope.options import (
    SCALE,
    Count,
    Flag,
    ModelsOrBundled,
    Names,
    PathOrName,
    Sources,
    StudyReading,
    Typed,
    Words,
)
from attnscope.support.checked import Bounds
from attnscope.support.errors import AttnscopeError
from attnscope.verbs import verb

if TYPE_CHECKING:
    import xarray as xr


_FILES = "a .conllu, .jsonl, .pdb or .wav file"


def _check_texts(arguments: Mapping[str, Any]) -> None:
    """Reject a call without data, or without a model."""
    model, texts = arguments.get("model"), arguments.get("texts")
    is_named = isinstance(model, str | Path)
    has_words = arguments.get("query") is not None and arguments.get("key") is not None
    if texts is None and not has_words:  # two words have the bundled sample
        if is_named and Path(model).is_file() and Path(model).suffix != ".gguf":
            raise AttnscopeError(f"{model} is not a model: write attnscope relations MODEL {model}")
        command = f"attnscope relations {model if is_named else 'MODEL'} FILE"
        raise AttnscopeError(f"found no texts with links: write {command}, with {_FILES}")
    if texts is None:
        return
    several = texts if isinstance(texts, list | tuple) else [texts]
    plain = next((text for text in several if isinstance(text, str)), None)
    if plain is not None and all(arguments.get(name) is None for name in ("query", "key", "gold")):
        raise AttnscopeError(
            f"found the plain text {plain!r:.40}, which has no links: add --from WORD --to WORD, or give {_FILES}"
        )


@verb(
    before=_check_texts,
    examples=(
        ('attnscope relations bundled:pronoun "The cat left it, as it was shy." --from it --to cat', "two words"),
        ("attnscope relations bert-base-uncased treebank.conllu", "every relation of a treebank"),
        ("attnscope relations bert-base-uncased treebank.conllu --only nsubj,obj", "two of them"),
        ("attnscope relations bert-base-uncased treebank.conllu --together", "all heads together, and trees"),
        ("attnscope relations gpt2 agreement.jsonl --ablate", "does the best head matter?"),
        ("attnscope relations gpt2 passages.jsonl", "pairs of spans: coreference, brackets, ..."),
        ("attnscope relations HuggingFaceTB/SmolLM2-135M src/ --window 512", "names and brackets of Python source"),
        ("attnscope relations facebook/esm2_t6_8M_UR50D 1crn.pdb", "residues of a protein in contact"),
        ("attnscope relations openai/whisper-base recordings/", "words and their sound"),
        ("attnscope relations ./translator test.en --target test.fr --gold links.txt", "words and their translations"),
    ),
)
def relations(
    model: ModelsOrBundled = None,
    texts: Annotated[
        Sources,
        "Read texts with links from these files: .conllu or .jsonl, or texts with --from and --to; Python source from "
        ".py; proteins from .pdb, .cif or .contacts; sounds with their transcripts. A line of JSON Lines is "
        '``{"text": ..., "pairs": [{"name": ..., "from": [12, 14], "to": [8, 10]}]}``, by characters, or '
        '``{"sequence": ..., "contacts": [[3, 40]]}``, by residues from 1. In Python also such objects. Next to a '
        "sound are its transcript (``name.txt``) and times of its words (``name.TextGrid``, ``.ctm`` or ``.json``); "
        "see docs/guides/word-times.md.",
    ] = None,
    *,
    query: Annotated[
        str | None,
        Flag("from"),
        Typed(metavar="WORD"),
        "Find heads that attend from this word, or /pattern/, of plain texts. Adjacent words that spell one "
        '(``"New York"``) count as one; a pattern is between slashes (``"/[Ii]t/"``). Needs `key`.',
    ] = None,
    key: Annotated[
        str | None, Flag("to"), Typed(metavar="WORD"), "Find heads that attend to this word, or /pattern/."
    ] = None,
    only: Annotated[
        Names | None,
        "Measure these relations only, with commas between; nsubj includes nsubj (reversed). By default all.",
    ] = None,
    words: Annotated[
        Words, "Merge tokens to these words where the data have none: unicode, space, or a file of spans."
    ] = "unicode",
    untrained: Annotated[
        bool, Flag("untrained"), "Measure a copy of the model with fresh weights too, which takes as long again."
    ] = True,
    together: Annotated[
        bool,
        "Put all heads together too: logistic regression over their weights, cross-validated by document, and "
        "dependency trees from .conllu. The regression (L2, C = 0.1) is fitted to the right words and at most 20 "
        "others of each query, in 5 folds of the documents, of which it needs six.",
    ] = False,
    ablate: Annotated[
        bool,
        "Ablate the best head of each relation, and compare how well the model tells good from bad: lines with a text "
        'that is right and one that is wrong, ``{"good": ..., "bad": ..., "verb": [12, 15], "subject": [4, 8]}``. For '
        "sounds, compare the errors of times of words; for proteins, with `together`, the contacts. The head has the "
        "best score of those with more weight along the relation than uniform attention, and its output becomes its "
        "mean over these texts; it is compared with at most 16 others of its layer.",
    ] = False,
    gold: Annotated[
        PathOrName | None,
        "Compare the translations (--target) with this file of links, a line a pair: 1-2 is a sure link of source word "
        "1 and target word 2, 1p2 a possible one; words are between spaces.",
    ] = None,
    gold_first: Annotated[Annotated[int, Bounds(0, 1)], "Count words in the file of links from this number."] = 1,
    prompt: Annotated[
        str | None,
        "Write text and translation into this prompt, for a model that is a decoder alone: "
        '``"English: {source} French: {target}"``. Needs `gold`.',
    ] = None,
    batch_size: Annotated[
        Count | None, SCALE, "Measure this many texts at a time. By default about 2,048 tokens' worth."
    ] = None,
    **reading: Unpack[StudyReading],
) -> "xr.Dataset":
    """Find the heads that link what belongs together: syntax, coreference, or two words, next to controls.

    Tokens are merged to words: queries are averaged and keys summed (Clark et al. 2019). A head is right for a query
    with a link if its largest weight on another word is on one that the query belongs to.

    Returns
    -------
    xarray.Dataset
        Over ``(relation, layer, head)``: ``score``, the share of queries for which the head is right, with its interval
        over documents (``score_low``, ``score_high``); ``weight``, the mean weight on the linked word;
        ``exchanged`` and ``exchanged_weight``, the same for links of other texts of the same length; ``untrained``, the
        score with fresh weights; ``above``, the score less the largest control; ``p``; ``shown``, whether the head
        links the relation. Over ``(relation, layer)``: ``chance``, the score of a random visible word; ``uniform``, the
        weight under uniform attention. Over ``relation``: ``offset_score`` of the best fixed offset, chosen on the
        other half of the documents; ``best_layer`` and ``best_head``; ``held_out``, the score of the head that is best
        in the other half, with its interval; ``held_out_above``, that less the largest control; ``held_out_p``;
        ``linked``, whether it is significantly above all controls, corrected for all relations, and by 0.1 or more;
        ``queries`` and ``units``, their number and that of the documents. ``window_right`` and others are sums over
        each text.

        With contacts, over ``(cut, layer, head)``: ``precision`` at L, L/2 and L/5 of the pairs of residues, ranked by
        symmetrised weights with the average product corrected (Rao et al. 2021), with its interval over proteins,
        ``precision_exchanged``, ``precision_untrained``, ``precision_above``, ``precision_p`` and ``precision_shown``;
        over ``cut``: ``precision_separation`` of pairs ranked by separation, ``precision_chance``,
        ``precision_best_layer``, ``precision_best_head`` and ``precision_held_out``.

        For translations with links, over ``(layer, head)``: ``error_rate`` of the alignment by a head, with its
        interval over pairs, ``error_rate_exchanged`` and ``error_rate_untrained``; ``error_rate_best_layer`` and
        ``error_rate_best_head``; ``error_rate_held_out`` of the head that is best in the other half of the pairs;
        ``error_rate_diagonal`` and ``error_rate_chance``, of random words.

        For sounds with times of words, ``weight`` and ``score`` are within 0.1 s of the word; over ``(layer, head)``:
        ``error``, the mean error of the starts of words in ms, and ``correlation``, the rank correlation of the mean
        time of a token's weights with that of its word, with intervals; ``chosen``, the set that minimises the error,
        and ``set_order`` in it; ``listed``, the heads in the model's generation config. Over ``set``: ``set_error`` and
        ``set_difference`` from the listed heads, with intervals, and ``set_size``. Without times, ``correlation``,
        which is also ``score``, is with the order of the tokens, ``exchanged_correlation`` the same if the decoder
        attends to another sound, and there are no errors. Layers are also numbered by
        ``decoder_layer``, as in lists of alignment heads.

        With `ablate`, over ``relation``: ``margin`` of right over wrong texts in nats, with its interval; of sounds in
        ms, how much closer than a constant pace the starts of words are; of contacts the precision at L above that of
        pairs ranked by separation. ``ablated`` is its change without the head ``ablated_layer``, ``ablated_head``,
        ``ablated_others`` that without another head of the layer, and ``ablated_matters`` whether it falls
        significantly, and more than without others. ``ablated_change`` has the change for each head.

    Raises
    ------
    AttnscopeError
        If no text has a link, or an argument, the model or a file cannot be used.

    Examples
    --------
    >>> from attnscope_relations import relations
    >>> sentence = "The animal didn't cross the street because it was too tired."
    >>> found = relations("bundled:pronoun", sentence, query="it", key="animal")
    >>> float(found.weight.max()) > 0.7, int(found.best_layer[0]), int(found.best_head[0])
    (True, 1, 0)
    """
    from attnscope.measure.reader import scan_settings
    from attnscope.read.sounds import sounds_of
    from attnscope.store.units import task_for
    from attnscope_relations.data import linked_texts, only_of
    from attnscope_relations.measure import RelationReader
    from attnscope_relations.speech import SpeechReader, reject_for_sounds
    from attnscope_relations.translations import TranslationReader, linked_pairs
    from attnscope_relations.word_pairs import texts_with_words

    task = task_for(relations, locals(), in_memory=True)
    sounds = sounds_of(texts)
    if sounds is not None:
        reject_for_sounds(query=query, key=key, only=only, together=together)
        read = scan_settings(reading, statistics="entropy")
        return SpeechReader(model, sounds, read, untrained=untrained, ablate=ablate).scan(task)
    settings = scan_settings(reading, statistics="entropy", words=words, batch_size=batch_size)
    more: Any = {"untrained": untrained, "together": together, "ablate": ablate, "only": only}
    if gold is not None:
        pairs = linked_pairs(texts, reading["targets"], Path(gold), gold_first, prompt)
        return TranslationReader(model, only_of(pairs, only), settings, **more).scan(task)
    if prompt is not None or reading["targets"] is not None:
        raise AttnscopeError("translations (--target, --prompt) need links: add a file of them (--gold)")
    linked = (
        linked_texts(texts) if query is None and key is None else texts_with_words(texts, query, key, words, reading)
    )
    return RelationReader(model, only_of(linked, only), settings, **more).scan(task)

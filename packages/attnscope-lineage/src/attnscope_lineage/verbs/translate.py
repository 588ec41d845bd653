"""`attnscope_lineage.translate`."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Unpack

from attnscope.options import IN_PYTHON, SCALE, Beams, Count, Model, Seed, Tell, Typed, path_of, text_or_place
from attnscope.verbs import verb
from attnscope_lineage.options import Lines, TranslationOptions

if TYPE_CHECKING:
    from attnscope_lineage.translation import Translations


@verb()
def translate(
    model: Annotated[
        Model,
        "Translate with this model: a folder of `attnscope train`, another model folder or a hub id. It is an "
        "encoder-decoder: see `attnscope.scan`.",
    ],
    texts: Annotated[
        Lines,
        Typed(text_or_place, "PATH", usual="-"),
        "Translate these sentences: in quotes, or a file, one a line; - is standard input. In Python a list of "
        "strings, a string with one sentence per line, or the `Path` of such a file. Empty lines stay empty.",
    ],
    *,
    ensemble: Annotated[
        Sequence[str | Path],
        Typed(path_of, "PATH", repeated=True),
        "Translate with these models too: at each step, the probabilities of the next token are averaged. They have "
        "the same tokenizer; checkpoints of a training are FOLDER/checkpoints/00001000.",
    ] = (),
    beams: Annotated[Beams, "Search with this many beams: translations followed at a time; 1 is greedy."] = 5,
    length_penalty: Annotated[
        float, "Divide log-probabilities by this power of the length. The length is in tokens."
    ] = 1.0,
    n_best: Annotated[Count, "Write this many translations of each line, the best first."] = 1,
    sample: Annotated[bool, "Draw words instead of searching for them."] = False,
    temperature: Annotated[
        float, "Divide logits by this number with --sample; below 1, unlikely words become rarer."
    ] = 1.0,
    seed: Annotated[Seed, "Seed the random number generators with this number."] = 0,
    batch_tokens: Annotated[Count, SCALE, "Translate this many source tokens times beams at a time."] = 4_096,
    overlong: Annotated[
        Literal["reject", "split", "cut"],
        "Reject, split or cut lines longer than the model was trained for. That is ``tokenizer.model_max_length``, "
        "or the model's position table: ``reject`` is an error that names the line, ``split`` splits it into "
        "pieces and joins their translations.",
    ] = "reject",
    scores: Annotated[
        bool,
        IN_PYTHON,
        "Score translations, with one more forward pass; otherwise ``.score`` is None. Several samples of a "
        "sentence (`sample` with `n_best` above 1) are always scored, because the scores order them.",
    ] = False,
    progress: Annotated[
        Tell | None, IN_PYTHON, "Called with a `Progress` after each batch, with the number of ``lines`` done."
    ] = None,
    **reading: Unpack[TranslationOptions],
) -> "Translations":
    """Translate: one translation a line, in the order of the text; empty lines stay empty.

    Returns
    -------
    Translations
        The translations of each sentence in order, best first; ``.texts`` has only the best ones. With ``scores=True``
        each has its ``.score``.

    Raises
    ------
    AttnscopeError
        If the model is not an encoder-decoder, the file cannot be read, a line is too long (with ``reject``), or
        settings contradict each other.
    """
    from dataclasses import replace

    from attnscope.read.windows import TargetTokenizer
    from attnscope.report.signature import Signature, package_versions, tokenizer_sha256
    from attnscope.support.errors import AttnscopeError
    from attnscope_lineage.ensembles import open_translator
    from attnscope_lineage.parallel_text import lines_of_text, lines_sha256
    from attnscope_lineage.translation import translate_lines

    lines, language = lines_of_text(texts, "the text"), reading["target_language"]
    settings: dict[str, Any] = {"beams": beams, "length_penalty": length_penalty, "n_best": n_best, "sample": sample}
    settings |= {"temperature": temperature, "seed": seed, "batch_tokens": batch_tokens, "overlong": overlong}
    sessions = [open_translator(one, reading) for one in (model, *ensemble)]
    loaded, *others = [session.load(options) for session, options in sessions]
    identity = tokenizer_sha256(loaded.tokenizer)
    for one in (loaded, *others):
        if not one.model.config.is_encoder_decoder:
            raise AttnscopeError(
                f"{type(one.model).__name__} is not an encoder-decoder: "
                "use a translation model, such as one from `attnscope train`"
            )
        if tokenizer_sha256(one.tokenizer) != identity:
            raise AttnscopeError(
                f"{one.name} has another tokenizer than {loaded.name}: an ensemble averages the probabilities of the "
                "same tokens. Train them with one --tokenizer"
            )
    begin: dict[str, int] = {}
    if language is not None:  # its token is forced first, or starts the decoder
        coded = TargetTokenizer(loaded.tokenizer, language)("a", return_special_tokens_mask=True)
        first, *_, last = coded.input_ids
        begin = {"forced_bos_token_id": first} if coded.special_tokens_mask[0] else {"decoder_start_token_id": last}
    together = [one.model for one in others]
    made = translate_lines(
        loaded.model, loaded.tokenizer, lines, **settings, scores=scores, progress=progress, begin=begin,
        others=together,
    )  # fmt: skip
    signature = Signature(
        "translate",
        model={"name": loaded.name, **loaded.identity}
        | ({"ensemble": [{"name": one.name, **one.identity} for one in others]} if others else {}),
        tokenizer={"sha256": identity},
        text={"lines": len(lines), "source_sha256": lines_sha256(lines)},
        settings=settings | ({} if language is None else {"target_language": language}),
        versions=package_versions(),
    )
    return replace(made, signature=signature.to_json())

"""`attnscope.generate`."""

from typing import TYPE_CHECKING, Annotated, Any, Unpack

from attnscope.options import SCALE, Beams, Count, Flag, Models, PromptReading, Share, Sources, Spans
from attnscope.support.checked import Bounds
from attnscope.verbs import verb

if TYPE_CHECKING:
    import xarray as xr


@verb(
    examples=(
        ("attnscope generate gpt2 --prompt 'The tide is'", "one prompt"),
        ("attnscope generate gpt2 prompts.txt --by-line --limit 20", "prompts, one a line"),
        ("attnscope generate ./chat-model chats.jsonl --groups roles", "chats, by role"),
        ("attnscope generate ./vision-language-model pictures.jsonl", "texts with images"),
    )
)
def generate(
    model: Annotated[
        Models,
        "Measure this model, or several with commas between: causal models or encoder-decoders. See `attnscope.scan`. "
        "There is no default, because the bundled model is a masked language model and cannot generate. In a chat, "
        "a last message of the assistant is left out.",
    ],
    texts: Annotated[
        Sources,
        "Continue these texts: in quotes, or files or folders of text or their URLs; - is standard input. See "
        "`attnscope.scan`; the beginning of each text is a prompt. An encoder-decoder reads it with its encoder. A "
        "vision-language model continues texts with images: JSON Lines of ``text`` or ``messages``, and ``image``.",
    ] = None,
    *,
    new_tokens: Annotated[
        Count | None,
        "Write at most this many tokens; the model may end a text earlier. By default 64. If the model takes no more "
        "in all, half of what it takes.",
    ] = None,
    beams: Annotated[Beams, "Search with this many beams; 1 is greedy."] = 1,
    sample: Annotated[
        bool,
        "Draw each token instead of searching for it. Scores are divided by `temperature`, and the token is among "
        "the most likely ones with a total probability of `top_p`. Without it the most likely token is chosen.",
    ] = False,
    temperature: Annotated[
        float, Bounds(0.0), "Divide scores by this number with --sample; below 1, unlikely tokens become rarer."
    ] = 1.0,
    top_p: Annotated[
        Share, "Draw among the likeliest tokens that have this probability together, with --sample."
    ] = 1.0,
    spans: Annotated[
        Spans | None,
        Flag("span"),
        "Mark this span of the prompts by name, as it reads, with ... for any text between: "
        'document=\'<doc>...</doc>\'; may be repeated. In Python ``{"document": "<doc>...</doc>"}``. All matches '
        "are marked; each span must match a prompt.",
    ] = None,
    cache: Annotated[
        str, "Keep keys and values in this cache: dynamic, static or none. A static one has a fixed length."
    ] = "dynamic",
    batch_size: Annotated[Count, SCALE, "Continue this many prompts at a time. They are padded on the left."] = 1,
    **reading: Unpack[PromptReading],
) -> "xr.Dataset":
    """Measure where every head attends while the model writes: each new token of continued texts.

    A step is a new token. Its numbers are those of the query that predicted it, the token before it. They equal those
    of one full pass over the final text; each run checks this on its first text.

    Returns
    -------
    xarray.Dataset
        Dimensions ``sequence, step, layer, head``. ``span_weight`` (and ``span``): weight on the prompt, on each named
        span, and on the model's ``own output``; for an encoder-decoder, on the ``source`` in cross-attention, and on
        the decoder's ``start`` and its ``own output`` in its self-attention. ``entropy`` (nats), ``max_weight``,
        ``first_token``, ``mean_offset`` (key minus query, tokens), ``top_key`` (position of the key with the largest
        weight), ``bin_weight`` over ``offset_bin``. ``equal_span_weight``, ...: uniform attention over the same keys;
        ``position_span_weight``: predicted from the head's offsets and first token alone. NaN after the end of a text.
        Texts with images have the spans ``image`` (``image 1``, ... of several), ``text`` and ``special``, or the roles
        of chats; ``patch_weight`` over ``patch``: weight on each patch, row by row in the images ``view``, which have
        ``view_rows``, ``view_columns`` and ``view_picture`` (JPEG, base64). Coordinates ``token_id`` (of the chosen
        token) and ``position`` (of the query, from the start of the text), over
        ``sequence, step``; ``text_token`` has the whole texts, ``written`` the new part.

    Raises
    ------
    AttnscopeError
        If an argument or the model cannot be used; the message says what to do.

    Examples
    --------
    >>> import attnscope
    >>> attnscope.generate("bundled", ["Once upon a time"])
    Traceback (most recent call last):
    ...
    attnscope.AttnscopeError: the bundled masked language model cannot generate: give ...
    """
    from collections.abc import Iterator
    from functools import partial

    from attnscope.capture.modalities import modality_of, reject_modalities
    from attnscope.measure.generation import CACHES, Generation, check_spans, read_prompts
    from attnscope.measure.pictured_generation import PicturedGeneration, open_prompts
    from attnscope.measure.texts import beyond_note, grouping_for, read_sides
    from attnscope.opened import Opened
    from attnscope.read.image_text import PicturedTexts
    from attnscope.read.sources import as_list
    from attnscope.support.errors import AttnscopeError
    from attnscope.support.progress import no_progress

    if cache not in CACHES:
        raise AttnscopeError(f"cache (--cache) is {cache!r:.40}; expected {', '.join(CACHES)}")
    if not temperature or not top_p:
        raise AttnscopeError("temperature (--temperature) and top_p (--top-p) must be above 0")
    if not sample and (temperature, top_p) != (1.0, 1.0):
        raise AttnscopeError("temperature and top_p need sampling: add sample (--sample)")
    patterns = spans or {}
    check_spans(patterns)

    texts = as_list(texts) if isinstance(texts, Iterator) else texts
    limit = reading["limit"]
    settings: Any = {
        "beams": beams,
        "sample": sample,
        "temperature": temperature,
        "top_p": top_p,
        "seed": reading["seed"],
        "cache": cache,
        "limit": limit,
        "batch_size": batch_size,
    }
    tell = reading["progress"] or no_progress
    modality = modality_of(model, texts, field=reading["field"], revision=reading["revision"])
    if isinstance(modality, PicturedTexts):
        reader, new_tokens = open_prompts(model, modality, reading, new_tokens, patterns, batch_size)
        session = Opened.of(model, texts)
        session.model, session.corpus = reader.loaded, modality
        prompts = [placed.window for placed in reader.placed]
        settings |= {"new_tokens": new_tokens, **(reader.reader or {})}
        job = PicturedGeneration(reader.loaded, prompts, reader.grouping, patterns, settings, tell, reader)
        return session.run("generate", job, job.signature_settings(reader.reach + 1), reading)
    reject_modalities("generate", model, texts, field=reading["field"], revision=reading["revision"])
    session = Opened.of(model, texts)
    lines: Any = {name: dict(reading)[name] for name in ("field", "by_line", "chat", "chat_template")}
    corpus, _ = read_sides(session, None, stride=None, **lines)
    grouping = grouping_for(reading["groups"], corpus)
    window = reading["window"]
    read = partial(read_prompts, corpus=corpus, window=window, new_tokens=new_tokens, limit=limit, patterns=patterns)
    loaded = session.load(reading, check=read)
    session.corpus, length, new_tokens, prompts, notes = read(loaded)

    settings["new_tokens"] = new_tokens
    grouping = None if grouping is None else grouping.over(prompts)
    job = Generation(loaded, prompts, grouping, patterns, settings, tell)
    longest = max(length, new_tokens) if loaded.model.config.is_encoder_decoder else length + new_tokens
    notes |= beyond_note(loaded, longest, "Texts with their new tokens")
    return session.run("generate", job, job.signature_settings(length), reading, attributes=notes)

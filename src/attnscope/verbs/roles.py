"""`attnscope.roles`."""

from typing import TYPE_CHECKING, Annotated, Unpack

from attnscope.options import (
    SCALE,
    Controls,
    Count,
    HiddenNeedles,
    ModelsOrBundled,
    Names,
    Reading,
    ScoredHeads,
    TextsOrSounds,
)
from attnscope.verbs import verb

if TYPE_CHECKING:
    import xarray as xr


@verb(
    limit=32,
    examples=(
        ("attnscope roles", "the bundled model on the bundled text"),
        ("attnscope roles gpt2 corpus.txt --only induction", "one role in a model of the hub"),
        ("attnscope roles openai/whisper-base recordings/", "a speech model on sounds"),
        ("attnscope roles --only list", "the definitions of all roles"),
    ),
)
def roles(
    model: ModelsOrBundled = None,
    texts: TextsOrSounds = None,
    *,
    only: Annotated[
        Names | str | None,
        "Score only these roles, with commas between; list names them all. They are of "
        "``attnscope.detection.role.ROLES``. Roles that are undefined for a model are left out; ``skipped`` has "
        "the reasons. ``default`` stands for the published ones, to add one of your own (`attnscope.role`). By default "
        "the published ones.",
    ] = None,
    heads: ScoredHeads = None,
    needles: HiddenNeedles = None,
    controls: Controls = None,
    batch_size: Annotated[
        Count | None, SCALE, "Measure this many windows at a time. By default about 2,048 tokens' worth."
    ] = None,
    **reading: Unpack[Reading],
) -> "xr.Dataset":
    """Find which published roles heads have, next to uniform attention and untrained weights.

    Positional roles are scored on windows of the texts; duplicate-token and induction heads on 16 texts of repeated
    random tokens; retrieval heads on prompts with a hidden sentence that the model answers correctly. No matrix of
    weights is stored.

    In sounds, tokens are the frames of the encoder; of a decoder, cross-attention is scored. Roles of punctuation, of
    random tokens and of answers are left out, and ``sound_order`` is added: how far the mean time of its weight
    rises with the order of the tokens.

    Returns
    -------
    xarray.Dataset
        Over ``role, layer, head``: ``score`` (mean over the windows that are long enough for the role; NaN where it is
        undefined for a layer), ``low`` and ``high`` (95% interval by the bootstrap over documents, or windows if there
        are fewer than 6 documents; texts of random tokens; or needles; NaN for fewer than 6), ``windows_reached``
        (share of those windows that reach the threshold; for ``first_token`` its mean over heads is the sink metric of
        Gu et al.). Over ``role, layer``: ``equal``, under uniform attention. Over ``control, role, layer, head``:
        ``control_score``. Over ``role``: ``windows``, the number of those windows, and
        ``threshold`` (NaN where none is published), with the coordinates ``title``, ``definition``, ``source`` and
        ``probe``. The attributes
        ``skipped`` (roles left out, with reasons) and ``notes`` (on the texts) are JSON; ``beyond`` says that windows
        exceed the model's position table; ``left_out`` has the number of windows that were too short.

    Raises
    ------
    AttnscopeError
        If a role or control is unknown, the texts have no window of 8 tokens, or for anything else that the caller can
        mend.

    Examples
    --------
    >>> result = roles(only="previous_token, next_token", limit=4, controls="none")
    >>> best = result["score"].sel(role="previous_token").argmax(...)
    >>> {name: int(index) for name, index in best.items()}, result["threshold"].values.tolist()
    ({'layer': 0, 'head': 3}, [0.5, 0.5])
    """
    from attnscope.detection.probes import needles_of
    from attnscope.detection.role import OF_SOUNDS, ROLES, chosen_roles
    from attnscope.detection.roles import Scoring, wanted_controls
    from attnscope.detection.sounds import notes_on, open_sounds
    from attnscope.head_names import checked_choice
    from attnscope.measure.texts import beyond_note
    from attnscope.opened import Opened
    from attnscope.store.run import Once
    from attnscope.support.errors import AttnscopeError

    names, drawn = chosen_roles(only), wanted_controls(controls)
    if needles is not None and all(ROLES[name].probe != "needle" for name in names):
        raise AttnscopeError("needles (--needles) need retrieval heads: add retrieval (--only)")
    hidden = None if needles is None else needles_of(needles)
    chosen_heads = checked_choice(heads)
    opened = open_sounds("roles", model, reading, texts, chosen_heads, needles=needles, batch_size=batch_size)
    if opened is not None:
        session, sounds = opened
        names += [] if only else OF_SOUNDS
        scoring = Scoring.of_sounds("roles", session, sounds, reading, names, drawn, chosen_heads)
        return session.run("roles", Once(scoring.scores), scoring.settings, reading, attributes=notes_on(sounds))
    session = Opened.open("roles", model, reading, texts, heads=chosen_heads or (), option="heads, --heads")
    scoring = Scoring.of("roles", session, reading, names, hidden, drawn, batch_size, heads=chosen_heads)
    beyond = beyond_note(session.model, scoring.length)
    return session.run("roles", Once(scoring.scores, scoring.work), scoring.settings, reading, attributes=beyond)

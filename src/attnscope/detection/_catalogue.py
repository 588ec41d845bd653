"""All roles of heads that are looked for: each as its score, its definition and who defined it."""

from __future__ import annotations

from collections.abc import Sequence

from attnscope._arguments import typed
from attnscope.detection._role import ANY, LOOKS_BACK, Role
from attnscope.detection._seen import DELIMITERS, FIRST
from attnscope.errors import AttnscopeError
from attnscope.statistics._kinds import LOCAL, MORE

_CLARK = "Clark et al. 2019, What Does BERT Look At?"
_SINK = "Gu et al. 2024, When Attention Sink Emerges in Language Models (sail-sg/Attention-Sink)"
_LENS = "TransformerLens, head_detector"
_ONE_SIDED = "every layer sees both sides or another text"

ROLES: dict[str, Role] = {
    role.name: role
    for role in (
        Role(
            "previous_token",
            "previous token",
            "Share of the weight at offset -1; more than half makes a previous-token head.",
            f"{_CLARK}; the score is that of {_LENS}",
            "text",
            lambda seen: seen.at(-1),
            threshold=0.5,
        ),
        Role(
            "next_token",
            "next token",
            "Share of the weight at offset 1; more than half makes a next-token head.",
            _CLARK,
            "text",
            lambda seen: seen.at(1),
            threshold=0.5,
            layers=("self",),
            otherwise="no layer sees later tokens",
        ),
        Role(
            "current_token",
            "current token",
            "Share of the weight on the token itself.",
            _CLARK,
            "text",
            lambda seen: seen.at(0),
        ),
        Role(
            "first_token",
            "first-token sink",
            "Mean weight on the first token, over all queries that see it; above 0.3 it is a sink.",
            _SINK,
            "text",
            lambda seen: seen.on(FIRST),
            threshold=0.3,
            layers=ANY,
        ),
        Role(
            "sink",
            "sink, any token",
            "Largest mean weight that a key gets from the queries that see it, over the keys that at least half of the "
            "queries see; above 0.3 that key is a sink.",
            f"{_SINK}, for every key; the bound on late keys, which few queries see, is ours",
            "text",
            lambda seen: seen.most_received(),
            threshold=0.3,
            layers=ANY,
        ),
        Role(
            "local",
            "local",
            "Share of the weight within 8 tokens on either side; half or more, and twice uniform attention's share, is "
            "local.",
            "attnscope scan, kinds of heads",
            "text",
            lambda seen: seen.near(),
            threshold=LOCAL,
            more=MORE,
        ),
        Role(
            "delimiter",
            "delimiter",
            "Share of the weight on punctuation, line breaks and special tokens behind the first place.",
            f"{_CLARK} (heads that look at periods, commas and [SEP])",
            "text",
            lambda seen: seen.on(DELIMITERS),
            layers=ANY,
        ),
        Role(
            "streaming",
            "streaming",
            "Share of the weight on the first 4 and the latest 64 tokens, of queries that see more than these. Of the "
            "definition this is the attention pattern; that the output does not change is not measured here.",
            "Xiao et al. 2024, DuoAttention",
            "text",
            lambda seen: seen.streamed(),
            layers=LOOKS_BACK,
            otherwise=_ONE_SIDED,
        ),
        Role(
            "duplicate_token",
            "duplicate token",
            "On random tokens said twice: mean weight from a token's second occurrence to its first.",
            f"{_LENS}; Wang et al. 2022, Interpretability in the Wild",
            "repeated",
            lambda seen: seen.mean(0),
        ),
        Role(
            "induction",
            "induction",
            "On random tokens said twice: mean weight from a token's second occurrence to the token after its first.",
            f"{_LENS}; Olsson et al. 2022, In-context Learning and Induction Heads",
            "repeated",
            lambda seen: seen.mean(1),
            layers=LOOKS_BACK,
            otherwise=f"{_ONE_SIDED}: what comes next need not be guessed there",
        ),
        Role(
            "retrieval",
            "retrieval",
            "Of the tokens of a needle hidden in a text, the share that the model says while the head's largest weight "
            "lies on that very token; mean over prompts that the model answers; 0.1 or more makes a retrieval head.",
            "Wu et al. 2024, Retrieval Head Mechanistically Explains Long-Context Factuality "
            "(nightdessert/Retrieval_Head)",
            "needle",
            lambda seen: seen.score(),
            threshold=0.1,
            layers=LOOKS_BACK,
            otherwise=f"{_ONE_SIDED}: the model does not go on with a text",
        ),
    )
}


@typed
def choose_roles(names: Sequence[str] | str | None) -> tuple[str, ...]:
    """Validate the names of roles; None means all, one string holds names with commas between.

    Raises
    ------
    AttnscopeError
        If a name is unknown: the known ones are listed.

    Examples
    --------
    >>> choose_roles("induction, previous_token")
    ('previous_token', 'induction')
    """
    if names is None:
        return tuple(ROLES)
    asked = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    unknown = [name for name in asked if name not in ROLES]
    if unknown or not asked:
        what = f"there is no role {unknown[0]!r:.60}" if unknown else "no role was named"
        raise AttnscopeError(f"{what}: choose from {', '.join(ROLES)}")
    return tuple(name for name in ROLES if name in asked)

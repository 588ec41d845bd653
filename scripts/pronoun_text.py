"""Write the text of the bundled model that names the noun behind each "it" (configs/bundled/pronoun.yaml).

    python scripts/pronoun_text.py runs/pronoun-text

Each sentence has two or three nouns of different classes, and a reason that fits one of them: an animal can be tired, a
street wide, a piano heavy, a bag full. The target has that noun in place of "it". A tenth of the combinations of nouns
and reason, drawn by a hash, is held out, so that no held-out combination is in the training text; the animal, the
street, "tired" and "wide" are among them.
"""

from __future__ import annotations

import argparse
import random
import re
import zlib
from pathlib import Path

NOUNS = {
    "animal": "animal dog cat horse sheep goat cow fox wolf bear rabbit donkey elephant duck pony lion tiger mouse "
    "camel deer",
    "way": "street road bridge river field path valley square canal yard hill tunnel park forest beach lane garden "
    "meadow",
    "thing": "trophy piano lamp clock statue sofa mirror barrel ladder carpet painting stone table wheel desk chair "
    "guitar vase",
    "room": "suitcase box bag drawer car van cupboard basket room lift trunk chest case shed tent boat",
}
REASONS = {
    "animal": "tired sleepy hungry ill weak lazy scared thirsty shy young",
    "way": "wide muddy icy busy steep crowded slippery dark noisy flooded",
    "thing": "heavy big long large bulky tall thick fat high solid",
    "room": "small narrow full shallow tight short little tiny cramped low",
}
VERBS = {
    "cross": "cross,enter,reach,follow,leave,like",
    "carry": "carry,lift,move,pull,push",
    "fit": "fit into,go into,stay in,stand in",
}
FRAMES = (
    "The {animal} didn't {cross} the {way}",
    "The {animal} didn't {carry} the {thing}",
    "The {thing} didn't {fit} the {room}",
    "The {animal} with the {thing} didn't {cross} the {way}",
    "The {animal} didn't {carry} the {thing} over the {way}",
    "The {animal} didn't {carry} the {thing} to the {room}",
    "The {room} on the {way} didn't hold the {thing}",
    "The {animal} in the {room} didn't {cross} the {way}",
    "The {thing} from the {way} didn't {fit} the {room}",
    "The {room} with the {thing} didn't stop the {animal}",
    "The {way} didn't please the {animal}",
    "The {thing} didn't please the {animal}",
    "The {room} didn't please the {animal} with the {thing}",
    "The {way} was not for the {animal} and the {room}",
)
ORDERS = "{main} because {why}.", "{main}, as {why}.", "Because {why}, {main_inside}."
HELD_OUT = {("animal", "street", "tired"), ("animal", "street", "wide")}


def sentence(draw: random.Random) -> tuple[str, str, bool]:
    """A sentence, the same with the noun in place of "it", and whether its combination is held out."""
    frame = draw.choice(FRAMES)
    kinds = re.findall(r"{(\w+)}", frame)
    nouns = {kind: draw.choice(NOUNS[kind].split()) for kind in kinds if kind in NOUNS}
    verbs = {verb: draw.choice(VERBS[verb].split(",")) for verb in kinds if verb in VERBS}
    kind = draw.choice([*nouns])
    reason = draw.choice(REASONS[kind].split())
    main, order = frame.format(**nouns, **verbs), draw.choices(ORDERS, (14, 3, 3))[0]
    combination = (*nouns.values(), reason)
    held_out = zlib.crc32(" ".join(combination).encode()) % 10 == 0 or combination in HELD_OUT

    def written(subject: str) -> str:
        why = f"{subject} was too {reason}"
        return order.format(main=main, main_inside=main[0].lower() + main[1:], why=why)

    return written("it"), written(nouns[kind]), held_out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sentences", type=int, default=20_000)
    settings = parser.parse_args()
    draw, parts = random.Random(0), {"train": {}, "valid": {}}
    while len(parts["train"]) < settings.sentences:
        source, target, held_out = sentence(draw)
        parts["valid" if held_out else "train"][source] = target
    settings.folder.mkdir(parents=True, exist_ok=True)
    for name, lines in parts.items():
        for side, texts in (("it", lines), ("noun", lines.values())):
            (settings.folder / f"{name}.{side}.txt").write_text("\n".join(texts) + "\n", encoding="utf-8")
        print(f"{name}: {len(lines)} sentences")


if __name__ == "__main__":
    main()

"""In which layers of a model can syntax be read, and in which meaning? States of one word in two uses, layer by layer.

    python benchmarks/syntax_meaning.py ~/attnscope-models/all-MiniLM-L6-v2 --out probes.json

A word has the same embedding in all its uses: only its sentence tells a noun from a verb ("the walk", "they walk"), or
a bank with money from a bank of a river. After each layer, a use is told by the nearer of the two means of the word's
other sentences (leave one out). Null: copies of the model with fresh weights, which read the same sentences. The file
has the states in their first principal components, from which the page counts again.
"""

from __future__ import annotations

import argparse
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch

from attnscope.capture.load import load_model
from attnscope.detection.roles import control
from attnscope_lineage.lessons.weights import packed

COMPONENTS, COPIES = 16, 5
WORDS = ["walk", "run", "cook", "dance", "talk", "drink", "plan", "answer", "visit", "rest", "study", "promise"]
NOUN = [
    "The {} was very long.",
    "Her {} surprised everybody.",
    "We liked that {} a lot.",
    "After a short {} they went home.",
    "It was his first {} of the year.",
    "No {} is without problems.",
]
VERB = [
    "They {} every evening.",
    "You should {} with your friends.",
    "I want to {} today.",
    "We never {} before noon.",
    "People often {} here in summer.",
    "Did the children {} in the garden?",
]
#: Two meanings of one noun, five sentences each.
MEANINGS: dict[str, tuple[list[str], list[str]]] = {
    "bank": (
        [
            "The bank was muddy after the flood.",
            "We sat on the bank and fished.",
            "Reeds covered the bank of the stream.",
            "They walked along the bank of the river.",
            "The boat was tied to the bank.",
        ],
        [
            "The bank was closed, so nobody could get money.",
            "We waited in the bank for a loan.",
            "The bank of the city raised its interest rates.",
            "They opened an account at the bank.",
            "The cheque was sent to the bank.",
        ],
    ),
    "bat": (
        [
            "The bat slept in the cave all day.",
            "We saw a bat catch insects.",
            "A bat flew out of the dark barn.",
            "They found the wings of a bat.",
            "The bat hung from the branch.",
        ],
        [
            "The bat broke when he hit the ball.",
            "We bought a bat for the baseball game.",
            "A bat stood next to the gloves of the team.",
            "They swung the bat and ran.",
            "The player dropped the bat.",
        ],
    ),
    "mouse": (
        [
            "The mouse ate the cheese.",
            "We saw a mouse in the kitchen.",
            "A mouse ran away from the cat.",
            "They found the hole of a mouse.",
            "The owl caught the mouse.",
        ],
        [
            "The mouse was next to the keyboard.",
            "We bought a mouse for the computer.",
            "A mouse without cable needs a battery.",
            "They clicked with the mouse.",
            "The screen shows where the mouse points.",
        ],
    ),
    "crane": (
        [
            "The crane built its nest by the lake.",
            "We saw a crane with grey feathers.",
            "A crane flew south in autumn.",
            "They heard the call of a crane.",
            "The fish was eaten by the crane.",
        ],
        [
            "The crane lifted the steel beams.",
            "We saw a crane above the new building.",
            "A crane loads the ships in the harbour.",
            "They heard the engine of a crane.",
            "The concrete was raised by the crane.",
        ],
    ),
    "seal": (
        [
            "The seal swam under the ice.",
            "We saw a seal on the beach.",
            "A seal eats fish every day.",
            "They heard a young seal cry for its mother.",
            "The shark followed the seal.",
        ],
        [
            "The seal on the letter was broken.",
            "We saw a seal of red wax.",
            "A seal proves that the document is genuine.",
            "They found the seal of the king.",
            "The contract needs a signature and a seal.",
        ],
    ),
    "spring": (
        [
            "The spring was warm and the flowers came early.",
            "We plant the garden in spring.",
            "A spring with much rain follows the winter.",
            "They are married since last spring.",
            "The birds come back every spring.",
        ],
        [
            "The spring in the mattress was broken.",
            "We need a spring of steel for the clock.",
            "A spring pushes the lever back.",
            "They pressed the spring together.",
            "The weight hangs from a spring.",
        ],
    ),
    "match": (
        [
            "The match burned his finger.",
            "We need a match to light the candle.",
            "A match lay next to the stove.",
            "They had one wet match left for the fire.",
            "The smoker asked for a match.",
        ],
        [
            "The match ended with two goals.",
            "We watched the match in the stadium.",
            "A match lasts ninety minutes.",
            "They lost the match against the champions.",
            "The referee stopped the match.",
        ],
    ),
    "organ": (
        [
            "The organ was donated to a sick patient.",
            "We studied the organ under the microscope.",
            "An organ such as the liver cleans the blood.",
            "They removed the damaged organ.",
            "The surgeon treated the organ.",
        ],
        [
            "The organ played during the wedding.",
            "We heard the organ in the cathedral.",
            "An organ has pipes and pedals.",
            "They tuned the old organ.",
            "The musician sat at the organ.",
        ],
    ),
    "letter": (
        [
            "The letter arrived by post this morning.",
            "We wrote a letter to our aunt.",
            "A letter needs a stamp and an envelope.",
            "They read her long letter twice.",
            "The mailman brought a letter.",
        ],
        [
            "The letter is missing from the alphabet.",
            "We spell the name with one more letter.",
            "A letter such as e is a vowel.",
            "They capitalised the first letter of the word.",
            "The child cannot write this letter.",
        ],
    ),
    "star": (
        [
            "The star is bigger than our sun.",
            "We saw a star through the telescope.",
            "A star shines for billions of years.",
            "They measured the distance to the star.",
            "The planet circles a star.",
        ],
        [
            "The star signed her new film contract.",
            "We met a star at the cinema.",
            "A star earns millions in Hollywood.",
            "They photographed the famous star.",
            "The actor became a star.",
        ],
    ),
}


def sentences(kind: str) -> list[tuple[str, int, str]]:
    """A word, its use, and a sentence with it."""
    if kind == "syntax":
        return [
            (word, use, text.format(word)) for word in WORDS for use, texts in enumerate((NOUN, VERB)) for text in texts
        ]
    return [(word, use, text) for word, both in MEANINGS.items() for use, texts in enumerate(both) for text in texts]


@torch.no_grad()
def states(loaded: Any, cases: list[tuple[str, int, str]]) -> np.ndarray:
    """The state of the word in each sentence after each layer, the embedding first: (layer, sentence, width)."""
    of_sentences: list[np.ndarray] = []
    for word, _, text in cases:
        encoded = loaded.tokenizer(text, return_tensors="pt")
        pieces = loaded.tokenizer.convert_ids_to_tokens(encoded["input_ids"][0])
        at = pieces.index(word)
        hidden = loaded.model(**encoded, output_hidden_states=True).hidden_states
        of_sentences.append(np.stack([layer[0, at].numpy() for layer in hidden]))
    return np.stack(of_sentences, 1)


def right(vectors: np.ndarray, words: list[str], uses: np.ndarray) -> np.ndarray:
    """Whether each use is told by the nearer mean of the word's other sentences."""
    told = np.zeros(len(vectors), dtype=bool)
    for i, vector in enumerate(vectors):
        others = [j for j in range(len(vectors)) if words[j] == words[i] and j != i]
        apart = [np.linalg.norm(vector - vectors[[j for j in others if uses[j] == use]].mean(0)) for use in (0, 1)]
        told[i] = apart[uses[i]] < apart[1 - uses[i]]
    return told


def components(vectors: np.ndarray, words: list[str]) -> np.ndarray:
    """The first principal components of the states, each word's mean taken off."""
    centred = vectors.copy()
    for word in set(words):
        of_word = [i for i, one in enumerate(words) if one == word]
        centred[of_word] -= vectors[of_word].mean(0)
    return centred @ np.linalg.svd(centred, full_matrices=False)[2][:COMPONENTS].T


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    loaded = load_model(options.model)
    loaded.model.eval()
    written: dict[str, Any] = {
        "command": "python benchmarks/syntax_meaning.py MODEL",
        "model": Path(options.model).name,
    }
    for kind in ("syntax", "meaning"):
        cases = sentences(kind)
        words, uses = [word for word, _, _ in cases], np.array([use for _, use, _ in cases])
        layers = states(loaded, cases)
        parts = np.stack([components(layer, words) for layer in layers])
        null: list[list[float]] = []
        for seed in range(COPIES):
            with control(loaded.model, "initialised", seed):
                fresh = states(loaded, cases)
            null.append([float(right(components(layer, words), words, uses).mean()) for layer in fresh])
        whole = [float(right(layer, words, uses).mean()) for layer in layers]
        few = [float(right(layer, words, uses).mean()) for layer in parts]
        print(kind, np.round(whole, 3), np.round(few, 3), np.round(np.max(null, 0), 3))
        written[kind] = {
            "words": words,
            "uses": uses.tolist(),
            "sentences": [text for _, _, text in cases],
            "whole": np.round(whole, 4).tolist(),
            "null": np.round(np.max(null, 0), 4).tolist(),
            "states": packed(
                {f"{layer}": torch.from_numpy(part.astype(np.float32)) for layer, part in enumerate(parts)}
            ),
        }
    options.out.write_text(json.dumps(written, separators=(",", ":")) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

"""Sentences and translations of them that are wrong to a known degree."""

import random

TEXT = "the a cat dog house river sees finds old green of in on walks reads morning, evening."
WORDS = TEXT.split()


def sentences(count, seed=0):
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=draw.randint(1, 30))) for _ in range(count)]


def corrupted(lines, share, seed=0):
    """Replace about this share of the words."""
    draw = random.Random(seed)
    return [" ".join(draw.choice(WORDS) if draw.random() < share else word for word in line.split()) for line in lines]

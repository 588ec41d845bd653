from ._call import GenerationCall
from ._generate import generate, load_generation
from ._labelled import generation_dataset
from ._spans import GivenSpans
from ._texts import Written

__all__ = [
    "GenerationCall",
    "GivenSpans",
    "Written",
    "generate",
    "generation_dataset",
    "load_generation",
]

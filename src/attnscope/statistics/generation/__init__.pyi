from ._call import GenerationCall
from ._labelled import generation_dataset
from ._spans import GivenSpans
from ._texts import Written

__all__ = ["GenerationCall", "GivenSpans", "Written", "generation_dataset"]

"""Yamamoto and Matsuzaki (NLP 2023, EMNLP 2023): their published numbers and figures beside those of a model."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

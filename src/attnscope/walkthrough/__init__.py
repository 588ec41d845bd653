"""One head of a model over one sentence, step by step: `walk` computes, `markdown` and `terminal` show."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

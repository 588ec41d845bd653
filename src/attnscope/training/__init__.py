"""Training a model of the lineage: settings, data, loop, checkpoints, processes."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

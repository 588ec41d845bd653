from ._animal import Animal, Looking
from ._catalogue import Zoo, build, names, zoo

__all__ = ["Animal", "Looking", "Zoo", "build", "names", "zoo"]

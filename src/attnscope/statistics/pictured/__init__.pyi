from ._scan import scan_pictured
from ._tiles import Tile, Tiles

__all__ = ["Tile", "Tiles", "scan_pictured"]

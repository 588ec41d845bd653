from ._measurement import PicturedMeasurement
from ._scan import scan_pictured
from ._tiles import Tile, Tiles

__all__ = ["PicturedMeasurement", "Tile", "Tiles", "scan_pictured"]

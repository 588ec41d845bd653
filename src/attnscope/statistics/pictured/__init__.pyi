from ._measurement import PicturedMeasurement
from ._reading import PicturedReading, Placed
from ._scan import scan_pictured
from ._tiles import Tile, Tiles
from ._views import with_views

__all__ = [
    "PicturedMeasurement",
    "PicturedReading",
    "Placed",
    "Tile",
    "Tiles",
    "scan_pictured",
    "with_views",
]

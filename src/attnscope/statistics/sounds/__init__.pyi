from ._measurement import SoundMeasurement
from ._scan import loaded_for, scan_sounds

__all__ = ["SoundMeasurement", "loaded_for", "scan_sounds"]

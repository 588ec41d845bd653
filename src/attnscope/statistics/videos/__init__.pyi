from ._measurement import VideoMeasurement
from ._scan import scan_videos
from ._tubelets import Step, Tubelets, tubelets_of

__all__ = ["Step", "Tubelets", "VideoMeasurement", "scan_videos", "tubelets_of"]

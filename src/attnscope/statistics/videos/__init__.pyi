from ._measurement import VideoMeasurement
from ._scan import scan_videos
from ._tubelets import Tubelets, TubeletStep, tubelets_of

__all__ = ["TubeletStep", "Tubelets", "VideoMeasurement", "scan_videos", "tubelets_of"]

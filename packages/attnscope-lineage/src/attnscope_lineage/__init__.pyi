from .config import TrainConfig as TrainConfig
from .figures.alignment import alignment_in_training as alignment_in_training
from .verbs.align import align as align
from .verbs.compare import compare as compare
from .verbs.score import score as score
from .verbs.train import train as train
from .verbs.translate import translate as translate
from .verbs.walk import walk as walk

from ._cluster import Cluster, cluster_of
from ._crew import Crew
from ._engine import Answered, Begin, Engine, Event, Lost, Ready, Request
from ._ray import RayEngine

__all__ = [
    "Answered",
    "Begin",
    "Cluster",
    "Crew",
    "Engine",
    "Event",
    "Lost",
    "RayEngine",
    "Ready",
    "Request",
    "cluster_of",
]

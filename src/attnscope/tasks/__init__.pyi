from ._by_ray import Agreed, check_sent, enter, way_in
from ._done import by_task, do_share, pending
from ._parts import Parts, Rows
from ._share import Part, Share
from ._task import Task, parts_of, task_in, task_of

__all__ = [
    "Agreed",
    "Part",
    "Parts",
    "Rows",
    "Share",
    "Task",
    "by_task",
    "check_sent",
    "do_share",
    "enter",
    "parts_of",
    "pending",
    "task_in",
    "task_of",
    "way_in",
]

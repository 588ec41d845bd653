from ._done import by_task, said
from ._parts import Parts, Rows
from ._share import Share
from ._task import Task, parts_of, task_of

__all__ = [
    "Parts",
    "Rows",
    "Share",
    "Task",
    "by_task",
    "parts_of",
    "said",
    "task_of",
]

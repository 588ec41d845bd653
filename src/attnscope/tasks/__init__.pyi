from ._done import by_task, pending
from ._parts import Parts, Rows
from ._share import Share
from ._task import Task, parts_of, task_in, task_of

__all__ = [
    "Parts",
    "Rows",
    "Share",
    "Task",
    "by_task",
    "parts_of",
    "pending",
    "task_in",
    "task_of",
]

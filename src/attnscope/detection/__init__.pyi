from ._catalogue import ROLES, choose_roles
from ._controls import CONTROLS, choose_controls, control
from ._needles import Needle, needles_of, retrieval_share
from ._patterns import PATTERNS, pattern_scores
from ._role import Role
from ._roles import load_roles, roles
from ._summary import RoleCount, counts_of, headline

__all__ = [
    "CONTROLS",
    "PATTERNS",
    "ROLES",
    "Needle",
    "Role",
    "RoleCount",
    "choose_controls",
    "choose_roles",
    "control",
    "counts_of",
    "headline",
    "load_roles",
    "needles_of",
    "pattern_scores",
    "retrieval_share",
    "roles",
]

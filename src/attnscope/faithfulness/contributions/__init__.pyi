from ._kinds import KINDS, Kind
from ._profiles import contribution_profiles

__all__ = ["KINDS", "Kind", "contribution_profiles"]

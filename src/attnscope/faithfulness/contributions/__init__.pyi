from ._kinds import KINDS, Kind
from ._profiles import contribution_profiles
from ._tokens import TOKEN_KINDS, token_contributions

__all__ = ["KINDS", "TOKEN_KINDS", "Kind", "contribution_profiles", "token_contributions"]

from ._roles import READINGS, beside_controls, role_figures, role_maps

__all__ = ["READINGS", "beside_controls", "role_figures", "role_maps"]

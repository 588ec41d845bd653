from ._calls import explained, patiently
from ._reading import files_below, opened, stamp
from ._url import Url, is_url, refuse_path_of_url

__all__ = [
    "Url",
    "explained",
    "files_below",
    "is_url",
    "opened",
    "patiently",
    "refuse_path_of_url",
    "stamp",
]

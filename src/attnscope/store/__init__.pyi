from ._arrays import in_a_row, packed, unpacked
from ._files import explained, file_state, json_bytes, sync, write_output
from ._folder import OwnedFolder, damage
from ._labelled import padded_heads, stacked
from ._lock import InUseError
from ._manifest import manifest_of
from ._mirror import (
    folders_beside,
    has_folder,
    is_bucket,
    keeping_elsewhere,
    named,
    naming_url,
    remove_folder,
    staged,
    written_at,
)
from ._names import MANIFEST, PIECES, RUN, SUFFIX, TASKS, VIEWS, are_in, texts_of
from ._run import RunFolder, is_finished
from ._signature import Signature, package_versions, short_hash, tokenizer_sha256
from ._skipped import skipped_of

__all__ = [
    "MANIFEST",
    "PIECES",
    "RUN",
    "SUFFIX",
    "TASKS",
    "VIEWS",
    "InUseError",
    "OwnedFolder",
    "RunFolder",
    "Signature",
    "are_in",
    "damage",
    "explained",
    "file_state",
    "folders_beside",
    "has_folder",
    "in_a_row",
    "is_bucket",
    "is_finished",
    "json_bytes",
    "keeping_elsewhere",
    "manifest_of",
    "named",
    "naming_url",
    "package_versions",
    "packed",
    "padded_heads",
    "remove_folder",
    "short_hash",
    "skipped_of",
    "stacked",
    "staged",
    "sync",
    "texts_of",
    "tokenizer_sha256",
    "unpacked",
    "write_output",
    "written_at",
]

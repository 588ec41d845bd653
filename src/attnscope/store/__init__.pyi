from ._arrays import in_a_row, packed, unpacked
from ._files import explained, file_state, json_bytes, read_as, sync, write_output
from ._folder import OwnedFolder, damage
from ._labelled import padded_heads, stacked
from ._lock import InUseError
from ._manifest import Manifest, manifest_of
from ._names import MANIFEST, PIECES, RUN, SUFFIX, TASKS, VIEWS, are_in, texts_of
from ._place import local_folder, local_out
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
    "Manifest",
    "OwnedFolder",
    "RunFolder",
    "Signature",
    "are_in",
    "damage",
    "explained",
    "file_state",
    "in_a_row",
    "is_finished",
    "json_bytes",
    "local_folder",
    "local_out",
    "manifest_of",
    "package_versions",
    "packed",
    "padded_heads",
    "read_as",
    "short_hash",
    "skipped_of",
    "stacked",
    "sync",
    "texts_of",
    "tokenizer_sha256",
    "unpacked",
    "write_output",
]

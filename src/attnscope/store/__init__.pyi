from ._arrays import packed, storable, unpacked
from ._files import explained, file_state, json_bytes, sync, write_output
from ._folder import MANIFEST, InUseError, OwnedFolder, damage, manifest_of
from ._labelled import padded_heads, stacked
from ._names import PIECES, RUN, SUFFIX, TASKS, VIEWS, texts_of
from ._run import RunFolder, is_finished
from ._signature import Signature, package_versions, short_hash, tokenizer_sha256

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
    "damage",
    "explained",
    "file_state",
    "is_finished",
    "json_bytes",
    "manifest_of",
    "package_versions",
    "packed",
    "padded_heads",
    "short_hash",
    "stacked",
    "storable",
    "sync",
    "texts_of",
    "tokenizer_sha256",
    "unpacked",
    "write_output",
]

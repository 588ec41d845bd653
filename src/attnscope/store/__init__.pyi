from ._arrays import SUFFIX, packed, unpacked
from ._files import explained, file_state, json_bytes, write_output
from ._folder import MANIFEST, InUseError, OwnedFolder, damage, manifest_of
from ._labelled import padded_heads, stacked
from ._run import VIEWS, RunFolder, is_finished
from ._signature import Signature, package_versions, short_hash, tokenizer_sha256

__all__ = [
    "MANIFEST",
    "SUFFIX",
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
    "tokenizer_sha256",
    "unpacked",
    "write_output",
]

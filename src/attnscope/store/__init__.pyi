from ._arrays import SUFFIX, packed, unpacked
from ._files import explained, json_bytes, write_output
from ._folder import MANIFEST, OwnedFolder, damage, manifest_of
from ._run import VIEWS, RunFolder, is_finished
from ._signature import Signature, package_versions, short_hash, tokenizer_sha256

__all__ = [
    "MANIFEST",
    "SUFFIX",
    "VIEWS",
    "OwnedFolder",
    "RunFolder",
    "Signature",
    "damage",
    "explained",
    "is_finished",
    "json_bytes",
    "manifest_of",
    "package_versions",
    "packed",
    "short_hash",
    "tokenizer_sha256",
    "unpacked",
    "write_output",
]

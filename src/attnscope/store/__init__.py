"""Folders of results: labelled arrays with their signature, checked, resumable, written whole or not at all."""

from attnscope.store._arrays import SUFFIX, packed, unpacked
from attnscope.store._files import explained, file_state, json_bytes, write_output
from attnscope.store._folder import MANIFEST, OwnedFolder, damage, manifest_of
from attnscope.store._run import VIEWS, RunFolder, is_finished
from attnscope.store._signature import package_versions, short_hash, tokenizer_sha256

__all__ = [
    "MANIFEST",
    "SUFFIX",
    "VIEWS",
    "OwnedFolder",
    "RunFolder",
    "damage",
    "explained",
    "file_state",
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

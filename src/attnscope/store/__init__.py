"""Run folders: labelled arrays with their signature, resumable, written whole or not at all."""

from attnscope.store._files import as_new_files, explained, write_atomically, write_json
from attnscope.store._run import RunFolder, is_finished
from attnscope.store._signature import package_versions, short_hash, tokenizer_sha256

__all__ = [
    "RunFolder",
    "as_new_files",
    "explained",
    "is_finished",
    "package_versions",
    "short_hash",
    "tokenizer_sha256",
    "write_atomically",
    "write_json",
]

"""Compressed files and tables hold the same texts as plain ones; damaged ones say so."""

import bz2
import gzip
import json
import lzma
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest

from attnscope import AttnscopeError
from attnscope.read.chats import are_chats
from attnscope.read.files import unpacked
from attnscope.read.texts import Corpus

LINES = b"".join(b'{"text": "Number %d of the tide.", "id": %d}\n' % (n, n) for n in range(1000))
PACK = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}
TEXTS = [f"Row {number} of the table." for number in range(800)]


def contents(*paths, **options):
    return [(text.name, text.content) for text in Corpus.from_sources(list(paths), **options)]


@pytest.mark.parametrize("suffix", PACK)
def test_packed_lines_are_those_of_the_plain_file(tmp_path, suffix):
    plain, packed = tmp_path / "a.jsonl", tmp_path / f"a.jsonl{suffix}"
    plain.write_bytes(LINES)
    packed.write_bytes(PACK[suffix](LINES[:20_000]) + PACK[suffix](LINES[20_000:]))
    expected = [text for _, text in contents(plain)]
    assert [text for _, text in contents(packed)] == expected
    assert contents(packed)[4][0] == f"a.jsonl{suffix}:5"
    (tmp_path / f"b.txt{suffix}").write_bytes(PACK[suffix](b"The tide."))
    assert contents(tmp_path / f"b.txt{suffix}") == [(f"b.txt{suffix}", "The tide.")]


@pytest.mark.parametrize("suffix", PACK)
def test_blocks_may_end_anywhere_and_pieces_stay_small(suffix):
    path, packed = Path(f"a{suffix}"), PACK[suffix](LINES[:5000]) + PACK[suffix](LINES[5000:9000])
    for size in (1, 4096):
        blocks = [packed[first : first + size] for first in range(0, len(packed), size)]
        assert b"".join(unpacked(path, blocks)) == LINES[:9000]
    assert max(map(len, unpacked(path, [PACK[suffix](bytes(5_000_000))]))) <= 1 << 20


@pytest.mark.parametrize("suffix", PACK)
def test_damage_is_reported(tmp_path, suffix):
    path = tmp_path / f"a.jsonl{suffix}"
    for data, message in ((PACK[suffix](LINES)[:-30], "ends inside the compressed"), (b"plain text", "not a")):
        path.write_bytes(data)
        with pytest.raises(AttnscopeError, match=message):
            contents(path)


def tables(folder):
    table = pa.table({"text": [*TEXTS, None], "body": [text.upper() for text in TEXTS] + [""], "n": range(801)})
    pyarrow.parquet.write_table(table, folder / "a.parquet")
    with pa.ipc.new_file(folder / "file.arrow", table.schema) as file:
        file.write_table(table, max_chunksize=300)
    with pa.ipc.new_stream(folder / "stream.arrow", table.schema) as stream:
        stream.write_table(table, max_chunksize=300)
    return [folder / name for name in ("a.parquet", "file.arrow", "stream.arrow")]


def test_each_row_of_a_table_is_a_text(tmp_path):
    for path in tables(tmp_path):
        found = contents(path)
        assert [text for _, text in found] == [*TEXTS, ""]
        assert found[1][0] == f"{path.name}:2"
        assert contents(path, field="body")[3][1] == "ROW 3 OF THE TABLE."
    assert len(contents(tmp_path)) == 3 * 801  # the folder of all three


def test_a_missing_or_numeric_column_and_damage_are_rejected(tmp_path):
    for path in tables(tmp_path):
        with pytest.raises(AttnscopeError, match=r"row 1: no field 'txt'; found the fields 'text', 'body', 'n'"):
            contents(path, field="txt")
        with pytest.raises(AttnscopeError, match="has a JSON number; expected a string"):
            contents(path, field="n")
    path = tmp_path / "bad.parquet"
    pyarrow.parquet.write_table(
        pa.table({"text": ["The tide is out."]}), path, compression="none", use_dictionary=False
    )
    for damaged in (path.read_bytes().replace(b"The tide", b"\xff\xfe tide"), b"PAR1 no table"):
        path.write_bytes(damaged)
        with pytest.raises(AttnscopeError, match=r"not a \.parquet file, or damaged"):
            contents(path)


def test_a_table_that_changes_is_rejected(tmp_path, monkeypatch):
    monkeypatch.setattr("attnscope.read.texts._FEW", -1)  # texts are read again
    path = tables(tmp_path)[0]
    corpus = Corpus.from_sources(path)
    list(corpus)
    pyarrow.parquet.write_table(pa.table({"text": ["other"]}), path)
    with pytest.raises(AttnscopeError, match="changed while it was being read"):
        list(corpus)


CHATS = [
    [{"role": "user", "content": f"Is tide {number} out?"}, {"role": "assistant", "content": "It is.", "name": "A"}]
    for number in range(3)
]


def test_tables_of_chats_are_those_of_json_lines(tmp_path):
    lines, table = tmp_path / "a.jsonl", tmp_path / "a.parquet"
    lines.write_text("".join(json.dumps({"conversations": chat}) + "\n" for chat in CHATS))
    rows = pa.table({"id": [0, 1, 2], "conversations": CHATS})
    pyarrow.parquet.write_table(rows, table)
    with pa.ipc.new_stream(tmp_path / "a.arrow", rows.schema) as stream:
        stream.write_table(rows)
    assert are_chats(table)
    expected = [text for _, text in contents(lines, chats=True)]
    assert [text for _, text in contents(table, chats=True)] == expected
    assert [text for _, text in contents(tmp_path / "a.arrow", chats=True)] == expected
    assert [text for _, text in contents(table, chats=True, field="conversations")] == expected
    assert '"name"' not in json.loads(expected[0])[0]


def test_a_table_with_texts_is_no_table_of_chats(tmp_path):
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pa.table({"text": ["The tide."] * 3, "messages": CHATS}), path)
    assert not are_chats(path)
    with pytest.raises(AttnscopeError, match="expected a chat: a list of at least one message"):
        contents(path, chats=True, field="text")
    with pytest.raises(AttnscopeError, match="no field 'talks'"):
        contents(path, chats=True, field="talks")

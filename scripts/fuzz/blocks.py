"""Ways to damage the steps of a rank: blocks (`ddlprof.model.blocks`) that are missing, moved, repeated or made up."""

from __future__ import annotations

from pathlib import Path
from random import Random
from zlib import crc32

from ddlprof.model.blocks import HEAD_BYTES, LAYOUTS, MAGIC, SEQ_BYTES, TIMES

SUFFIX = ".steps"
_KIND_AT, _NUMBERS_AT, _CHECKSUM_AT = len(MAGIC), range(len(MAGIC) + 1, HEAD_BYTES - 4, 4), HEAD_BYTES - 4
"""Where in a block its kind is, its number and three counts, and its checksum."""
_ROW_BYTES = {kind.encode(): sum(int(letter[1:]) for _, letter in layout) for kind, layout in LAYOUTS.items()}
_TIMES_BYTES = _ROW_BYTES.pop(TIMES.encode())


def blocks_of(content: bytes) -> list[bytes]:
    """The content from each beginning of a block to the next, so that nothing is lost; damage is in the one before."""
    cuts = [0]
    while (at := content.find(MAGIC, cuts[-1] + 1)) >= 0:
        cuts.append(at)
    return [content[begin:end] for begin, end in zip(cuts, [*cuts[1:], len(content)], strict=True)]


def resealed(content: bytes) -> bytes:
    """The content with the checksums of what is there, in blocks that are as long as they say."""
    return b"".join(map(_resealed, blocks_of(content)))


def _resealed(block: bytes) -> bytes:
    if len(block) < HEAD_BYTES or block[_KIND_AT : _KIND_AT + 1] not in _ROW_BYTES:
        return block
    _, rows, seqs, times = (int.from_bytes(block[at : at + 4], "little") for at in _NUMBERS_AT)
    row_bytes = _ROW_BYTES[block[_KIND_AT : _KIND_AT + 1]]
    end = HEAD_BYTES + rows * row_bytes + seqs * SEQ_BYTES + times * _TIMES_BYTES
    if end > len(block):
        return block
    checksum = crc32(block[HEAD_BYTES:end], crc32(block[:_CHECKSUM_AT]))
    return block[:_CHECKSUM_AT] + checksum.to_bytes(4, "little") + block[HEAD_BYTES:]


def move_blocks(random: Random, run: Path) -> str:
    """Blocks are missing, twice there, in another order, or of another rank or time."""
    path, found = _some_blocks(random, run)
    other, more = _some_blocks(random, run)
    one, two, many = random.randrange(len(found)), random.randrange(len(more)), random.choice([1, 1, 3])
    what = random.choice(["missing", "twice", "elsewhere", "shuffled"])
    if what == "missing":
        del found[one : one + many]
    elif what == "twice":
        found[one:one] = found[one : one + many] * random.choice([1, 1, 50])
    elif what == "elsewhere":
        found[one:one] = more[two : two + many]
    else:
        random.shuffle(found)
    path.write_bytes(b"".join(found))
    return f"{path.name}: {many} blocks from {one} {what} ({other.name}, {two})"


def retype_block(random: Random, run: Path) -> str:
    """The kind, the number or a count of a block is another."""
    path, found = _some_blocks(random, run)
    at = random.randrange(len(found))
    place = random.choice([_KIND_AT, *_NUMBERS_AT])
    if place == _KIND_AT:
        value = random.choice([*_ROW_BYTES, b"t", b"\0", b"\xff"])
    else:
        before = int.from_bytes(found[at][place : place + 4], "little")
        chosen = random.choice([0, 1, before + 1, before - 1, 2 * before, 2**16, 2**31, 2**32 - 1])
        value = (chosen % 2**32).to_bytes(4, "little")
    found[at] = found[at][:place] + value + found[at][place + len(value) :]
    path.write_bytes(b"".join(found))
    return f"{path.name}: block {at} has {value!r} at {place}"


def make_up_numbers(random: Random, run: Path) -> str:
    """A number of a row, of a column, or behind the rows is as large or as small as can be, or anything."""
    path, found = _some_blocks(random, run)
    at = random.randrange(len(found))
    block = bytearray(found[at])
    layout = LAYOUTS.get(chr(block[_KIND_AT]) if len(block) > _KIND_AT else "", ())
    rows = int.from_bytes(block[_NUMBERS_AT[1] : _NUMBERS_AT[1] + 4], "little")
    if not layout or not 0 < rows < 1 << 20:
        return move_blocks(random, run)
    row_bytes = _ROW_BYTES[bytes(block[_KIND_AT : _KIND_AT + 1])]
    name, offset, size = random.choice(_places(layout, rows * row_bytes < len(block) - HEAD_BYTES))
    first = random.randrange(rows)
    for row in range(rows) if random.random() < 0.3 else [first]:
        zeros, ones = bytes(size - 1), b"\xff" * (size - 1)
        extremes = [zeros + b"\0", ones + b"\xff", ones + b"\x7f", zeros + b"\x80", zeros + b"\x01", b"\x01" + zeros]
        value = random.choice([*extremes, random.randbytes(size)])
        begin = HEAD_BYTES + (rows * row_bytes + row * size if offset is None else row * row_bytes + offset)
        if begin + size <= len(block):
            block[begin : begin + size] = value
    found[at] = bytes(block)
    path.write_bytes(b"".join(found))
    return f"{path.name}: {name} of block {at}, row {first}, is {value!r}"


def _places(layout: tuple[tuple[str, str], ...], has_more: bool) -> list[tuple[str, int | None, int]]:
    """The name, offset in a row and size of each column; None as offset for what comes after the rows."""
    places: list[tuple[str, int | None, int]] = [("what comes after the rows", None, 4)] * (3 * has_more)
    offset = 0
    for name, letter in layout:
        places.append((name, offset, int(letter[1:])))
        offset += int(letter[1:])
    return places


def _some_blocks(random: Random, run: Path) -> tuple[Path, list[bytes]]:
    """The blocks of a rank, or of any file where no rank has some."""
    files = sorted(p for p in run.rglob("*") if p.is_file() and not p.is_symlink() and p.stat().st_size)
    path = random.choice([p for p in files if p.suffix == SUFFIX] or files)
    return path, blocks_of(path.read_bytes())


WAYS = [move_blocks, retype_block, make_up_numbers]

"""Formats and compressions of files, detected by file extension and first bytes."""

from __future__ import annotations

import re
from typing import Final

from godwit.model.naming import listing

_CODECS: Final = {".br": "brotli", ".bz2": "bz2", ".gz": "gzip", ".lz4": "lz4", ".zst": "zstd"}
"""File extension → Arrow's name of the compression."""
_PACKED: Final = re.compile(
    r"\.(?:7z|deflate|lz|lzf|lzma|lzo|lzo_deflate|rar|snappy|sz|tar|tbz2?|tgz|txz|xz|z|zip|zlib)"
    rf"(?:{'|'.join(map(re.escape, _CODECS))})?$",
    re.IGNORECASE,
)
_COMPRESSIONS: Final = {
    b"\x1f\x8b": ("gzip", ".gz"),
    b"(\xb5/\xfd": ("Zstandard", ".zst"),
    b"BZh": ("bzip2", ".bz2"),
    b"\x04\x22\x4d\x18": ("LZ4", ".lz4"),
    b"\xfd7zXZ\x00": ("xz", None),
    b"PK\x03\x04": ("zip", None),
    b"7z\xbc\xaf\x27\x1c": ("7z", None),
    b"\x1f\x9d": ("compress", None),
    b"\xff\x06\x00\x00sNaPpY": ("Snappy", None),
    b"\x89LZO\x00": ("lzop", None),
}
"""First bytes → name of the compression, and the file extension with which it is read."""
_FORMATS: Final = {
    b"ARROW1": "an Arrow file, which gw.sources.arrow reads",
    b"\xff\xff\xff\xff": "an Arrow stream; write it as an Arrow file (pyarrow.ipc.new_file)",
    b"FEA1": "a Feather file of version 1; write it as version 2, which is an Arrow file",
    b"PAR1": "a Parquet file, which gw.sources.parquet reads",
    b"PARE": "a Parquet file with an encrypted footer",
    b"Obj\x01": "an Avro file",
    b"ORC": "an ORC file",
}
_NO_TEXT: Final = re.compile(rb"[\x00-\x08\x0e-\x1f]")
NUM_FIRST_BYTES: Final = 4096
"""Number of bytes at the start of a file that `check_is_text` reads."""


def codec_of(path: str) -> str | None:
    """Return Arrow's name of the compression of a file of text; ``None`` if it has none.

    Raises ValueError if the ending of the file's name is that of a compression that is not read.
    """
    check_ending(path)
    return _CODECS.get(path[path.rfind(".") :].lower())


def check_ending(path: str) -> None:
    """Raise ValueError if the file extension is that of an unsupported compression or archive."""
    packed = _PACKED.search(path)
    if packed is not None:
        msg = (
            f"its name ends in {packed[0]!r}, but it would be read as plain text; compressed "
            f"files are supported if their names end in {listing(_CODECS)}"
        )
        raise ValueError(msg)


def check_is_text(begin: bytes) -> None:
    """Raise ValueError if a file that is to be text has another format or is compressed.

    `begin`: its first `NUM_FIRST_BYTES` bytes, or more.
    """
    begin = begin[:NUM_FIRST_BYTES]
    for magic, (name, ending) in _COMPRESSIONS.items():
        if _is_of(begin, magic):
            read = f"rename it to end in {ending!r}" if ending else "decompress it"
            msg = f"it is compressed ({name}), but its name does not show that: {read}"
            raise ValueError(msg)
    for magic, name in _FORMATS.items():
        if _is_of(begin, magic):
            msg = f"it is {name}"
            raise ValueError(msg)


def _is_of(begin: bytes, magic: bytes) -> bool:
    """Return whether a file has a format, and is not text that happens to begin so."""
    if not begin.startswith(magic):
        return False
    return not magic.isascii() or _NO_TEXT.search(begin) is not None


def name_of_format(begin: bytes) -> str | None:
    """Return the format that a columnar file seems to have; ``None`` if unknown.

    `begin`: its first bytes.
    """
    for magic, name in _FORMATS.items():
        if begin.startswith(magic):
            return f"{name}; or it is incomplete" if "which gw.sources" in name else name
    if any(map(begin.startswith, _COMPRESSIONS)):
        return "compressed as a whole; compress its columns instead"
    return None

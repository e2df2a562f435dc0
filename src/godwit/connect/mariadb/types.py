"""MariaDB's types as Arrow types, and its values as Arrow columns.

A value has one form, whether it is read from a table or from the binary log: text in UTF-8, or the
bytes of a binary type. Every type can be read as text. A value that the Arrow type lacks is
refused, so its column is to be read as text: a date with zeros, a time of more than a day.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
import re
import struct
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from godwit.columns.types import is_binary, is_text
from godwit.connect.formats.text_values import from_text

if TYPE_CHECKING:
    from collections.abc import Callable

_BITS: Final = {"tinyint": 8, "smallint": 16, "mediumint": 24, "int": 32, "bigint": 64}
_INTEGERS: Final = {8: pa.int8(), 16: pa.int16(), 24: pa.int32(), 32: pa.int32(), 64: pa.int64()}
_UNSIGNED: Final = {8: pa.int16(), 16: pa.int32(), 24: pa.int32(), 32: pa.int64()}
_TEXTS: Final = {"char", "varchar", "tinytext", "text", "mediumtext", "longtext", "json"}
_BINARIES: Final = {"binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"}
_TYPES: Final = {
    "float": pa.float32(),
    "double": pa.float64(),
    "date": pa.date32(),
    "datetime": pa.timestamp("us"),
    "timestamp": pa.timestamp("us", "UTC"),
    "time": pa.time64("us"),
    "year": pa.int16(),
    "binary": pa.binary(),
    **dict.fromkeys(("text", "enum", "set", "uuid", "inet6", "inet4"), pa.string()),
}
_NUMBERS: Final = {"int", "bit", "decimal", "float", "double", "year"}
_MAX_DIGITS: Final = 38  # of a decimal128
_TIME: Final = re.compile(r"(-?)(\d+):(\d\d):(\d\d)(?:\.(\d+))?")
_NUMBER: Final = re.compile(r"-?[0-9.]+(?:e[+-]?[0-9]+)?")

Value = bytes | None


@dataclass(frozen=True, slots=True)
class MariaDBValueType:
    """Type of a column's values; `kind` is empty if they cannot be read."""

    kind: str
    bits: int = 0
    unsigned: bool = False
    precision: int = 0
    scale: int = 0

    @property
    def natural(self) -> pa.DataType:
        """Arrow type that values are read as by default."""
        if self.kind == "int" and not self.unsigned:
            return _INTEGERS[self.bits]
        if self.kind == "int":
            return _UNSIGNED.get(self.bits, pa.decimal128(20, 0))
        if self.kind == "bit" and self.bits < 64:
            return pa.bool_() if self.bits == 1 else pa.int64()
        if self.kind == "bit":
            return pa.decimal128(20, 0)
        if self.kind == "decimal" and self.precision <= _MAX_DIGITS:
            return pa.decimal128(self.precision, self.scale)
        return _TYPES.get(self.kind, pa.string())

    def can_be(self, dtype: pa.DataType) -> bool:
        """Return whether values can be read as an Arrow type, exactly or with an error each."""
        types, natural = pa.types, self.natural
        if not self.kind:
            return False
        if is_text(dtype) or dtype == natural:
            return True
        if self.kind in {"int", "bit", "year"} and types.is_signed_integer(dtype):
            width = natural.bit_width if types.is_integer(natural) else self.bits + 1
            return bool(dtype.bit_width >= width)
        if self.kind in {"int", "bit"} and self.bits <= 8 and types.is_boolean(dtype):
            return True
        if self.kind in {"int", "bit", "year", "decimal"}:
            return bool(types.is_decimal128(dtype) or types.is_float64(dtype))
        if self.kind == "float":
            return bool(types.is_float64(dtype))
        if self.kind == "time":
            return bool(dtype == pa.duration("us"))
        if types.is_timestamp(natural) and types.is_timestamp(dtype):
            return (natural.tz is None) == (dtype.tz is None) and dtype.unit in {"us", "ns"}
        return self.kind == "binary" and is_binary(dtype)

    # -- in SQL -----------------------------------------------------------------------------------

    def selected(self, name: str) -> str:
        """Return the expression whose text is a value of a column."""
        if self.kind in {"int", "bit"}:  # without the zeros of ZEROFILL
            return f"{name} + 0"
        if self.kind in {"float", "double"}:  # with all digits
            return f"{name} * 1e0"
        return name

    def key_selected(self, name: str) -> str:
        """Return the expression whose text is a value of a key."""
        if self.kind in {"enum", "set"}:
            return f"{name} + 0"
        return f"HEX({name})" if self.kind == "binary" else self.selected(name)

    def compared(self, name: str) -> str:
        """Return the expression by which a key column is ordered and compared."""
        return f"{name} + 0" if self.kind in {"enum", "set"} else name

    def literal(self, text: str, charset: str, collation: str) -> str:
        """Return the text of a key's value as SQL, which compares like the column."""
        if self.kind in _NUMBERS | {"enum", "set"}:
            assert _NUMBER.fullmatch(text), text
            return text
        data = text.encode().hex()
        if self.kind == "text":
            return (
                f"CONVERT(_utf8mb4 0x{data} USING {charset}) COLLATE {collation}"
                if data
                else (f"CONVERT(_utf8mb4 '' USING {charset}) COLLATE {collation}")
            )
        if self.kind == "binary":
            return f"x'{text}'"
        sql = {"datetime": "DATETIME(6)", "timestamp": "DATETIME(6)", "time": "TIME(6)"}
        return f"CAST(CONVERT(0x{data} USING ascii) AS {sql.get(self.kind, self.kind.upper())})"


def catalogue_type(
    data_type: str, column_type: str, precision: int | None, scale: int | None
) -> MariaDBValueType:
    """Return a type as ``information_schema.COLUMNS`` describes it."""
    data_type, column_type = data_type.lower(), column_type.lower()
    if "compressed" in column_type:
        return MariaDBValueType("")
    unsigned = "unsigned" in column_type
    if data_type in _BITS:
        return MariaDBValueType("int", _BITS[data_type], unsigned)
    if data_type == "bit":
        return MariaDBValueType("bit", precision or 1, unsigned=True)
    if data_type == "decimal":
        return MariaDBValueType("decimal", 0, unsigned, precision or 0, scale or 0)
    if data_type in _TEXTS:
        return MariaDBValueType("text")
    if data_type in _BINARIES:
        return MariaDBValueType("binary")
    return MariaDBValueType(data_type if data_type in _TYPES else "")


def column_from_values(values: list[Value], field: pa.Field, kind: str) -> pa.Array:
    """Convert values, in their normalized form, to a column of `field`'s type.

    Raises ValueError, with the column and the text, for a value that the type does not have.
    """
    dtype = field.type
    if kind == "binary":
        if is_binary(dtype):
            return pa.array(values, dtype)
        values = [None if value is None else value.hex().encode() for value in values]
    elif kind in {"float", "double"}:
        values = [None if value is None else repr(float(value)).encode() for value in values]
    texts = pa.array(values, pa.binary()).cast(pa.string())
    if is_text(dtype):
        return texts.cast(dtype)
    if pa.types.is_duration(dtype):
        return pa.array([_time_as_microseconds(text) for text in texts.to_pylist()], dtype)
    return from_text(texts, field)


def _time_as_microseconds(text: str | None) -> int | None:
    """Return a duration as microseconds."""
    if text is None:
        return None
    match = _TIME.fullmatch(text)
    assert match is not None, text
    sign, hours, minutes, seconds, fraction = match.groups()
    us = int(hours) * 3_600 + int(minutes) * 60 + int(seconds)
    us = us * 1_000_000 + int((fraction or "").ljust(6, "0"))
    return -us if sign else us


# -- in the binary log ----------------------------------------------------------------------------

TINY, SHORT, LONG, FLOAT, DOUBLE = 1, 2, 3, 4, 5
LONGLONG, INT24, DATE, YEAR, VARCHAR, BIT = 8, 9, 10, 13, 15, 16
TIMESTAMP2, DATETIME2, TIME2, NEWDECIMAL, ENUM, SET = 17, 18, 19, 246, 247, 248
BLOB, VAR_STRING, STRING, GEOMETRY = 252, 253, 254, 255
BLOB_COMPRESSED, VARCHAR_COMPRESSED = 140, 141

_LOG_BITS: Final = {TINY: 8, SHORT: 16, INT24: 24, LONG: 32, LONGLONG: 64}
_KINDS: Final = {
    FLOAT: "float",
    DOUBLE: "double",
    DATE: "date",
    YEAR: "year",
    TIMESTAMP2: "timestamp",
    DATETIME2: "datetime",
    TIME2: "time",
    ENUM: "enum",
    SET: "set",
}
_OF_BYTES: Final = {"uuid": 16, "inet6": 16, "inet4": 4}  # which the log does not tell from BINARY
_DECIMAL_BYTES: Final = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)  # of a number of digits
_EPOCH_DAY: Final = dt.date(1970, 1, 1).toordinal()
_CODECS: Final = {
    **dict.fromkeys(("utf8", "utf8mb3", "utf8mb4", "ascii"), "utf-8"),
    **dict.fromkeys(("utf16", "ucs2"), "utf-16-be"),
    "utf16le": "utf-16-le",
    "utf32": "utf-32-be",
}


@dataclass(frozen=True, slots=True)
class Charset:
    """A character set; `characters`: of its 256 bytes; empty if it is not a single-byte set."""

    name: str
    characters: str = ""

    @property
    def known(self) -> bool:
        """True if its texts can be decoded."""
        return bool(self.characters) or self.name in _CODECS

    def decoder(self) -> Callable[[bytes], bytes] | None:
        """Return the function that converts a text to UTF-8; ``None`` if it is UTF-8."""
        if self.characters:
            table = [character.encode() for character in self.characters]
            return lambda data: b"".join([table[byte] for byte in data])
        codec = _CODECS[self.name]
        return None if codec == "utf-8" else lambda data: data.decode(codec).encode()


@dataclass(frozen=True, slots=True)
class LogColumn:
    """A column of a table at the time of a change."""

    name: str
    code: int  # type in the log
    meta: int
    unsigned: bool
    charset: Charset
    labels: tuple[bytes, ...]  # of an enumeration or set, in UTF-8

    @property
    def size(self) -> int:
        """Number of bytes of a value; if negative, of the length before it."""
        code, meta = self.code, self.meta
        if code in _LOG_BITS:
            return _LOG_BITS[code] // 8
        if code in {ENUM, SET}:
            return meta
        if code == NEWDECIMAL:
            return sum(4 * (n // 9) + _DECIMAL_BYTES[n % 9] for n in _digits_around_point(meta))
        if code == BIT:
            return (meta >> 8) + (meta & 0xFF > 0)
        if code in {TIMESTAMP2, DATETIME2, TIME2}:
            return {TIMESTAMP2: 4, DATETIME2: 5, TIME2: 3}[code] + (meta + 1) // 2
        if code in {VARCHAR, VAR_STRING, STRING, VARCHAR_COMPRESSED}:
            return -2 if meta > 0xFF else -1
        if code in {BLOB, GEOMETRY, BLOB_COMPRESSED}:
            return -meta
        return {FLOAT: 4, DOUBLE: 8, DATE: 3, YEAR: 1}[code]

    def values(self, kind_in_table: str) -> MariaDBValueType:
        """Return the type of values; `kind_in_table`: that of the column in the catalogue."""
        if self.code in _LOG_BITS:
            return MariaDBValueType("int", _LOG_BITS[self.code], self.unsigned)
        if self.code == BIT:
            return MariaDBValueType("bit", (self.meta >> 8) * 8 + (self.meta & 0xFF), unsigned=True)
        if self.code == NEWDECIMAL:
            whole, scale = _digits_around_point(self.meta)
            return MariaDBValueType("decimal", 0, self.unsigned, whole + scale, scale)
        if self.code in {VARCHAR, VAR_STRING, STRING, BLOB}:
            if self.charset.name != "binary":
                return MariaDBValueType("text" if self.charset.known else "")
            size = _OF_BYTES.get(kind_in_table)
            is_other = self.code == STRING and size == self.meta
            return MariaDBValueType(kind_in_table if is_other else "binary")
        if self.code in {ENUM, SET} and not self.charset.known:
            return MariaDBValueType("")
        return MariaDBValueType(_KINDS.get(self.code, ""))

    def decode(self, values: list[Value], kind: str) -> list[Value]:
        """Decode values of the log to their normalized form."""
        decode = self._decoder_of_kind(kind)
        if decode is None:
            return values
        return [None if value is None else decode(value) for value in values]

    def _decoder_of_kind(self, kind: str) -> Callable[[bytes], bytes] | None:
        """Return the function that decodes a value; ``None`` if it needs no decoding."""
        signed = not self.unsigned
        if kind == "int":
            return lambda v: b"%d" % int.from_bytes(v, "little", signed=signed)
        if kind == "bit":
            return lambda v: b"%d" % int.from_bytes(v, "big")
        if kind in {"float", "double"}:
            form = "<f" if kind == "float" else "<d"
            return lambda v: repr(struct.unpack(form, v)[0]).encode()
        if kind == "decimal":
            whole, scale = _digits_around_point(self.meta)
            return lambda v: _decimal_text(v, whole, scale)
        if kind == "text":
            return self.charset.decoder()
        if kind == "binary":  # the log has no zeros at the end
            length = self.meta
            return (lambda v: v.ljust(length, b"\0")) if self.code == STRING else None
        if kind in _OF_BYTES:
            length = self.meta
            return lambda v: _OTHERS[kind](v.ljust(length, b"\0"))
        if kind == "enum":
            labels = (b"", *self.labels)
            return lambda v: labels[int.from_bytes(v, "little")]
        if kind == "set":
            return lambda v: _set_members_text(int.from_bytes(v, "little"), self.labels)
        meta = self.meta
        return {
            "date": _date_text,
            "year": lambda v: b"%04d" % (1900 + v[0] if v[0] else 0),
            "timestamp": lambda v: _timestamp_text(v, meta),
            "datetime": lambda v: _datetime_text(v, meta),
            "time": lambda v: _time_text(v, meta),
        }[kind]

    def key_text(self, value: bytes, kind: str) -> str:
        """Return a value as the text of a key."""
        if kind in {"enum", "set"}:
            return str(int.from_bytes(value, "little"))
        [decoded] = self.decode([value], kind)
        assert decoded is not None
        return decoded.hex().upper() if kind == "binary" else decoded.decode()


def _digits_around_point(meta: int) -> tuple[int, int]:
    """Return the digits of a decimal before and after the point."""
    precision, scale = meta & 0xFF, meta >> 8
    return precision - scale, scale


def _decimal_text(value: bytes, whole: int, scale: int) -> bytes:
    """Return the text of a decimal: groups of nine digits, inverted if it is negative."""
    negative = not value[0] & 0x80
    data = bytes([value[0] ^ 0x80]) + value[1:]
    if negative:
        data = bytes(byte ^ 0xFF for byte in data)
    sizes = [whole % 9, *[9] * (whole // 9), *[9] * (scale // 9), scale % 9]
    texts, offset = [], 0
    for digits in sizes:
        size = _DECIMAL_BYTES[digits]
        number = int.from_bytes(data[offset : offset + size], "big")
        texts.append(f"{number:0{digits}d}" if digits else "")
        offset += size
    split = 1 + whole // 9
    text = "".join(texts[:split]).lstrip("0") or "0"
    if scale:
        text += "." + "".join(texts[split:])
    return f"-{text}".encode() if negative else text.encode()


def _set_members_text(bits: int, labels: tuple[bytes, ...]) -> bytes:
    """Return the members of a set, as the server writes them."""
    return b",".join(label for place, label in enumerate(labels) if bits >> place & 1)


def _date_text(value: bytes) -> bytes:
    """Return the text of a date."""
    number = int.from_bytes(value, "little")
    return b"%04d-%02d-%02d" % (number >> 9, number >> 5 & 15, number & 31)


def _fraction_text(value: bytes, fsp: int) -> bytes:
    """Return the text of a fraction of a second of `fsp` digits."""
    if not fsp:
        return b""
    hundredths = int.from_bytes(value, "big") // (10 if fsp % 2 else 1)
    return b".%0*d" % (fsp, hundredths)


def _timestamp_text(value: bytes, fsp: int) -> bytes:
    """Return the text of an instant, in UTC; that of second 0 is a date of zeros."""
    seconds, rest = int.from_bytes(value[:4], "big"), value[4:]
    if not seconds and not any(rest):
        return b"0000-00-00 00:00:00" + _fraction_text(rest, fsp)
    days, second = divmod(seconds, 86_400)
    date = dt.date.fromordinal(_EPOCH_DAY + days).isoformat().encode()
    return b"%s %02d:%02d:%02d" % (date, second // 3600, second // 60 % 60, second % 60) + (
        _fraction_text(rest, fsp)
    )


def _datetime_text(value: bytes, fsp: int) -> bytes:
    """Return the text of a date and time of day."""
    packed = int.from_bytes(value[:5], "big") - (1 << 39)
    months, day, second = packed >> 22, packed >> 17 & 31, packed & 0x1FFFF
    return b"%04d-%02d-%02d %02d:%02d:%02d" % (
        *(months // 13, months % 13, day),
        *(second >> 12, second >> 6 & 63, second & 63),
    ) + _fraction_text(value[5:], fsp)


def _time_text(value: bytes, fsp: int) -> bytes:
    """Return the text of a time, which is one number with its fraction, negative or not."""
    fraction_bits = 8 * (len(value) - 3)
    packed = int.from_bytes(value, "big") - (1 << 23 + fraction_bits)
    sign, packed = (b"-", -packed) if packed < 0 else (b"", packed)
    whole_seconds, fraction = packed >> fraction_bits, packed & (1 << fraction_bits) - 1
    fraction_bytes = fraction.to_bytes(len(value) - 3, "big")
    return b"%s%02d:%02d:%02d" % (
        sign,
        whole_seconds >> 12,
        whole_seconds >> 6 & 63,
        whole_seconds & 63,
    ) + (_fraction_text(fraction_bytes, fsp))


def _inet6(value: bytes) -> bytes:
    """Return the text of an IPv6 address, as the server writes it."""
    address = ipaddress.IPv6Address(value)
    low = ipaddress.IPv4Address(value[12:])
    if address.ipv4_mapped is not None:
        return b"::ffff:%s" % str(low).encode()
    if not any(value[:12]) and any(value[12:14]):
        return b"::%s" % str(low).encode()
    return str(address).encode()


_OTHERS: Final[dict[str, Callable[[bytes], bytes]]] = {
    "uuid": lambda v: str(uuid.UUID(bytes=v)).encode(),
    "inet6": _inet6,
    "inet4": lambda v: str(ipaddress.IPv4Address(v)).encode(),
}

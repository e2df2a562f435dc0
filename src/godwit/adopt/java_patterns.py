"""Translation of Java's regular expressions to Python's, for the part with equal meaning.

That part is texts, classes of characters, groups, alternatives and quantifiers.  ``.`` and ``$``
are translated, since Java has more ends of lines; letters and digits are those of ASCII in both.
All else, such as look-around, references and possessive quantifiers, is refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_NO_END_OF_LINE = "[^\\n\\r\\u0085\\u2028\\u2029]"
_AT_END = "(?=(?:\\r\\n|(?<!\\r)\\n|[\\r\\u0085\\u2028\\u2029])?\\Z)"
_TOKEN = re.compile(
    r"\\(?P<escaped>[\s\S])|(?P<set>\[\^?(?:\\[\s\S]|[^\[\]\\])+\])|(?P<open>\((?:\?:)?(?!\?))|(?P<close>\))"
    r"|(?P<repeat>[*+?]|\{\d{1,3}(?:,\d{0,3})?\})(?P<lazy>\??)(?!\+)|(?P<bar>\|)|(?P<other>[^\\\[\](){}*+?|])"
)
_MEMBER = re.compile(r"\\([\s\S])|([^\\])")


@dataclass(slots=True)
class _Group:
    """A group being parsed: the minimum number of characters that it matches."""

    captures: bool  # or a group in it does
    least: int = 0  # of the alternative that is read
    shortest: int | None = None  # of the alternatives before it
    last: int | None = None  # of the last part; ``None`` if it cannot be repeated
    last_captures: bool = False

    @property
    def width(self) -> int:
        return self.least if self.shortest is None else min(self.least, self.shortest)


@dataclass(frozen=True, slots=True, kw_only=True)
class JavaPattern:
    """A regular expression with equal meaning in both languages."""

    pattern: re.Pattern[str]
    can_be_empty: bool
    repeats_captures: bool  # what a group has captured differs
    groups: int = field(default=0)


def java_pattern(text: str) -> JavaPattern | None:
    """Translate a Java regular expression to Python; ``None`` if the meaning may differ.

    Examples
    --------
    >>> java_pattern("(a|b)+[^,]*$").pattern.search("xab,cb").group()
    'b'
    >>> java_pattern("(?<=a)b"), java_pattern("a*+"), java_pattern("[a&&b]")
    (None, None, None)
    """
    flags = re.ASCII
    if text.startswith("(?i)"):
        text, flags = text[4:], flags | re.IGNORECASE
    groups, parts, position = [_Group(captures=False)], [], 0
    number, repeats_captures = 0, False
    while position < len(text):
        token = _TOKEN.match(text, position)
        if token is None:
            return None
        position, kind, group = token.end(), token.lastgroup, groups[-1]
        if kind == "lazy":
            if group.last is None or (group.last == 0 and token["repeat"] != "?"):
                return None
            repeats_captures |= group.last_captures
            low = {"*": 0, "+": 1, "?": 0}.get(token["repeat"])
            low = int(re.findall(r"\d+", token["repeat"])[0]) if low is None else low
            group.least += (low - 1) * group.last
            group.last = None
            parts.append(token[0])
        elif kind == "open":
            captures = token[0] == "("
            number += captures
            groups.append(_Group(captures=captures))
            parts.append(token[0])
        elif kind == "close":
            if len(groups) == 1:
                return None
            inner, outer = groups.pop(), groups[-1]
            outer.last, outer.last_captures = inner.width, inner.captures
            outer.least += inner.width
            outer.captures |= inner.captures
            parts.append(")")
        elif kind == "bar":
            group.shortest, group.least, group.last = group.width, 0, None
            parts.append("|")
        else:
            part = _python_atom(token)
            if part is None:
                return None
            is_place = token[0] in "^$"
            group.last, group.last_captures = (None if is_place else 1), False
            group.least += not is_place
            parts.append(part)
    try:
        pattern = re.compile("".join(parts), flags)
    except re.error:  # such as a{3,1}
        return None
    if len(groups) > 1:
        return None
    return JavaPattern(
        pattern=pattern,
        can_be_empty=groups[0].width == 0,
        repeats_captures=repeats_captures,
        groups=number,
    )


def _python_atom(token: re.Match[str]) -> str | None:
    """Return the Python pattern of a character, or a place; ``None`` if unsupported."""
    if token["escaped"] is not None:
        return _python_escape(token["escaped"])
    if token["set"] is not None:
        return _python_class(token["set"])
    return {".": _NO_END_OF_LINE, "$": _AT_END, "^": "^"}.get(token[0]) or re.escape(token[0])


def _python_escape(character: str) -> str | None:
    """Return a character, or a class, after a backslash."""
    if character in "dDwWsStnrf":
        return "\\" + character
    return None if character.isalnum() or character.isspace() else re.escape(character)


def _python_class(text: str) -> str | None:
    """Return a class of characters in brackets."""
    inverted = text.startswith("[^")
    members = list(_MEMBER.finditer(text[2:-1] if inverted else text[1:-1]))
    if "&&" in text:
        return None
    parts = []
    for number, member in enumerate(members):
        if member[1] is not None:
            part = _python_escape(member[1])
            if part is None:
                return None
            parts.append(part)
        elif member[2] == "-" and 0 < number < len(members) - 1:
            lower, upper = members[number - 1], members[number + 1]
            if lower[1] is not None or upper[1] is not None or lower[2] > upper[2]:
                return None
            parts.append("-")
        else:
            parts.append(re.escape(member[2]))
    return f"[{'^' if inverted else ''}{''.join(parts)}]"

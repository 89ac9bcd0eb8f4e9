"""What may be kept of a message: secrets taken out, a bounded length, characters that any database and terminal takes.

Scrubbing looks at a window of the text only, so that a body of megabytes costs no more than a short one.
"""

from __future__ import annotations

import re
from typing import Final

MAX_MESSAGE_CHARS: Final = 2_000
REMOVED: Final = "[removed]"

# Names that stand before a secret: a query parameter, a header, a JSON key, or prose (`api_key:AIza…`). The short ones
# are words of every message, so they count only where the value follows without a space.
_NAME: Final = (
    r"(?:x[-_]goog[-_])?(?:api[-_ ]?key|signature|credential|security[-_]token)"
    r"|(?:access|refresh|id|auth|bearer|session|oauth|subject|security)[-_]?token"
    r"|(?:client|account)[-_]?secret|secret|pass(?:word|wd)|private[-_]?key(?:[-_]?id)?|(?:set-)?cookie"
)
_SHORT_NAME: Final = r"key|token|sig|assertion|googleaccessid|awsaccesskeyid"
# Where a word begins: also behind an escape of a string that was printed or encoded once more (`\\nkey=…`, `%26key=…`).
_ESCAPED: Final = r"(?<=\\[nrtbf])|(?<=\\u0026)|(?<=%26)"
_EDGE: Final = rf"(?:(?<!\w)|{_ESCAPED})"
_BEFORE: Final = rf"(?i)(?:(?<![a-z0-9])|{_ESCAPED})((?:"
_IS: Final = r"(?:\\?[\"'])?\s{0,3}(?:[:=]|%3[ad]|\\u003[ad])\s{0,3}"

# Each pattern, and what takes the place of its match. Ordered: a whole header or block before its parts.
_SECRETS: Final = (
    (r"-----BEGIN [^-\n]{0,60}-----.*?(?:-----END [^-\n]{0,60}-----|\Z)", REMOVED),
    (rf"(?i){_EDGE}((?:proxy-)?authorization{_IS}b?(?:\\?[\"'])?)[^\"'\r\n,}}]+", rf"\1{REMOVED}"),
    (rf"(?i){_EDGE}(bearer|basic)\s{{1,3}}[\w.~+/=:-]{{6,}}", rf"\1 {REMOVED}"),
    (rf"{_BEFORE}{_NAME}|{_SHORT_NAME}){_IS}b?\\?\")[^\"]*", rf"\1{REMOVED}"),
    (rf"{_BEFORE}{_NAME}|{_SHORT_NAME}){_IS}b?\\?')[^']*", rf"\1{REMOVED}"),
    (rf"{_BEFORE}{_NAME}){_IS}(?!//))[^\s\"'`&,;<>()\[\]{{}}]+", rf"\1{REMOVED}"),
    (rf"{_BEFORE}{_SHORT_NAME})(?:=|:(?!//)|%3[ad]|\\u003[ad]))[^\s\"'`&,;<>()\[\]{{}}]+", rf"\1{REMOVED}"),
    (rf"(?i){_EDGE}([a-z][a-z0-9+.-]{{1,20}}://)[^\s/@\"'<>]{{1,300}}@", rf"\1{REMOVED}@"),
    # Secrets that are known by their look: API keys and OAuth tokens of Google, JWTs, keys of other services.
    (r"AIza[\w-]{16,}|GOCSPX-[\w-]{10,}", REMOVED),
    (rf"{_EDGE}(?:AQ\.[\w-]{{16,}}|ya29\.[\w.~+/-]{{10,}}|1//0[\w-]{{10,}})", REMOVED),
    (rf"(?:(?<![\w-])|{_ESCAPED})ey[JI][\w-]{{8,}}\.[\w-]{{4,}}(?:\.[\w-]*)?", REMOVED),
    (rf"{_EDGE}(?:(?:sk|pk|rk)-[\w-]{{16,}}|(?:AKIA|ASIA)[A-Z0-9]{{12,}})", REMOVED),
    (rf"{_EDGE}(?:gh[opsu]_|github_pat_)\w{{20,}}", REMOVED),
)
# Patterns are compiled on first use, by `re` itself: most runs meet no failure, and every import would pay for them.
_HINT: Final = r"(?i)[:=@.-]|%3|\\u003|//|bearer|basic|AIza|AKIA|ASIA|gh[opsu]_|github_pat_"
_CONTROL: Final = r"[\x00-\x08\x0b-\x1f\x7f]"
_WINDOW_CHARS: Final = 4 * MAX_MESSAGE_CHARS
# How a quote opens and how it closes; an apostrophe inside a word does neither.
_QUOTES: Final = (('"', '"'), ("`", "`"), (r"(?<!\w)'", r"'(?!\w)"))


def scrubbed(text: str, *, limit: int = MAX_MESSAGE_CHARS) -> str:
    """Return `text` without secrets, control characters and lone surrogates, at most `limit` characters long.

    What replaces a secret is `[removed]`; a text that was cut ends in `…`.
    """
    was_cut = len(text) > _WINDOW_CHARS
    if was_cut:
        text = text[:_WINDOW_CHARS]
        # The last word goes: a secret that the cut went through would no longer look like one.
        text = text[: max(text.rfind(end) for end in " \n\t\"'") + 1]
    if not text.isascii():
        text = text.encode("utf-8", "backslashreplace").decode("utf-8")
    if not text.isprintable():
        text = re.sub(_CONTROL, " ", text)
    if re.search(_HINT, text):
        for pattern, replacement in _SECRETS:
            text = re.sub(pattern, replacement, text, flags=re.DOTALL)
    if len(text) > limit or was_cut:
        text = text[: limit - 1] + "…"
    return text


def unquoted(text: str) -> str:
    """Return `text` without what stands in quotes: there an error message repeats names and words of its user.

    From the first quote to the last of its kind, since the words in it may hold quotes of their own; to the end of the
    text where none closes it.
    """
    for opening, closing in _QUOTES:
        first = re.search(opening, text)
        if first is not None:
            end = len(text)
            for last in re.finditer(closing, text[first.end() :]):
                end = first.end() + last.end()
            text = f"{text[: first.start()]} {text[end:]}"
    return text


def is_outside_quotes(text: str, at: int) -> bool:
    """Whether what begins at `at` doesn't stand in quotes that were opened before."""
    return unquoted(f"{text[:at]}\0").endswith("\0")

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
    r"|(?:client|account)[-_]?secret|secret|pass(?:word|wd|phrase)|private[-_]?key(?:[-_]?id)?|(?:set-)?cookie"
)
_SHORT_NAME: Final = r"key|token|sig|pwd|assertion|googleaccessid|awsaccesskeyid"
_AUTHORIZATION: Final = r"(?:proxy-)?authorization"
# Where a word begins: also behind an escape of a string that was printed or encoded once more or twice (`\\nkey=…`,
# `%26key=…`, `%253Fkey=…`).
_ESCAPED: Final = r"(?<=\\[nrtbf])|(?<=\\u0026)|(?<=%[0-9A-Fa-f]{2})|(?<=%25[0-9A-Fa-f]{2})"
_EDGE: Final = rf"(?:(?<!\w)|{_ESCAPED})"
_BEFORE: Final = rf"(?i)(?:(?<![a-z0-9])|{_ESCAPED})"
# A quote, as it stands in JSON that was put into JSON up to four times, and in HTML; and what stands between a name and
# its value. A value in quotes ends with the quote that began it, and may be on the next line.
_QUOTE: Final = r"(?:\\{0,15}[\"']|\\{1,8}u002[27]|&(?:quot|apos|#0?3[49]);)"
_COLON: Final = r"(?:[:=]|%(?:25){0,2}3[ad]|\\{1,8}u003[ad])"
_IS: Final = rf"(?:\s{{0,3}}{_COLON}\s{{0,3}}|{_QUOTE}\s{{0,3}}{_COLON}\s{{0,80}})"
_QUOTED: Final = rf"b?(?P<quote>{_QUOTE}))(?:(?!(?P=quote))(?:\\.|.))*"
_BARE: Final = r"[^\s\"'`&,;<>()\[\]{}]+"

# What a text has in it, in lower case, if the pattern can match: looking for words is a hundred times cheaper.
_NAMED: Final = ("key", "token", "secret", "pass", "pwd", "cookie", "credential", "sig", "assertion", "accessid")
_AUTHORIZED: Final = ("authorization",)

# A secret: those words, its pattern, and what takes the place of a match.
_PRIVATE_KEY: Final = (
    ("-----begin ",),
    r"-----BEGIN [^-\n]{0,60}-----.*?(?:-----END [^-\n]{0,60}-----|\Z)",
    REMOVED,
)
# Secrets that are known by their look: API keys and OAuth tokens of Google, JWTs, keys of other services.
_KEYS: Final = (
    (("aiza", "gocspx-"), r"AIza[\w-]{16,}|GOCSPX-[\w-]{10,}", REMOVED),
    (
        ("aq.", "ya29.", "1//0"),
        rf"{_EDGE}(?:AQ\.[\w-]{{16,}}|ya29\.[\w.~+/-]{{10,}}|1//0[\w-]{{10,}})",
        REMOVED,
    ),
    (("eyj", "eyi"), rf"(?:(?<![\w-])|{_ESCAPED})ey[JI][\w-]{{8,}}\.[\w-]{{4,}}(?:\.[\w-]*)?", REMOVED),
    (
        ("sk-", "pk-", "rk-", "akia", "asia"),
        rf"{_EDGE}(?:(?:sk|pk|rk)-[\w-]{{16,}}|(?:AKIA|ASIA)[A-Z0-9]{{12,}})",
        REMOVED,
    ),
    (
        ("_live_", "_test_", "xox", "xapp-", "glpat-", "hf_"),
        rf"{_EDGE}(?:[spr]k_(?:live|test)_[\w-]{{10,}}|(?:xox[a-z]|xapp|glpat)-[\w-]{{10,}}|hf_[A-Za-z0-9]{{20,}})",
        REMOVED,
    ),
    (("gho_", "ghp_", "ghs_", "ghu_", "github_pat_"), rf"{_EDGE}(?:gh[opsu]_|github_pat_)\w{{20,}}", REMOVED),
)
# Ordered: a whole header or block before its parts.
_SECRETS: Final = (
    _PRIVATE_KEY,
    # Headers as pairs (`('x-api-key', '…')`), and flags in a list of arguments.
    (
        (*_NAMED, *_AUTHORIZED),
        rf"(?i)((?:[\[(]\s{{0,3}}b?{_QUOTE}(?:[\w-]{{0,30}}[-_])?|{_QUOTE}--?(?:[\w-]{{0,30}}-)?)"
        rf"(?:{_NAME}|{_AUTHORIZATION}){_QUOTE}\s{{0,3}},\s{{0,80}}{_QUOTED}",
        rf"\1{REMOVED}",
    ),
    # The parameters of these schemes have quotes and commas of their own.
    (
        _AUTHORIZED,
        rf"(?i){_EDGE}({_AUTHORIZATION}{_IS}b?{_QUOTE}?)(?:digest|oauth|hawk|signature|aws4-hmac-sha256)\s[^\r\n]*",
        rf"\1{REMOVED}",
    ),
    (_AUTHORIZED, rf"(?i){_EDGE}({_AUTHORIZATION}{_IS}{_QUOTED}", rf"\1{REMOVED}"),
    (_AUTHORIZED, rf"(?i){_EDGE}({_AUTHORIZATION}{_IS})[^\"'\r\n,}}]+", rf"\1{REMOVED}"),
    (("bearer", "basic"), rf"(?i){_EDGE}(bearer|basic)\s{{1,3}}[\w.~+/=:-]{{6,}}", rf"\1 {REMOVED}"),
    (_NAMED, rf"{_BEFORE}((?:{_NAME}|{_SHORT_NAME}){_IS}{_QUOTED}", rf"\1{REMOVED}"),
    (("cookie",), rf"{_BEFORE}((?:set-)?cookie{_IS}){_BARE}(?:;\s{{0,3}}{_BARE})*", rf"\1{REMOVED}"),
    (_NAMED, rf"{_BEFORE}((?:{_NAME}){_IS}(?!//)){_BARE}", rf"\1{REMOVED}"),
    (_NAMED, rf"{_BEFORE}((?:{_SHORT_NAME}){_COLON}(?!//)){_BARE}", rf"\1{REMOVED}"),
    # Without a colon: a flag of a command, and a key that a message quotes.
    (
        ("--",),
        rf"(?i)(?<!\S)(--(?:[\w-]{{0,30}}-)?(?:{_NAME}|token)[\s=]{{1,3}}(?!--)[\"']?)[^\s\"']+",
        rf"\1{REMOVED}",
    ),
    (
        ("-u",),
        r"(?<!\S)((?:-u|--(?:proxy-)?user)[\s=]{1,3}[\"']?[^\s:\"']{1,100}:)[^\s\"']+",
        rf"\1{REMOVED}",
    ),
    (
        ("key", "token", "pass"),
        rf"{_BEFORE}((?:api[-_ ]?key|(?:access|refresh|auth)[-_ ]token|password|passphrase)\s(?P<quote>{_QUOTE}|`))"
        r"[^\s\"'`]{6,}(?=(?P=quote))",
        rf"\1{REMOVED}",
    ),
    (("://",), rf"(?i){_EDGE}([a-z][a-z0-9+.-]{{1,20}}://)[^\s/@\"'<>]{{1,300}}@", rf"\1{REMOVED}@"),
    # A proxy that is written without a scheme.
    (("@",), rf"{_EDGE}[^\s:/@\"'<>=]{{1,100}}:[^\s:/@\"'<>]{{1,200}}@(?=[\w.-]{{1,250}}:\d{{2,5}}\b)", f"{REMOVED}@"),
    *_KEYS,
)
# Patterns are compiled on first use, by `re` itself: most runs meet no failure, and every import would pay for them.
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
    text = _without(_SECRETS, text)
    if len(text) > limit or was_cut:
        text = text[: limit - 1] + "…"
    return text


def without_keys(text: str) -> str:
    """Return `text` without the secrets that are known by their look. For prose, where names are words."""
    return _without((_PRIVATE_KEY, *_KEYS), text)


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


def _without(secrets: tuple[tuple[tuple[str, ...], str, str], ...], text: str) -> str:
    lowered = text.lower()
    for words, pattern, replacement in secrets:
        if any(word in lowered for word in words):
            text = re.sub(pattern, replacement, text, flags=re.DOTALL)
    return text

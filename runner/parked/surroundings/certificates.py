"""Whether there are authorities by which the API's certificate can be checked.

google-genai takes them from `SSL_CERT_FILE` and `SSL_CERT_DIR`. Without either, asyncio's calls go by the package
certifi, and those of plain functions by the system's. Google's login and OpenTelemetry go by `REQUESTS_CA_BUNDLE`.
"""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from parked.errors import SettingsError

FILE: Final = "SSL_CERT_FILE"
FOLDER: Final = "SSL_CERT_DIR"
BUNDLE: Final = "REQUESTS_CA_BUNDLE"

_HASHED: Final = re.compile(r"[0-9a-f]{8}\.\d+")  # by which OpenSSL finds an authority in a folder


class Fault(NamedTuple):
    variable: str
    path: str
    why: str

    def __str__(self) -> str:
        return f"{self.variable} ({self.path!r}) {self.why}"


class Seen(NamedTuple):
    faults: tuple[Fault, ...]
    named: tuple[str, ...]  # variables that name authorities
    system_has_some: bool


def look(env: Mapping[str, str] | None = None) -> Seen:
    """Look at what the variables name, and whether the system has authorities of its own."""
    env = os.environ if env is None else env
    faults = [fault for name in (FILE, FOLDER, BUNDLE) if (fault := _fault_of(name, env.get(name, "")))]
    named = tuple(name for name in (FILE, FOLDER, BUNDLE) if env.get(name))
    return Seen(tuple(faults), named, _system_has_some())


def check(env: Mapping[str, str] | None = None) -> None:
    """See that the API's certificate can be checked as the variables say.

    Raises:
        SettingsError: no call could be made, for what they name is missing or holds no certificate.
    """
    env = os.environ if env is None else env
    fault = _fault_of(FILE, env.get(FILE, ""))
    if fault is None and not env.get(FILE):  # with a file, a folder that is missing takes nothing away
        fault = _fault_of(FOLDER, env.get(FOLDER, ""))
    if fault is not None:
        raise SettingsError(f"{fault}; {remedy(fault)}")


def remedy(fault: Fault) -> str:
    return f"name a file of authorities in PEM form by {fault.variable}, or leave it out for those of the system"


def _fault_of(variable: str, path: str) -> Fault | None:
    if not path:
        return None
    why = _why_not_a_folder(Path(path)) if variable == FOLDER else _why_not_a_file(Path(path), or_folder=variable)
    return None if why is None else Fault(variable, path, why)


def _why_not_a_file(path: Path, *, or_folder: str) -> str | None:
    try:
        if path.is_dir():
            return _why_not_a_folder(path) if or_folder == BUNDLE else "is a folder"
        if not path.stat().st_size:
            return "is empty"
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cafile=str(path))
    except ssl.SSLError:
        return "holds no certificate that can be read"
    except OSError as exc:
        return f"can't be read: {exc.strerror}"
    return None


def _why_not_a_folder(path: Path) -> str | None:
    folders = str(path).split(os.pathsep)
    try:
        names = [name for folder in folders for name in os.listdir(folder)]  # noqa: PTH208 - their names are enough
    except OSError as exc:
        return f"can't be read: {exc.strerror}"
    if not any(map(_HASHED.fullmatch, names)):
        return "holds no authority that OpenSSL finds; `openssl rehash` names them"
    return None


def _system_has_some() -> bool:
    """Whether OpenSSL's own file or folder holds any; the variables don't count here."""
    paths = ssl.get_default_verify_paths()
    file, folder = Path(paths.openssl_cafile), Path(paths.openssl_capath)
    return _why_not_a_file(file, or_folder="") is None or _why_not_a_folder(folder) is None

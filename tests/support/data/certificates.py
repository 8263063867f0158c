"""Certificates for tests, made by the `openssl` program."""

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

_NAMES = "subjectAltName=DNS:localhost,IP:127.0.0.1"


@dataclass(frozen=True)
class Pair:
    """The files of a certificate and its key."""

    cert: Path
    key: Path


def tls_options(pair: Pair) -> tuple[str, ...]:
    """Return the options of a server with this certificate and one worker."""
    return ("--tls-cert", str(pair.cert), "--tls-key", str(pair.key), "--workers", "1")


def put(pair: Pair, place: Pair) -> None:
    """Rename new files of a certificate into the place of the old ones."""
    for source, target in ((pair.cert, place.cert), (pair.key, place.key)):
        draft = target.with_suffix(".draft")
        shutil.copy(source, draft)
        os.replace(draft, target)


class Authority:
    """A certification authority, whose files are in a folder."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        self._folder = folder
        self._name = name
        self.pair = self._pair(name)
        _openssl(
            *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"),
            *("-days", "30", "-subj", f"/CN={name}", "-keyout", self.pair.key),
            *("-out", self.pair.cert),
        )

    @property
    def ca(self) -> Path:
        """The file of the authority's certificate."""
        return self.pair.cert

    def issue(self, name: str, names: str = _NAMES, *, days: int = 30, rsa: bool = False) -> Pair:
        """Make a certificate; one with negative `days` has expired."""
        pair = self._pair(f"{self._name}-{name}")
        request, extensions = pair.cert.with_suffix(".csr"), pair.cert.with_suffix(".ext")
        kind = ("rsa:2048",) if rsa else ("ec", "-pkeyopt", "ec_paramgen_curve:P-256")
        _openssl(
            *("req", "-newkey", *kind, "-nodes", "-subj", f"/CN={name}"),
            *("-keyout", pair.key, "-out", request),
        )
        extensions.write_text(f"{names}\n" if names else "")
        draft = pair.cert.with_suffix(".new")
        _openssl(
            *("x509", "-req", "-in", request, "-CA", self.pair.cert, "-CAkey", self.pair.key),
            *("-CAcreateserial", "-days", str(days), "-extfile", extensions, "-out", draft),
        )
        os.replace(draft, pair.cert)
        return pair

    def _pair(self, name: str) -> Pair:
        return Pair(self._folder / f"{name}.pem", self._folder / f"{name}-key.pem")


def _openssl(*arguments: object) -> None:
    program = shutil.which("openssl")
    if program is None:
        pytest.skip("needs the program openssl")
    subprocess.run([program, *map(str, arguments)], check=True, capture_output=True, timeout=60)

"""Certificates for ``tls://``: one authority, and certificates with the names that are asked for."""

import atexit
import ipaddress
import shutil
import tempfile
from functools import cache
from pathlib import Path

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes

from broker.schemes import TlsOptions
from tests.unit.gateway.identity.authority import Authority, common


class TlsFiles:
    """Writes ``ca.pem`` into ``folder``, and ``NAME.pem`` (certificate and key) for whoever asks."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._authority = Authority()
        self._authority.save(folder / "ca.pem")

    def options(self, name: str) -> dict[str, str]:
        """The ``options`` table of ``name``, which gets a certificate for itself, localhost and 127.0.0.1."""
        file = self.folder / f"{name}.pem"
        if not file.exists():
            local = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
            names = [x509.DNSName(name), x509.DNSName("localhost"), local]
            file.write_bytes(self._authority.leaf(common(name), names, usage=None)[0])
        return {"cert": str(file), "ca": str(self.folder / "ca.pem")}

    def settings(self, name: str, **more: str) -> TlsOptions:
        """The same as a transport gets them."""
        return msgspec.convert(self.options(name) | more, TlsOptions)

    def fingerprint(self, name: str) -> str:
        """What ``name`` is known by, whatever its certificate says."""
        certificate = x509.load_pem_x509_certificate((self.folder / f"{name}.pem").read_bytes())
        return f"sha256:{certificate.fingerprint(hashes.SHA256()).hex()}"


@cache
def tls_files() -> TlsFiles:
    """Those of this process."""
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder)
    return TlsFiles(folder)

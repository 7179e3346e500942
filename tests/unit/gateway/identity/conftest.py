"""What the tests of this room begin with: a state directory, a listener with mutual TLS."""

import pytest
from cryptography import x509

from gateway.settings.schema import ListenEntry
from tests.unit.gateway.identity.authority import Authority, common
from tests.unit.gateway.identity.doorway import settings_in


@pytest.fixture
def state(tmp_path):
    return tmp_path / "state"


@pytest.fixture
def mutual(tmp_path, state):
    authority = Authority()
    authority.server(tmp_path / "server.pem")
    authority.save(tmp_path / "ca.pem")
    for who in ("alice", "stranger"):
        sans = [x509.DNSName(f"{who}.example")]
        (tmp_path / f"{who}.pem").write_bytes(authority.leaf(common(who), sans)[0])

    def settings(mode="optional", **more):
        listen = ListenEntry(
            url="https://127.0.0.1:0",
            cert=str(tmp_path / "server.pem"),
            client_ca=str(tmp_path / "ca.pem"),
            client_cert=mode,
        )
        return settings_in(state, listen=listen, **more)

    return settings

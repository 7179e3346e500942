"""The contract of transports, and whose token nobody knows."""

import asyncio
import errno
import time

import pytest
from headgate_token import TokenOptions, fingerprint, transport

from broker.errors import LinkBroken, LinkRefused
from broker.identity import ClientKey, Credentials
from broker.testing import CHECKS, Harness
from broker.testing.endings import check_half_open_peer
from broker.testing.harness import Accepting, failure_of
from gateway import selfsigned

TOKEN = b"correct horse"


async def knock(address):
    host, _, port = address.partition("://")[2].rpartition(":")
    return (await asyncio.open_connection(host, int(port)))[1]


@pytest.fixture(scope="module")
def harness(tmp_path_factory):
    folder = tmp_path_factory.mktemp("token")
    made = selfsigned.make([], now=time.time())
    (folder / "gate.pem").write_bytes(made.certificate + made.key)
    (folder / "ada.token").write_bytes(TOKEN)
    (folder / "mallory.token").write_bytes(b"guess")
    (folder / "long.token").write_bytes(b"x" * 1000)
    for file in folder.iterdir():
        file.chmod(0o600)
    return Harness(
        "token",
        transport,
        "token://127.0.0.1:*",
        listen={
            "settings": TokenOptions(cert=f"{folder}/gate.pem"),
            "keys": {fingerprint(TOKEN): ClientKey(Credentials(1000, 2))},
        },
        dial={"settings": TokenOptions(ca=f"{folder}/gate.pem", token_file=f"{folder}/ada.token")},
        stranger=knock,
    )


@pytest.mark.parametrize(
    "check", [*CHECKS, check_half_open_peer], ids=lambda check: check.__name__.removeprefix("check_")
)
def test_contract(harness, check):
    asyncio.run(check(harness))


@pytest.mark.parametrize(("file", "known"), [("mallory.token", True), ("long.token", False)])
def test_whose_token_nobody_knows_is_refused(harness, file, known):
    """A line that is too long is no token at all."""

    async def story():
        refused = []
        options = harness.listening(refused=lambda _peer, errnum, reason: refused.append((errnum, reason)))
        listener = await transport.listen(harness.new_address(), Accepting(), options)
        ours = harness.dial["settings"]
        settings = TokenOptions(ca=ours.ca, token_file=ours.token_file.replace("ada.token", file))
        error = await failure_of(harness, listener, harness.dialling(settings=settings))
        await listener.stop()
        return error, refused

    error, refused = asyncio.run(story())
    assert isinstance(error, LinkRefused if known else LinkBroken)
    assert refused == [(errno.EPERM, "unknown token")] * known

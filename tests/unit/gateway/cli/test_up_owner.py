"""`headgate up`: the owner's token is for one instance."""

import msgspec
import pytest

from gateway.cli.up import OWNER, with_owner
from gateway.identity.tokens import TokenFile, token_path
from gateway.principal import Denied
from gateway.settings import GatewaySettings

NOW = 1_800_000_000.0


def test_a_token_of_an_instance_before_in_the_same_directory_lets_nobody_in(tmp_path):
    settings = GatewaySettings.defaults()
    section = msgspec.structs.replace(settings.gateway, statedir=str(tmp_path / "state"))
    settings = msgspec.structs.replace(settings, gateway=section)
    file = TokenFile(token_path(settings))
    made = file.add(OWNER, now=NOW, note="made by hand")[1]
    before, now = (with_owner(settings)[1] for _ in range(2))
    with pytest.raises(Denied):
        file.check(before, NOW)
    assert {file.check(text, NOW).user for text in (now, made)} == {OWNER}

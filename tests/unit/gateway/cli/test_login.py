"""`headgate login link` beside a running gateway: the link logs in, once."""

import json

import pytest

from broker.cli import exits
from broker.cli.main import main
from gateway.cli.login import choose
from gateway.settings.schema import AccessSection
from tests.tables import for_each
from tests.unit.gateway.identity.doorway import ask, open_door, settings_in


def link(capsys, *words, code=exits.OK):
    assert main(["login", "link", *words]) == code
    said = capsys.readouterr()
    return said.out.strip() if code == exits.OK else said.err


@pytest.mark.parametrize("role", ["owner", "user"])
async def test_a_link_logs_in_once(tmp_path, capsys, role):
    settings = settings_in(tmp_path, access=AccessSection(login_links=role))
    async with open_door(settings) as door:
        door.identity.announce([f"http://127.0.0.1:{door.port}"])
        value = json.loads(link(capsys, "--statedir", str(tmp_path), "--json"))
        assert value["role"] == role
        url, _, secret = value["url"].partition("#once=")
        assert url == f"http://127.0.0.1:{door.port}/login"
        origin, body = f"Origin: http://127.0.0.1:{door.port}", json.dumps({"once": secret}).encode()
        statuses = [
            (await ask(door.port, origin, method="POST", path="/v1/login", body=body)).status
            for _ in range(2)
        ]
        assert statuses == [200, 401]


async def test_another_url(tmp_path, capsys):
    settings = settings_in(tmp_path, access=AccessSection(login_links="user"))
    async with open_door(settings) as door:
        door.identity.announce(["unix:///run/gate.sock"])
        assert "--url" in link(capsys, "--statedir", str(tmp_path), code=exits.CONFIG)
        shown = link(capsys, "--statedir", str(tmp_path), "--url", "https://gate.example.org/")
        assert shown.startswith("https://gate.example.org/login#once=")


async def test_links_are_off(tmp_path, capsys):
    async with open_door(settings_in(tmp_path)) as door:
        door.identity.announce(["http://127.0.0.1:1"])
        said = link(capsys, "--statedir", str(tmp_path), code=exits.CONFIG)
        assert "the gateway at http://127.0.0.1:1 takes no login links" in said
        assert door.store.reading("SELECT count(*) FROM links") == [(0,)]


def test_no_gateway_has_run_here(tmp_path, capsys):
    assert "no gateway has run" in link(capsys, "--statedir", str(tmp_path), code=exits.CONFIG)
    assert list(tmp_path.iterdir()) == []
    beyond = tmp_path / "loop"
    beyond.symlink_to(beyond)
    assert "symbolic links" in link(capsys, "--statedir", str(beyond), code=exits.CONFIG)


def test_a_configuration_of_a_gateway_that_has_not_announced_itself(tmp_path, capsys):
    from gateway.identity.store import Store

    (tmp_path / "gateway.toml").write_text('[gateway]\nstatedir = "s"\n[access]\nlogin_links = "owner"\n')
    Store(tmp_path / "s").close()
    shown = link(capsys, "--config", str(tmp_path / "gateway.toml"))
    assert shown.startswith("http://127.0.0.1:8280/login#once=")


@for_each(
    ("role", "urls", "chosen"),
    [
        ("owner", ["https://gate.example.org:443", "http://127.0.0.1:1"], "http://127.0.0.1:1"),
        (
            "user",
            ["unix:///x", "https://gate.example.org:443", "http://127.0.0.1:1"],
            "https://gate.example.org:443",
        ),
    ],
)
def test_the_listener_that_fits(role, urls, chosen):
    assert choose(urls, role) == chosen


# ---------------------------------------------------------------- who is logged in


def said(capsys, *words, code=exits.OK):
    assert main(["login", *words]) == code
    shown = capsys.readouterr()
    return shown.out if code == exits.OK else shown.err


async def test_logins_are_listed_and_ended(tmp_path, capsys):
    at = ("--statedir", str(tmp_path))
    async with open_door(settings_in(tmp_path)) as door:
        logins = door.identity.logins
        for source, user in (("oidc:corp", "corp:ada"), ("token:1", "bob"), ("token:2", "bob")):
            cookie, login = logins.drafted(source, user, {})
            logins.begin(cookie, login)
        rows = [json.loads(line) for line in said(capsys, "list", *at, "--json").splitlines()]
        assert [(row["user"], row["from"]) for row in rows] == [
            ("bob", "token:2"), ("bob", "token:1"), ("corp:ada", "oidc:corp"),
        ]  # fmt: skip
        assert cookie not in str(rows)
        before = door.store.changes()
        said(capsys, "end", rows[0]["login"], *at)
        assert [each.source for each in logins.of(None)] == ["token:1", "oidc:corp"]
        assert door.store.changes() > before
        assert "ended" in said(capsys, "end", "corp:ada", *at)
        assert [each.user for each in logins.of(None)] == ["bob"]
        assert "no login and no user 'eve'" in said(capsys, "end", "eve", *at, code=exits.FAILED)

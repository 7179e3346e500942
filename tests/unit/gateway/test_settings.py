"""The gateway's configuration: defaults, rules between fields, ``--set``, the sample file."""

import re
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from broker.cli import settings_text
from broker.errors import ConfigError
from broker.secret import SecretPlace
from gateway import settings as public
from gateway.settings import GatewaySettings, apply, check, load, loads, place_of
from tests.tables import for_each

SAMPLE = Path(__file__).parents[3] / "deploy" / "gateway.toml"
TLS = '[[listen]]\nurl = "https://0.0.0.0:443"\ncert = "c.pem"\n'
OIDC = """[[oidc]]
name = "corp"
issuer = "https://id.example"
client_id = "headgate"
url = "https://gate.example"
"""


def refusal(text):
    with pytest.raises(ConfigError) as caught:
        loads(text, "f")
    return str(caught.value).splitlines()


def test_empty_file_gives_the_defaults_and_they_break_no_rule():
    assert loads("") == check(GatewaySettings.defaults())
    assert [entry.url for entry in loads("").listen] == ["http://127.0.0.1:8280"]


def test_public_names_exist():
    assert all(hasattr(public, name) for name in public.__all__)


# ---------------------------------------------------------------- rules


@for_each(
    ("text", "expected"),
    [
        ("listen = []", "f:1: listen: saw no listener, expected at least one"),
        ("[gateway]\nport = 1", "f:2: gateway.port: saw an unknown key, expected one of"),
        ("[gateway]\nworkers = 0", "f:2: gateway.workers: saw 0, expected int >= 1"),
        (
            "[gateway]\nmetrics_listen = 'http://0.0.0.0:1'",
            "f:2: gateway.metrics_listen: saw 'http://0.0.0.0:1', expected a loopback address, or gateway.metrics_",
        ),
        (
            "[gateway]\nmetrics_insecure = true\nmetrics_listen = 'https://127.0.0.1:1'",
            "f:3: gateway.metrics_listen: saw 'https://127.0.0.1:1', expected http or unix",
        ),
        (
            "[gateway]\nmetrics_listen = 'tcp://x'",
            "f:2: gateway.metrics_listen: saw 'tcp://x', expected http://HOST",
        ),
        ("[[listen]]\nurl = 'ftp://x'", "f:2: listen[0].url: saw 'ftp://x', expected http://HOST:PORT, "),
        (
            "[[listen]]\nurl = 'http://127.0.0.1'",
            "f:2: listen[0].url: saw 'http://127.0.0.1', expected http://HOST",
        ),
        ("[[listen]]\nurl = 'http://127.0.0.1:70000'", "f:2: listen[0].url: "),
        (
            "[[listen]]\nurl = 'http://*:80'",
            "saw 'http://*:80', expected a host name, an IPv4 address (0.0.0.0: all)",
        ),
        (
            "[[listen]]\nurl = 'http://::1:80'",
            "f:2: listen[0].url: saw 'http://::1:80', expected a host name",
        ),
        ("[[listen]]\nurl = 'unix://x'", "f:2: listen[0].url: saw 'unix://x', expected unix:///ABSOLUTE"),
        (
            "[[listen]]\nurl = 'http://0.0.0.0:80'",
            "saw 'http://0.0.0.0:80', expected https, or a loopback address",
        ),
        ("[[listen]]\nurl = 'http://name:80'", "saw 'http://name:80', expected https, or a loopback address"),
        ("[[listen]]\nurl = 'https://0.0.0.0:443'", "f:1: listen[0].cert: missing, expected a PEM file"),
        (TLS + TLS, "f:5: listen[1].url: saw 'https://0.0.0.0:443', expected each URL once"),
        (
            TLS + "client_cert = 'required'",
            "f:4: listen[0].client_cert: saw 'required', expected client_ca beside",
        ),
        (TLS + "client_ca = 'x'", "f:4: listen[0].client_ca: saw 'x', expected client_cert = "),
        ("[[listen]]\ncert = 'x'", "f:2: listen[0].cert: saw 'x', expected https: http has no certificates"),
        (
            "[[listen]]\nclient_cert = 'optional'",
            "f:2: listen[0].client_cert: saw 'optional', expected https",
        ),
        (
            "[[listen]]\nproxy_protocol = true",
            "f:2: listen[0].proxy_protocol: saw 'true', expected trusted_proxies",
        ),
        (
            "[[listen]]\ntrusted_proxies = ['x']",
            "f:2: listen[0].trusted_proxies: saw ['x'], expected a network",
        ),
        (
            "[[listen]]\ntrusted_proxies = ['10.0.0.1/8']",
            "f:2: listen[0].trusted_proxies[0]: saw '10.0.0.1/8'",
        ),
        ("[jwt]\nkeys = ['k.pem']\nissuer = 'i'", "f:1: jwt.audience: missing, expected a text"),
        (
            "[jwt]\nkeys = ['http://x']\nissuer='i'\naudience='a'",
            "f:2: jwt.keys[0]: saw 'http://x', expected a PEM",
        ),
        ("[jwt]\ntrust_claims = true", "f:2: jwt.trust_claims: saw 'true', expected jwt.keys"),
        ("[jwt]\nalgorithms = ['HS256']", "f:2: jwt.algorithms: saw ['HS256'], expected one of"),
        ("[jwt]\nalgorithms = []", "f:2: jwt.algorithms: saw none, expected at least one"),
        ("[[users]]\nuserid = 1", "f:1: users[0].name: missing, expected a value"),
        (
            "[[users]]\nname = 'a'\nuserid = 4294967295",
            "f:3: users[0].userid: saw 4294967295, expected int <= ",
        ),
        ("[[users]]\nname = 'a'\nuserid = 1\nroles = []", "f:4: users[0].roles: saw [], expected "),
        (
            "[[users]]\nname = 'a'\nuserid = 1\nroles = ['local']",
            "f:4: users[0].roles: saw ['local'], expected one of",
        ),
        (
            "[[users]]\nname = 'a'\nuserid = 1\nroles = ['owner']",
            "f:4: users[0].roles: saw 'owner', expected access.al",
        ),
        (
            "[[users]]\nname = 'a'\nuserid = 1\nroles = ['admin']",
            "saw 'admin', expected access.allow_admin = true",
        ),
        (
            "[[users]]\nname='a'\nuserid=1\n[[users]]\nname='a'\nuserid=2",
            "f:5: users[1].name: saw 'a', expected each",
        ),
        (
            "[access]\nallowed_origins = ['*']",
            "f:2: access.allowed_origins[0]: saw '*', expected an origin like",
        ),
        ("[access]\nallowed_origins = ['https://a/b']", "f:2: access.allowed_origins[0]: saw 'https://a/b'"),
        ("[access]\nallowed_origins = ['https://*.a.org']", "no wildcards"),
        ("[access]\nallowed_origins = ['http://localhost:*']", "no wildcards"),
        ("[access]\nallowed_origins = ['https://bücher.example']", "browsers say such a name in punycode"),
        ("[access]\nallowed_origins = ['https://user:pw@a.org']", "without a user"),
        ("[access]\nallowed_origins = ['wss://a.org']", "that of the page, also for its WebSockets"),
        *(
            (f"[access]\nallowed_origins = ['{origin}']", "f:2: access.allowed_origins[0]: saw '")
            for origin in (
                *("https://exa mple.org", "https://a.org:99999", "https://a.org:abc", "https://a.org:0"),
                *("https://[::1", "https://[::1]]:80", "https://127.1", "https://a%20b", "null", "file://"),
                *("tauri:localhost", "tauri://", "tauri://localhost/x", "https:/a.org", " https://a.org"),
            )
        ),
        *(
            (f"[jwt]\nkeys = ['{key}']\nissuer='i'\naudience='a'", "f:2: jwt.keys[0]: saw '")
            for key in (
                *(
                    "https://[::1/j",
                    "https://",
                    "https://h:abc",
                    "https:/h",
                    "https://[::1]]/j",
                    "HTTPS://h/j",
                ),
                *("file://etc/keys.pem", "file:/etc/keys.pem", "ftp://h/k", "https://exa mple/j"),
            )
        ),
        *(
            (f"[gateway]\nredis = '{url}'", "f:2: gateway.redis: saw '")
            for url in ("redis://[::1", "redis://h:abc", "http://h", "redis://h/0?strange=1")
        ),
        *(
            (f"{section}{name} = '{url}'", f"{name}: saw '")
            for url in (
                "https://[::1]]:80/",
                "https://[::1",
                "https://h:abc",
                "https://*.a.org",
                "https://h:0",
            )
            for section, name in (
                ("[[oidc]]\nname='a'\nclient_id='c'\nurl='https://a.org'\n", "issuer"),
                ("[[oidc]]\nname='a'\nclient_id='c'\nissuer='https://a.org'\n", "url"),
                ("[access]\n", "hook_url"),
            )
        ),
        ("[history]\nwarehouse = 's3://[::1'", "f:2: history.warehouse: saw '"),
        (
            TLS + "[access]\nlogin_links = 'owner'",
            "f:5: access.login_links: saw 'owner', expected a listener on loop",
        ),
        ("[[rules]]\nroles = ['user']", "f:1: rules[0].prefixes: expected either prefixes or a preset"),
        (
            "[[rules]]\nroles = ['user']\nprefixes = ['gateway.ranks']",
            "saw 'gateway.ranks', expected gateway.metrics",
        ),
        (
            "[[rules]]\nroles = ['user']\nprefixes = ['']\nkinds = ['read']",
            "f:4: rules[0].kinds: saw ['read']",
        ),
        (
            "[limits]\noutbox_bytes = 300000000",
            "f:2: limits.outbox_bytes: saw '300000000', expected at most budget",
        ),
        (
            "[limits]\nmessage_bytes = 2048",
            "f:1: limits.preauth_bytes: saw '16384', expected at most message_bytes",
        ),
        (
            "[limits]\nmessage_bytes = 300000000",
            "f:2: limits.message_bytes: saw '300000000', expected at most budget_bytes",
        ),
        ("[limits]\nconnections = 3", "saw '64', expected at most connections, 3"),
        (
            "[access]\nclient_crls = ['a.crl']",
            "f:2: access.client_crls: saw 'a.crl', expected a listener with client_ca",
        ),
        (OIDC + OIDC, "f:2: oidc[0].name: saw 'corp', expected each provider once"),
        (
            OIDC + "user_prefix = ''\n" + OIDC.replace("corp", "lab") + "user_prefix = ''\n",
            "oidc[1].user_prefix: saw '', expected one that does not meet '' of corp",
        ),
        (OIDC.replace("https://id", "http://id"), "oidc[0].issuer: saw 'http://id.example', expected https"),
        (OIDC.replace("https://gate", "http://gate"), "oidc[0].url"),
        (OIDC.replace("gate.example", "u@gate.example"), "oidc[0].url"),
        (OIDC.replace("gate.example", "gate.example/?next=/"), "oidc[0].url"),
        (OIDC.replace("gate.example", "gate.example:x"), "oidc[0].url"),
        (OIDC.replace("corp", "Corp/.."), "oidc[0].name"),
        (OIDC + "roles = ['owner']\n", "oidc[0].roles: saw 'owner', expected access.allow_owner = true"),
        (
            OIDC + "[[oidc.groups]]\ngroup = 'g'\nroles = ['admin']\n",
            "f:8: oidc[0].groups[0].roles: saw 'admin'",
        ),
    ],
)
def test_what_is_refused_and_where(text, expected):
    said = refusal(text)
    assert any(expected in line for line in said), said


def test_every_problem_is_told_at_once():
    text = "[[listen]]\nurl = 'https://0.0.0.0:1'\n[[users]]\nname = 'a'\nuserid = 1\nroles = ['owner']\n"
    assert [line.split(": ")[1] for line in refusal(text)] == ["listen[0].cert", "users[0].roles"]


def test_what_needs_leave_is_accepted_with_it():
    read = loads(
        '[access]\nallow_owner = true\nlogin_links = "owner"\n'
        '[[users]]\nname = "a"\nuserid = 1\nroles = ["owner"]\n'
        '[[listen]]\nurl = "http://0.0.0.0:80"\ninsecure = true\n'
        '[[listen]]\nurl = "http://localhost:0"\n[[listen]]\nurl = "http://localhost:0"\n'
    )
    assert len(read.listen) == 3
    pod = loads('[gateway]\nmetrics_listen = "http://0.0.0.0:9465"\nmetrics_insecure = true\n')
    assert pod.gateway.metrics_listen == "http://0.0.0.0:9465"


# ---------------------------------------------------------------- files


def test_files_are_taken_from_the_directory_of_the_configuration(tmp_path):
    file = tmp_path / "gateway.toml"
    file.write_text(
        '[gateway]\nstatedir = "state"\n[tokens]\nfile = "t.json"\n'
        '[jwt]\nkeys = ["k.pem", "https://id/jwks", "/abs.pem"]\nissuer = "i"\naudience = "a"\n'
        '[[listen]]\nurl = "https://[::1]:1"\ncert = "c.pem"\nclient_ca = "/ca.pem"\nclient_cert = "optional"\n'
        '[access]\nclient_crls = ["a.crl", "/b.crl"]\n'
        '[history]\nwarehouse = "warehouse"\n' + OIDC + 'client_secret_file = "corp.secret"\n'
    )
    read = load(file)
    assert read.gateway.statedir == f"{tmp_path}/state"
    assert read.tokens.file == f"{tmp_path}/t.json"
    assert read.jwt.keys == tuple(map(SecretPlace, (f"{tmp_path}/k.pem", "https://id/jwks", "/abs.pem")))
    assert (read.listen[0].cert, read.listen[0].key) == (f"{tmp_path}/c.pem", None)
    assert read.listen[0].client_ca == "/ca.pem"
    assert read.history.warehouse == SecretPlace(f"{tmp_path}/warehouse")
    assert read.access.client_crls == (f"{tmp_path}/a.crl", "/b.crl")
    assert read.oidc[0].client_secret_file == f"{tmp_path}/corp.secret"


def test_a_file_that_cannot_be_read(tmp_path):
    with pytest.raises(ConfigError, match="expected a readable TOML file"):
        load(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("[gateway\n")
    with pytest.raises(ConfigError, match=r"bad.toml:1: not TOML"):
        load(tmp_path / "bad.toml")


# ---------------------------------------------------------------- --set


def test_settings_from_the_command_line():
    said = ["limits.ping_s=3", "gateway.upstream=local:///x", 'access.allowed_origins=["https://a"]']
    read = apply(GatewaySettings.defaults(), said)
    assert read.limits.ping_s == 3.0
    assert read.gateway.upstream == "local:///x"
    assert read.access.allowed_origins == ("https://a",)


@for_each(
    ("said", "expected"),
    [
        ("ping_s=3", "expected section.key=value"),
        ("limits.ping_s", "expected section.key=value"),
        ("users.name=x", "no section 'users', expected one of gateway"),
        ("limits.pingg_s=3", "did you mean ping_s?"),
        ("limits.zzz=3", "expected one of anonymous"),
        ("limits.ping_s=soon", "saw 'soon', expected float"),
        ("limits.ping_s=0", "saw 0, expected float >= 0.1"),
        ("limits.ping_s=2020-01-01", "saw datetime.date(2020, 1, 1), expected float"),
        ("limits.ping_s=nan", "saw nan, expected float >= 0.1"),
        ("limits.outbox_bytes=300000000", "expected at most budget_bytes"),
        ("access.login_links=root", 'expected one of "off", "user", "owner"'),
    ],
)
def test_assignments_that_are_refused(said, expected):
    with pytest.raises(ConfigError, match=re.escape(expected)):
        apply(GatewaySettings.defaults(), [said])


# ---------------------------------------------------------------- places


@for_each(
    ("url", "loopback"),
    [
        ("http://127.0.0.1:80", True),
        ("http://127.9.9.9:80", True),
        ("http://[::1]:80", True),
        ("http://localhost:80", True),
        ("unix:///run/x", True),
        ("https://0.0.0.0:443", False),
        ("https://[::]:443", False),
        ("http://localhost.evil.example:80", False),
    ],
)
def test_places_that_stay_on_this_machine(url, loopback):
    place = place_of(url)
    assert place.is_local is loopback
    assert place.text == url
    assert place_of(place.text) == place


# ---------------------------------------------------------------- the sample file


def test_sample_is_made_of_the_schema():
    """`headgate config sample gateway > deploy/gateway.toml` makes it."""
    made = list(settings_text.sample(GatewaySettings))
    heads = [line for line, following in pairwise(made) if following.startswith("#[")]
    assert not [line for line in heads if line.endswith(" Default")], "a section without its default"
    assert SAMPLE.read_text() == "\n".join(made).rstrip() + "\n"
    assert not [line for line in made if line.endswith("= null")], "a field without an example"


def test_sample_is_the_defaults():
    read = load(SAMPLE)
    assert (
        msgspec.structs.replace(read, gateway=GatewaySettings.defaults().gateway)
        == GatewaySettings.defaults()
    )


def test_sample_is_valid_with_its_comments_removed():
    live = re.sub(r"(?m)^#(?=\w+ = |\[\[)", "", SAMPLE.read_text())
    live = live.replace('preset = "viewer"\n', "")  # stands in place of kinds and prefixes
    read = loads(live)
    assert read.users[0].name == "ada"
    assert read.rules[0].prefixes == ("job-info.", "heartbeat.")
    assert read.listen[0].client_cert == "optional"
    assert read.oidc[0].groups[0].group == "operators"

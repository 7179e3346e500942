"""What those see who may not see values."""

from broker.nfp.inventory import redacted
from broker.nfp.inventory.mappings import HIDDEN
from tests.tables import for_each

SECRET = (
    "password", "db_password", "Passwd", "passphrase", "enable_secret", "token", "apiToken", "snmp_community",
    "api_key", "apikey", "privateKey", "ssh-key", "keys", "psk", "PIN", "auth", "salt", "credentials", "pass",
    "cookie", "snmp",
)  # fmt: skip
PLAIN = (
    "hostname",
    "passive",
    "keyboard",
    "monkey",
    "author",
    "pinned",
    "hashtag",
    "platform",
    "compass",
    "site",
)


@for_each("key", SECRET)
def test_keys_of_secrets(key: str) -> None:
    below = {"a": "x", "b": [1, {"c": None}]}
    assert redacted({key: "x"}, everything=False) == {key: HIDDEN}
    assert redacted({key: below}, everything=False) == {key: {"a": HIDDEN, "b": [HIDDEN, {"c": None}]}}


@for_each("key", PLAIN)
def test_keys_of_no_secrets(key: str) -> None:
    assert redacted({key: "x"}, everything=False) == {key: "x"}


def test_secrets_inside_of_values() -> None:
    armour = "-----BEGIN RSA PRIVATE KEY-----\nMIIE"
    data = ["http://user:word@host/path?a=b@c", "git+ssh://git@host/x", "mail@host", armour, 7, True]
    assert redacted(data, everything=False) == [
        "http://***@host/path?a=b@c",
        "git+ssh://***@host/x",
        "mail@host",
        HIDDEN,
        7,
        True,
    ]


def test_everything() -> None:
    data = {
        "hosts": {"a": {"port": 22, "up": True, "none": None, "text": "", "list": ["x", 1.5]}},
        "empty": {},
    }
    assert redacted(data, everything=True) == {
        "hosts": {"a": {"port": HIDDEN, "up": HIDDEN, "none": None, "text": "", "list": [HIDDEN, HIDDEN]}},
        "empty": {},
    }


def test_the_data_stays_as_it_is() -> None:
    data = {"password": "x", "list": [{"token": "y"}]}
    redacted(data, everything=True)
    assert data == {"password": "x", "list": [{"token": "y"}]}

"""Keys that change, and one file with a certificate for each rank."""

import pytest

from broker.errors import ConfigError
from broker.settings import load, loads
from tests.tables import for_each
from tests.unit.configuration import KEY, OTHER_KEY, host, refusal

CURVE = "[tree]\ncurve_cert = '{}'\n"
THIRD = "JTKVSB%%)wK0E.X)V>+}o?pNmC{O&4W4b!Ni{Lh6"


def two(first="", second=""):
    return host(0, f"public_key = '{KEY}'\n{first}") + host(1, f"public_key = '{OTHER_KEY}'\n{second}")


def said(text):
    return "; ".join(refusal(text))


@for_each(
    ("text", "expected"),
    [
        (two("next_key = 'short'"), "hosts[0].next_key: saw 'short', expected 40 characters of Z85"),
        (two(f"next_key = '{KEY}'"), "hosts[0].next_key: saw 'Yne@$w"),
        (two(f"next_key = '{OTHER_KEY}'"), "expected a key that no other host has"),
        (
            two(f"next_key = '{THIRD}'", f"next_key = '{THIRD}'"),
            "hosts[1].next_key: saw 'JTKVSB%%)wK0E.X)V>+}o?pNmC{O&4W4b!Ni{Lh6', expected a key that no other",
        ),
        (
            two(f"next_key = '{THIRD}'") + f"[[clients]]\nuserid = 1\npublic_key = '{THIRD}'",
            "expected a key of its own: this is the next key of a host",
        ),
    ],
)
def test_what_a_next_key_must_not_be(text, expected):
    assert expected in said(CURVE.format("/c") + text)


def test_a_next_key_alone_is_none():
    assert "saw it without public_key" in said(host(0, f"next_key = '{KEY}'"))


def test_ranks_that_share_a_key_may_share_the_next():
    shared = f"public_key = '{KEY}'\nnext_key = '{THIRD}'"
    settings = loads(CURVE.format("/c") + host(0, shared) + host(1, shared))
    assert {entry.next_key for entry in settings.hosts} == {THIRD}


def test_one_file_names_a_certificate_for_each_rank(tmp_path):
    file = tmp_path / "broker.toml"
    file.write_text(CURVE.format("keys/{hostname}-{rank}.cert") + two("hostname = 'node0'"))
    assert load(file).at_rank(0).tree.curve_cert == f"{tmp_path}/keys/node0-0.cert"
    assert load(file).at_rank(1, hostname="big.example").tree.curve_cert == f"{tmp_path}/keys/big-1.cert"


def test_a_name_without_fields_stays_as_it_is():
    settings = loads(CURVE.format("/{strange/c.cert") + two())
    assert settings.at_rank(1).tree.curve_cert == "/{strange/c.cert"


def test_a_field_nobody_fills_in_is_a_mistake():
    assert "saw '{node}', expected no field but {rank} and {hostname}" in said(
        CURVE.format("{node}.cert") + two()
    )


def test_a_host_name_is_no_path():
    settings = loads(CURVE.format("/{hostname}.cert") + two())
    for name in ("../etc", "etc/passwd"):
        with pytest.raises(ConfigError, match="no part of a file name"):
            settings.at_rank(0, hostname=name)
    assert loads(CURVE.format("/c.cert") + two()).at_rank(0, hostname="../etc").tree.curve_cert == "/c.cert"

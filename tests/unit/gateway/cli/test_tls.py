"""`headgate tls self-signed`."""

import json
import stat

from cryptography import x509
from cryptography.hazmat.primitives import hashes

from broker.cli import exits
from broker.cli.main import main
from gateway.settings.schema import ListenEntry
from gateway.tls import TlsContext
from tests.tables import for_each


def test_what_it_prints_belongs_into_the_configuration(tmp_path, capsys):
    import tomllib

    assert (
        main(["tls", "self-signed", str(tmp_path / "t"), "--host", "gate.example.org", "--days", "3"])
        == exits.OK
    )
    said = tomllib.loads(capsys.readouterr().out)
    context = TlsContext(ListenEntry(url="https://127.0.0.1:0", cert=said["cert"], key=said["key"]))
    with open(said["cert"], "rb") as file:
        made = x509.load_pem_x509_certificate(file.read())
    names = made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["gate.example.org", "localhost"]
    assert list(map(str, names.get_values_for_type(x509.IPAddress))) == ["127.0.0.1", "::1"]
    assert context.expires == made.not_valid_after_utc.timestamp()
    assert (made.not_valid_after_utc - made.not_valid_before_utc).days == 3
    assert stat.S_IMODE((tmp_path / "t" / "key.pem").stat().st_mode) == 0o600


def test_json_and_force(tmp_path, capsys):
    words = ["tls", "self-signed", str(tmp_path), "--json"]
    assert main(words) == exits.OK
    first = json.loads(capsys.readouterr().out)
    made = x509.load_pem_x509_certificate((tmp_path / "cert.pem").read_bytes())
    assert first["sha256"] == made.fingerprint(hashes.SHA256()).hex()
    assert main(words) == exits.CONFIG
    assert "--force" in capsys.readouterr().err
    assert main([*words, "--force"]) == exits.OK
    assert json.loads(capsys.readouterr().out)["sha256"] != first["sha256"]


@for_each(
    ("words", "code"),
    [(["--host", "a b"], exits.CONFIG), (["--days", "0"], exits.USAGE), (["--days", "x"], exits.USAGE)],
)
def test_wrong_words(tmp_path, words, code, capsys):
    assert main(["tls", "self-signed", str(tmp_path / "t"), *words]) == code
    assert not (tmp_path / "t").exists()

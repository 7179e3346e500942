import sys

import pytest

from broker.errors import ConfigError
from broker.transport import curve
from gateway.settings import load, loads
from gateway.settings.schema import GatewaySection
from gateway.upstream.upstream import keys_of
from tests.tables import for_each

TCP = "tcp://broker-0:8051"


@pytest.fixture
def pair(tmp_path):
    ours, theirs = curve.generate(), curve.generate()
    curve.save(ours, tmp_path / "gateway.cert")
    curve.save(theirs.public, tmp_path / "rank-0.pub")
    return ours, theirs


def test_no_keys_are_named():
    assert keys_of(GatewaySection(), TCP, {}) is None


def test_curve_is_for_zeromq_only(tmp_path):
    section = GatewaySection(upstream_cert="/nonexistent", upstream_key="/nonexistent")
    assert keys_of(section, "local:///run/headgate/local-0", {}) is None


@pytest.mark.parametrize("by_file", [True, False])
def test_keys_of_the_settings(tmp_path, pair, by_file):
    ours, theirs = pair
    key = str(tmp_path / "rank-0.pub") if by_file else theirs.public_key
    extra = keys_of(GatewaySection(upstream_cert=str(tmp_path / "gateway.cert"), upstream_key=key), TCP, {})
    assert extra()["curve"].server_key == theirs.public_key
    assert extra()["curve"].certificate.secret_key == ours.secret_key


def test_keys_of_the_environment_go_behind_those_of_the_settings(tmp_path, pair):
    _ours, theirs = pair
    environ = {"HEADGATE_CERT": str(tmp_path / "gateway.cert"), "HEADGATE_SERVER_KEY": theirs.public_key}
    assert keys_of(GatewaySection(), TCP, environ)()["curve"].server_key == theirs.public_key
    other = curve.generate()
    section = GatewaySection(upstream_cert=str(tmp_path / "gateway.cert"), upstream_key=other.public_key)
    assert keys_of(section, TCP, environ)()["curve"].server_key == other.public_key


@for_each("missing", ["HEADGATE_CERT", "HEADGATE_SERVER_KEY"])
def test_half_of_it_is_refused(missing):
    environ = {"HEADGATE_CERT": "x", "HEADGATE_SERVER_KEY": "y"}
    del environ[missing]
    with pytest.raises(ConfigError, match=missing):
        keys_of(GatewaySection(), TCP, environ)


def test_files_are_read_again_at_each_attempt(tmp_path, pair):
    section = GatewaySection(
        upstream_cert=str(tmp_path / "gateway.cert"), upstream_key=str(tmp_path / "rank-0.pub")
    )
    extra = keys_of(section, "ipc:///run/x", {})
    new = curve.generate()
    curve.save(new.public, tmp_path / "rank-0.pub", replace=True)
    assert extra()["curve"].server_key == new.public_key
    (tmp_path / "gateway.cert").unlink()
    with pytest.raises(ConfigError, match=r"gateway\.cert"):
        extra()


def test_settings_take_files_from_their_folder_and_keys_as_they_are(tmp_path, pair):
    _, theirs = pair
    file = tmp_path / "gateway.toml"
    file.write_text("[gateway]\nupstream_cert = 'gateway.cert'\nupstream_key = 'rank-0.pub'\n")
    section = load(file).gateway
    assert section.upstream_cert == str(tmp_path / "gateway.cert")
    assert section.upstream_key == str(tmp_path / "rank-0.pub")
    file.write_text(f"[gateway]\nupstream_cert = '/c'\nupstream_key = '{theirs.public_key}'\n")
    assert load(file).gateway.upstream_key == theirs.public_key


@for_each(("given", "other"), [("upstream_cert", "upstream_key"), ("upstream_key", "upstream_cert")])
def test_one_setting_needs_the_other(given, other):
    with pytest.raises(ConfigError, match=f"gateway.{other}: missing, expected it beside {given}"):
        loads(f"[gateway]\n{given} = 'x'\n")


def test_a_gateway_on_a_unix_socket_loads_no_zeromq_and_without_a_question_no_pyarrow():
    code = (
        "import sys; import gateway.serve, gateway.cli.gateway; from gateway.upstream.upstream import keys_of; "
        "from gateway.settings import GatewaySettings; "
        "keys_of(GatewaySettings.defaults().gateway, 'local:///x'); print(*{'zmq', 'pyarrow'} & {*sys.modules})"
    )
    import subprocess

    seen = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert seen.stdout == "\n"

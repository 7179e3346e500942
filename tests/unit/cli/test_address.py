"""With which keys a link is made, and what is said of a refusal that keys could have spared."""

import pytest

from broker.cli import address
from broker.errors import ConfigError, LinkBroken, LinkRefused
from broker.transport import curve
from broker.transport.link import Options
from tests.tables import for_each

PLAIN, LOCAL = "tcp://node0:8051", "local:///run/headgate/local-0"
REFUSED = LinkRefused("tcp://node0:8051: only one side speaks CURVE", 111)


@pytest.fixture
def environ(tmp_path):
    ours, theirs = curve.generate(), curve.generate()
    curve.save(ours, tmp_path / "our.cert")
    curve.save(theirs.public, tmp_path / "their.pub")
    return {address.CERT: f"{tmp_path}/our.cert", address.SERVER_KEY: theirs.public_key}


@pytest.mark.parametrize("uri", [PLAIN, "ipc:///run/x"])
@pytest.mark.parametrize("by_file", [False, True])
def test_keys_of_the_environment_are_shown_over_zeromq(tmp_path, environ, uri, by_file):
    key = environ[address.SERVER_KEY]
    given = environ | ({address.SERVER_KEY: f"{tmp_path}/their.pub"} if by_file else {})
    shown = address.link_options(uri, given).extra["curve"]
    assert (shown.certificate, shown.server_key) == (curve.load(tmp_path / "our.cert"), key)
    assert address.link_options(uri, {}).extra == {}


@pytest.mark.parametrize("uri", [LOCAL, "ws://127.0.0.1:8280"])
def test_where_no_curve_is_spoken_keys_are_not_looked_at(environ, uri):
    assert address.link_options(uri, environ).extra == {}
    assert address.link_options(uri, {address.CERT: "/nowhere"}).extra == {}


@pytest.mark.parametrize("missing", [address.CERT, address.SERVER_KEY])
def test_half_of_the_keys_is_refused(environ, missing):
    del environ[missing]
    with pytest.raises(ConfigError, match=f"^{missing} is not set"):
        address.link_options(PLAIN, environ)


def told(uri, error, options):
    with pytest.raises(type(error)) as caught, address.keys_explained(uri, options):
        raise error
    assert caught.value.errno == error.errno
    return str(caught.value)


@pytest.mark.parametrize("error", [REFUSED, ConfigError("tcp://192.0.2.1:1: plaintext off loopback")])
def test_a_refusal_without_keys_says_how_to_name_them(environ, error):
    hint = f"{error}; no CURVE keys are named, see HEADGATE_CERT and HEADGATE_SERVER_KEY"
    assert told(PLAIN, error, Options()) == hint
    assert told(LOCAL, error, Options()) == str(error)
    assert told(PLAIN, error, address.link_options(PLAIN, environ)) == str(error)


@for_each("error", [LinkBroken("nobody answers"), ConfigError("/c: no certificate")])
def test_what_has_nothing_to_do_with_keys_is_left_as_it_is(error):
    assert told(PLAIN, error, Options()) == str(error)

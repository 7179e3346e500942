"""Whom a client believes: folders that somebody else may have made, directories in plaintext."""

import pytest

from broker.oslo.client.links import TrustedFolder
from broker.oslo.contract import Address, CallTimeout, Refused
from broker.oslo.directory import peer
from broker.oslo.names import Reason
from broker.transport import curve
from tests.live.oslo_raw import PATIENCE_S, Node, until
from tests.unit.oslo.client.nodes import DIRECTORY_ONLY, door_of, whole_node

WHERE = Address("x", "t")


def test_nothing_is_sent_there(node, folder, open_session):
    folder.chmod(0o777)
    port = open_session()
    for use in (
        lambda: port.call(WHERE, b"secret", timeout_s=PATIENCE_S),
        lambda: port.cast(WHERE, b"secret"),
        lambda: port.listen(Address("x", "t", "s")),
    ):
        with pytest.raises(Refused, match=r"cannot be trusted: .*saw mode 0777") as raised:
            use()
        assert raised.value.reason is Reason.DENIED
    assert node.status("call")["listeners"] == node.status("call")["links"] == 0
    assert port.status() == {}


def test_where_there_are_directories_the_folder_is_left_alone(
    node, folder, open_session, run_node, rundir, caplog
):
    folder.chmod(0o777)
    port = open_session(directories=(door_of(node),))
    with pytest.raises(CallTimeout):
        port.call(WHERE, b"", timeout_s=0.05)
    until(lambda: port._client.routes.synced, "a directory that has told all")
    with pytest.raises(CallTimeout, match="nobody listens there"):
        port.call(WHERE, b"", timeout_s=0.3)
    assert [each["endpoint"] for each in port.status()["directory"]["links"]] == [door_of(node)]
    port.close()
    assert caplog.text.count("the proxy of this node is not spoken to") == 1


def test_a_folder_that_is_not_there_yet_is_waited_for(rundir):
    """Below one where everybody may make it, libzmq must not take what comes."""
    folder = TrustedFolder(str(rundir / "later"), lambda *_: None)
    assert folder.usable()
    rundir.chmod(0o1777)
    assert not folder.usable()
    (rundir / "later").mkdir(mode=0o700)
    assert folder.usable()


@pytest.fixture
def certificate(tmp_path):
    path = tmp_path / "node.cert"
    curve.save(curve.generate(), path)
    return str(path)


def test_with_a_certificate_no_directory_is_asked_in_plaintext(node, rundir, open_session, certificate):
    port = open_session(folder=rundir / "none", directories=(door_of(node),), curve_cert=certificate)
    with pytest.raises(CallTimeout, match="not known whether anybody listens"):
        port.call(WHERE, b"", timeout_s=0.2)
    assert not port._client.routes.synced


@pytest.mark.patient
def test_a_shared_certificate_that_is_replaced_is_read_again_when_the_directory_is_silent(
    folder, rundir, open_session, monkeypatch
):
    """A process without a proxy on its node: its links to directories are made with the certificate as it is then."""
    monkeypatch.setattr(peer, "RENEW_S", 0.1)
    path = rundir / "shared.cert"

    def node(**changes):
        curve.save(curve.generate(), path, replace=True)
        return Node(
            whole_node(folder, **{"curve_cert": str(path), "run": DIRECTORY_ONLY, "lease_s": 1.0, **changes})
        )

    with node() as first:
        door = door_of(first)
        port = open_session(folder=rundir / "none", directories=(door,), curve_cert=str(path))
        port.notify("x", "n.info", b"to nobody, to begin with")
        until(lambda: port._client.routes.synced, "a directory that has told all")
    with node(directory_port=int(door.rpartition(":")[2]), lease_s=1.0):
        links = port._client.routes.status
        until(lambda: links()["links"][0]["lost"], "its silence")
        until(lambda: links()["links"][0]["alive"], "its return")


def test_the_key_of_the_directory_is_that_of_the_shared_certificate(
    run_node, rundir, open_session, certificate
):
    node = run_node(curve_cert=certificate)
    port = open_session(folder=rundir / "none", directories=(door_of(node),), curve_cert=certificate)
    with pytest.raises(CallTimeout, match="nobody listens there"):
        port.call(WHERE, b"", timeout_s=1.0)
    assert port._client.routes.synced

"""Further listeners of a broker under test: CURVE keys, a dialect, a port that was free."""

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from broker.transport import curve
from broker.transport.curve import Certificate, CurveClient
from broker.transport.link import Options
from tests.live.brokers import BrokerProcess, Tree, eventually, joined, one_broker, tree_config


class Place(NamedTuple):
    """A running broker, the address of its further listener, and the key of the one client that may come there."""

    broker: BrokerProcess
    uri: str
    server_key: str
    client: Certificate

    def options(self, **spoken: object) -> Options:
        """What a dialer needs to come in; ``spoken``: its dialect."""
        return Options(extra={"curve": CurveClient(self.client, self.server_key)}, **spoken)  # type: ignore[arg-type]


def listen_table(client: Certificate, spoken: str, userid: int, roles: str = "owner") -> str:
    return (
        f'[[listen]]\nuri = "tcp://127.0.0.1:*"\n{spoken}\n'
        f'[[clients]]\npublic_key = "{client.public_key}"\nuserid = {userid}\nroles = ["{roles}"]\n'
    )


def place(broker: BrokerProcess, server_key: str, client: Certificate) -> Place:
    """The listener of ``broker``, whose port stands in its log."""
    said = f"rank {broker.rank} listens at (tcp://.*)"
    uris = re.findall(said, "\n".join(broker.lines()))
    assert len(uris) == 1, broker.lines()
    return Place(broker, uris[0], server_key, client)


@contextlib.contextmanager
def one_place(rundir: Path, spoken: str, userid: int = 1000, roles: str = "owner") -> Iterator[Place]:
    """A tree of one with a listener; ``spoken``: further lines of its ``[[listen]]``."""
    server, client = curve.generate(), curve.generate()
    curve.save(server, rundir / "broker.cert")
    extra = '[tree]\ncurve_cert = "broker.cert"\ntorpid_min_s = 0.1\n'
    with one_broker(rundir, extra + listen_table(client, spoken, userid, roles)) as broker:
        yield place(broker, server.public_key, client)


@contextlib.contextmanager
def tree_of_places(rundir: Path, size: int, spoken: str, userid: int = 1000) -> Iterator[list[Place]]:
    """A tree over ipc whose ranks have a listener each."""
    client = curve.generate()
    addresses = [f"ipc://{rundir}/tree-{rank}" for rank in range(size)]
    config = tree_config(rundir, addresses, listen_table(client, spoken, userid), secret=True)
    key = curve.load(rundir / "broker.cert").public_key
    with joined(Tree(rundir, config, [()] * size)) as running:
        yield [place(broker, key, client) for broker in running.ranks]


def logged(broker: BrokerProcess, text: str) -> None:
    """Wait until the broker's log has ``text``."""
    eventually(lambda: any(text in line for line in broker.lines()))

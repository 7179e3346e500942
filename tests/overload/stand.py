"""A tree of four with a listener for keys and, where a load needs it, a gateway; what they hold is counted outside."""

import contextlib
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from broker.transport import curve
from tests.live.brokers import Tree, joined, tree_config
from tests.live.gateways import GatewayProcess, gateway_process
from tests.live.listeners import place as listener_of
from tests.live.nfp import NfpProcess, nfp_process
from tests.live.oslo import Proxy, nodes
from tests.overload.ground import Place

SIZE = 4
FAR = 3
"""The rank two hops below rank 0."""
GUEST_UID, CURVE_UID, VICTIM_UID = 65533, 2001, 4711
OTHER_RANKS_LOST = (
    "lost connection to rank",
    "lost the parent",
    "is disconnected:",
    "lost events",
    "handling",
)
"""What a rank says when a link of the tree ends, an event is lost, or a message makes it stumble."""


class Stand:
    """Running brokers. Each of ``gateway``, ``nfp`` and ``oslo`` is None where there is none."""

    def __init__(
        self,
        tree: Tree,
        place: Place,
        gateway: GatewayProcess | None,
        nfp: NfpProcess | None,
        oslo: Proxy | None,
    ) -> None:
        self.tree, self.place, self.gateway, self.nfp, self.oslo = tree, place, gateway, nfp, oslo

    @property
    def pids(self) -> dict[str, int]:
        """Process -> pid."""
        found = {f"rank {broker.rank}": broker.pid for broker in self.tree.ranks}
        if self.gateway is not None:
            found["gateway"] = self.gateway.process.pid
        found |= {"nfp": self.nfp.pid} if self.nfp else {}
        found |= {"oslo": self.oslo.pid} if self.oslo else {}
        return found

    def rss_mib(self) -> dict[str, float]:
        return {name: _rss_kib(pid) / 1024 for name, pid in self.pids.items()}

    def fds(self) -> dict[str, int]:
        return {name: len(os.listdir(f"/proc/{pid}/fd")) for name, pid in self.pids.items()}

    def mark(self) -> list[int]:
        """Where the logs end now, for ``complaints``."""
        return [broker.log.stat().st_size for broker in self.tree.ranks]

    def complaints(self, mark: list[int]) -> list[str]:
        """What the ranks have said since that is about each other."""
        found = []
        for said in self._said(mark):
            told = [line.partition(" ")[2] for line in said if any(word in line for word in OTHER_RANKS_LOST)]
            found += [f"{count} times {line}" for line, count in Counter(told).items()]
        return found

    def _said(self, mark: list[int]) -> list[list[str]]:
        return [
            broker.log.read_bytes()[begin:].decode(errors="replace").splitlines()
            for broker, begin in zip(self.tree.ranks, mark, strict=True)
        ]


def _rss_kib(pid: int) -> int:
    with open(f"/proc/{pid}/status") as status:
        return int(next(line for line in status if line.startswith("VmRSS:")).split()[1])


@contextlib.contextmanager
def open_stand(rundir: Path, beside: str = "") -> Iterator[Stand]:
    """All of it, running; ``beside``: with a gateway ("web"), a broker of NFP or a node of oslo.messaging."""
    key = curve.generate()
    tables = (
        '[access]\nallow_guest_user = true\n[[listen]]\nuri = "tcp://127.0.0.1:*"\n'
        f'[[clients]]\npublic_key = "{key.public_key}"\nuserid = {CURVE_UID}\nroles = ["user"]\n'
    )
    addresses = [f"ipc://{rundir}/tree-{rank}" for rank in range(SIZE)]
    config = tree_config(rundir, addresses, tables, secret=True)
    server_key = curve.load(rundir / "broker.cert").public_key
    rundir.chmod(0o711)
    with contextlib.ExitStack() as stack:
        tree = stack.enter_context(joined(Tree(rundir, config, [()] * SIZE)))
        gateway = stack.enter_context(gateway_process(rundir, tree.ranks[0].uri)) if beside == "web" else None
        nfp = stack.enter_context(nfp_process(rundir, curve=False, store=False)) if beside == "nfp" else None
        oslo = stack.enter_context(nodes(rundir, 1))[0] if beside == "oslo" else None
        yield Stand(
            tree,
            Place(
                uris=[broker.uri for broker in tree.ranks],
                uid=GUEST_UID,
                curve_uri=listener_of(tree.ranks[0], server_key, key).uri,
                server_key=server_key,
                public_key=key.public_key,
                secret_key=key.secret_key or "",
                http=gateway.urls[0] if gateway else "",
                token=gateway.tokens["bob"] if gateway else "",
                nfp=nfp.endpoint if nfp else "",
                oslo=str(oslo.folder) if oslo else "",
            ),
            gateway,
            nfp,
            oslo,
        )

"""An instance with every way in, for attacks: two ranks, a gateway, NFP and oslo.messaging, and users of every role."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from broker.identity import Role
from broker.transport import curve
from tests.live.attached import attached
from tests.live.brokers import Tree, joined, tree_config
from tests.live.doors import BinaryDoor, CurveDoor, Door, HttpDoor, JsonDoor, UnixDoor
from tests.live.gateways import USERS, GatewayProcess, gateway_process
from tests.live.listeners import place
from tests.live.oslo_nodes import oslo_node

OWNER, USER, ADMIN, LOCAL = (int(role) for role in (Role.OWNER, Role.USER, Role.ADMIN, Role.LOCAL))
GUEST_UID, ADMIN_UID = 65533, 4711
CURVE_USERS = {"owner": (1000, OWNER), "user": (2001, USER), "admin": (2002, USER | ADMIN)}
WEB_USERS = {"owner": ("ada", OWNER), "user": ("bob", USER), "admin": ("eve", USER | ADMIN)}
WAYS = ["unix", "unix-below", "curve", "curve-below", "flux.v1", "flux.v1.json", "http"]
"""``-below``: attached to rank 1, and rank 0 is asked, so that the stamp has passed the tree."""
BY_GATEWAY = frozenset(("flux.v1", "flux.v1.json", "http"))
ROLES = ["owner", "user", "admin"]


class Stage(NamedTuple):
    """Two ranks, a gateway, NFP and oslo.messaging."""

    tree: Tree
    keys: dict[str, curve.Certificate]
    server_key: str
    gateway: GatewayProcess

    def door(self, way: str, role: str) -> Door:
        """The way in as a user of this role."""
        if way.startswith("unix"):
            return self._unix(way, role)
        if way.startswith("curve"):
            broker = self.tree.ranks[way.endswith("below")]
            key = self.keys[role]
            uri = place(broker, self.server_key, key).uri
            return CurveDoor(way, CURVE_USERS[role][1], uri, self.server_key, key, nodeid=0)
        user, roles = WEB_USERS[role]
        headers = self.gateway.bearer(user)
        if way == "http":
            return HttpDoor(way, roles, self.gateway.urls[0], headers, nodeid=0)
        kind = BinaryDoor if way == "flux.v1" else JsonDoor
        return kind(way, roles, self.gateway.ws, headers, nodeid=0)

    def _unix(self, way: str, role: str) -> Door:
        uid, roles = {"owner": (None, OWNER), "user": (GUEST_UID, USER), "admin": (ADMIN_UID, USER | ADMIN)}[
            role
        ]
        return UnixDoor(way, roles | LOCAL, self.tree.ranks[way.endswith("below")].uri, uid, nodeid=0)


@contextlib.contextmanager
def open_stage() -> Iterator[Stage]:
    """The stage, running; nothing of it is left behind."""
    rundir = Path(tempfile.mkdtemp(prefix="hg-", dir="/tmp"))
    rundir.chmod(0o711)
    keys = {role: curve.generate() for role in ROLES}
    tables = (
        f"[access]\nallow_guest_user = true\nadmin_users = [{ADMIN_UID}]\n"
        '[[listen]]\nuri = "tcp://127.0.0.1:*"\n'
    )
    for role, (userid, _) in CURVE_USERS.items():
        tables += (
            f'[[clients]]\npublic_key = "{keys[role].public_key}"\nuserid = {userid}\nroles = ["{role}"]\n'
        )
    try:
        config = tree_config(
            rundir, [f"ipc://{rundir}/tree-{rank}" for rank in range(2)], tables, secret=True
        )
        server_key = curve.load(rundir / "broker.cert").public_key
        with contextlib.ExitStack() as stack:
            tree = stack.enter_context(joined(Tree(rundir, config, [()] * 2)))
            uri = tree.ranks[0].uri
            stack.enter_context(attached(rundir, uri))
            stack.enter_context(oslo_node(rundir, "--uri", uri, "--node", "n7"))
            gateway = stack.enter_context(gateway_process(rundir, uri, users=USERS))
            yield Stage(tree, keys, server_key, gateway)
    finally:
        shutil.rmtree(rundir, ignore_errors=True)


def tried(roles: Sequence[str], ways: Sequence[str] = WAYS) -> list[tuple[str, str]]:
    """Ways and roles that this user can take: only root can be somebody else at a UNIX socket."""
    mine = os.getuid() == 0
    return [
        (way, role) for role in roles for way in ways if mine or role == "owner" or not way.startswith("unix")
    ]


def userid_of(way: str, role: str) -> int:
    """Who a guest is by this way in."""
    if way.startswith("curve"):
        return CURVE_USERS[role][0]
    web, local = {"user": (1002, GUEST_UID), "admin": (1003, ADMIN_UID)}[role]
    return web if way in BY_GATEWAY else local

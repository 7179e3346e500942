"""Keys, certificates and configuration files of a world; they can be changed while it runs."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Final

from broker.transport import curve
from broker.transport.curve import Certificate
from gateway.identity.tokens import TokenFile
from gateway.selfsigned import make
from tests.netlab import NetLab
from tests.proof.layout import GATEWAYS, HOSTS, PARENTS, RANKS, Party

TREE_PORT: Final = 8050
CLIENT_PORT: Final = 8051
WEB_PORT: Final = 8443
BALANCER_PORT: Final = 8444
NFP_PORT: Final = 5555
REDIS_PORT: Final = 6379
JOURNAL: Final = "rotate_bytes = 262144\nkeep_bytes = 1048576\n"

BROKER: Final = """
[broker]
rundir = "{place}/run"
heartbeat_period_s = 0.5
[tree]
size = {size}
curve_cert = "rank-{{rank}}.cert"
torpid_min_s = 0.5
torpid_max_s = 2.0
connect_timeout_s = 5.0
[access]
allow_guest_user = true
[journal]
{journal}
"""
GATEWAY: Final = """
[gateway]
upstream = "local://{place}/run/local-{rank}"
statedir = "{place}/{name}"
drain_s = 0.5
rejoin_max_s = 1.0
metrics_listen = "unix://{place}/{name}.sock"
[[listen]]
url = "https://{ip}:{port}"
cert = "gate.pem"
[access]
allow_owner = true
[[rules]]
roles = ["user"]
prefixes = [""]
[[rules]]
roles = ["user"]
prefixes = ["secret."]
allow = false
"""
NFP: Final = """
[nfp]
endpoint = "tcp://{ip}:{port}"
base_dir = "{place}/nfp"
key_secret = "nfp.cert"
keepalive_ms = 500
multiplier = 4
grace_s = 1.0
"""
ROLES: Final = {1: "owner", 2: "user"}


def store(text: str | bytes, file: Path, mode: int = 0o600) -> None:
    """Replace a file in one step: whoever reads it sees the old or the new one."""
    fresh = file.with_name(file.name + ".new")
    fresh.write_bytes(text if isinstance(text, bytes) else text.encode())
    fresh.chmod(mode)
    os.replace(fresh, file)


class Papers:
    """All files of a world, in ``place``.

    Attributes:
        broker_file, nfp_file, gateway_files: configurations. gate: certificate that clients of the gateway trust.
        ranks: certificate of each rank. tokens: of web users, by party.
    """

    def __init__(self, place: Path, lab: NetLab, parties: tuple[Party, ...]) -> None:
        self.place = place
        self._lab = lab
        self._parties = parties
        self.broker_file = place / "broker.toml"
        self.gateway_files = {name: place / f"{name}.toml" for name in GATEWAYS}
        self.nfp_file, self.gate = place / "nfp.toml", place / "gate.crt"
        self.oslo_cert = place / "oslo.cert"
        self.ranks = [self.certificate(rank) for rank in RANKS]
        self.next: dict[int, Certificate] = {}
        self.nfp = curve.generate({"name": "nfp"})
        self.clients = {party.name: curve.generate() for party in parties if party.by == "curve"}
        self.tokens: dict[str, str] = {}

    @staticmethod
    def certificate(rank: int) -> Certificate:
        """A new key pair of a rank."""
        return curve.generate({"name": f"rank {rank}"})

    def ip(self, member: str) -> str:
        """Address of the host of a member beside the brokers."""
        return str(self._lab.ip(HOSTS[member]))

    def write(self) -> None:
        """Everything, for the first time."""
        for rank in RANKS:
            self.write_certificate(rank, self.ranks[rank])
        for name, certificate in self.clients.items():
            curve.save(certificate, self.place / f"{name}.cert")
        curve.save(self.nfp, self.place / "nfp.cert")
        curve.save(curve.generate({"name": "oslo"}), self.oslo_cert)
        self.write_brokers()
        self.renew_gate()
        self._write_gateways()
        text = NFP.format(place=self.place, ip=self.ip("nfp"), port=NFP_PORT)
        store(text, self.nfp_file)

    # -- brokers ---------------------------------------------------------------------------------

    def write_certificate(self, rank: int, certificate: Certificate) -> None:
        """The certificate that a rank loads when it begins, or is told to read again."""
        file = self.place / f"rank-{rank}.cert"
        fresh = self.place / f"rank-{rank}.new"
        curve.save(certificate, fresh)
        os.replace(fresh, file)

    def show_next(self, rank: int) -> None:
        """From now on the rank shows its next key."""
        self.write_certificate(rank, self.next[rank])

    def forget_former(self, rank: int) -> None:
        """Its next key is its only one."""
        self.ranks[rank] = self.next.pop(rank)

    def write_brokers(self) -> None:
        """The file that all ranks read."""
        text = BROKER.format(place=self.place, size=len(PARENTS), journal=JOURNAL)
        for rank in RANKS:
            address = f"tcp://{self._lab.ip(rank)}:{TREE_PORT}"
            text += f'[[hosts]]\nrank = {rank}\nhostname = "n{rank}"\naddress = "{address}"\n'
            text += f'public_key = "{self.ranks[rank].public_key}"\n'
            if rank in self.next:
                text += f'next_key = "{self.next[rank].public_key}"\n'
        text += f'[[listen]]\nuri = "tcp://*:{CLIENT_PORT}"\n'
        for party in self._parties:
            if party.by == "curve":
                roles = [name for bit, name in ROLES.items() if party.roles & bit]
                key = self.clients[party.name].public_key
                text += f'[[clients]]\npublic_key = "{key}"\nuserid = {party.userid}\nroles = {roles}\n'
        store(text, self.broker_file)

    # -- the gateway ------------------------------------------------------------------------------

    def renew_gate(self) -> None:
        """A new certificate of the gateways, for themselves and for their clients."""
        made = make([self.ip(name) for name in GATEWAYS], now=time.time())
        store(made.certificate, self.gate, 0o644)
        store(made.certificate + made.key, self.place / "gate.pem")

    def _write_gateways(self) -> None:
        """Both take the same tokens, and share nothing else."""
        first, *others = (self.place / name for name in GATEWAYS)
        users = self._users(first)
        for state in others:
            state.mkdir(mode=0o700)
            store((first / "tokens.json").read_bytes(), state / "tokens.json")
        for name, file in self.gateway_files.items():
            places = {"place": self.place, "name": name, "rank": HOSTS[name], "ip": self.ip(name)}
            store(GATEWAY.format(port=WEB_PORT, **places) + users, file)

    def _users(self, state: Path) -> str:
        """The users' part of the configuration; their tokens go into ``state``."""
        text = ""
        state.mkdir(mode=0o700)
        file = TokenFile(state / "tokens.json")
        for party in self._parties:
            if party.at in ("gateway", "gateways"):
                roles = [name for bit, name in ROLES.items() if party.roles & bit]
                text += f'[[users]]\nname = "{party.name}"\nuserid = {party.userid}\nroles = {roles}\n'
                self.tokens[party.name] = file.add(party.name, now=0.0)[1]
        return text

    def remove(self) -> None:
        """All of it."""
        shutil.rmtree(self.place, ignore_errors=True)

"""The files of a small tree with CURVE: one ``broker.toml`` for all ranks, a certificate each; keys may be rotated."""

from __future__ import annotations

from pathlib import Path

from broker.settings import Settings, load
from broker.transport import curve


class Site:
    """``size`` ranks at ``address``, in which ``%d`` is the rank.

    Attributes:
        shown: the certificate of each rank, as its file has it. listed, following: its ``public_key``, ``next_key``.
        clients: public key -> the rest of its entry.
        sections: text for sections of the file.
    """

    def __init__(self, folder: Path, size: int, address: str = "") -> None:
        self.folder = folder
        self.file = folder / "broker.toml"
        self.addresses = [address % rank for rank in range(size)] if address else self._paths(size)
        self.shown = [curve.generate({"name": f"rank {rank}"}) for rank in range(size)]
        self.listed = [certificate.public_key for certificate in self.shown]
        self.following: list[str | None] = [None] * size
        self.clients: dict[str, str] = {}
        self.sections: dict[str, str] = {"broker": f'rundir = "{folder}"\n', "tree": ""}
        self.listen = ""
        for rank in range(size):
            self.show(rank, self.shown[rank])
        self.write()

    def _paths(self, size: int) -> list[str]:
        return [f"ipc://{self.folder}/tree-{rank}" for rank in range(size)]

    def write(self) -> None:
        """Put down what the attributes say."""
        tree = f'curve_cert = "rank-{{rank}}.cert"\nsize = {len(self.shown)}\n{self.sections["tree"]}'
        text = "".join(f"[{name}]\n{keys}" for name, keys in {**self.sections, "tree": tree}.items())
        for rank, (address, key) in enumerate(zip(self.addresses, self.listed, strict=True)):
            text += f'[[hosts]]\nrank = {rank}\naddress = "{address}"\npublic_key = "{key}"\n'
            if self.following[rank]:
                text += f'next_key = "{self.following[rank]}"\n'
        for key, entry in self.clients.items():
            text += f'[[clients]]\npublic_key = "{key}"\n{entry}'
        self.file.write_text(text + self.listen)

    def show(self, rank: int, certificate: curve.Certificate) -> None:
        """From its next reading on ``rank`` has this certificate."""
        self.shown[rank] = certificate
        curve.save(certificate, self.folder / f"rank-{rank}.cert", replace=True)

    def read(self, rank: int) -> Settings:
        return load(self.file).at_rank(rank)

    def announce(self, *ranks: int) -> dict[int, curve.Certificate]:
        """First step of a rotation: the keys to come stand in the file. Returns the new certificates."""
        made = {rank: curve.generate({"name": f"rank {rank}"}) for rank in ranks}
        for rank, certificate in made.items():
            self.following[rank] = certificate.public_key
        self.write()
        return made

    def settle(self) -> None:
        """Last step: every key to come is the key."""
        self.listed = [following or key for key, following in zip(self.listed, self.following, strict=True)]
        self.following = [None] * len(self.listed)
        self.write()

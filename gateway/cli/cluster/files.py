"""``headgate cluster init|compose``: the files of a cluster that runs elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Final

import typer

from broker.cli import options
from broker.cli.exits import OK
from broker.cli.screen import Screen
from gateway.cli.cluster.shared_options import DEFAULT, NAME, Bare, Fanout, Name, Nfp, Oslo, Size
from gateway.cluster import compose as compose_file
from gateway.cluster import files
from gateway.cluster.shape import Shape


def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where keys and settings go (mode 0700).")],
    size: Size = DEFAULT.size,
    fanout: Fanout = DEFAULT.fanout,
    host_pattern: Annotated[
        str,
        typer.Option(
            "--host-pattern", metavar="P", help="Host name of a rank; {rank} stands for its number."
        ),
    ] = DEFAULT.host_pattern,
    port: Annotated[
        int, typer.Option("--port", metavar="PORT", help="Where brokers listen for their children.")
    ] = DEFAULT.port,
    client_port: Annotated[
        int,
        typer.Option("--client-port", metavar="PORT", help="And for clients with CURVE keys; 0: not at all."),
    ] = DEFAULT.client_port,
    userid: Annotated[
        int | None,
        typer.Option(
            "--userid", metavar="UID", help="Of gateway and operator. Default: that of this process."
        ),
    ] = None,
    nfp: Nfp = False,
    oslo: Oslo = False,
    bare: Bare = False,
    renew: Annotated[bool, typer.Option("--renew", help="Replace every key and file that is there.")] = False,
    as_json: options.AsJson = False,
) -> int:
    """Write keys and settings of a cluster into a folder, for members that run elsewhere: containers, machines.

    What is there stays, so that it may run at every start; a larger --size adds ranks. All ranks read the same
    broker.toml; settings above the mark in it are yours. The bearer token of the user operator is printed once: the
    folder keeps its hash.
    """
    shape = Shape(NAME, size, fanout, port, client_port, not bare, nfp, oslo, host_pattern=host_pattern)
    written = files.write(shape, folder, renew=renew, userid=userid)
    value = {
        "folder": str(written.folder),
        "made": list(written.made),
        "kept": list(written.kept),
        "token": written.token or None,
        "keys": dict(written.keys),
    }
    screen = Screen(as_json)
    screen.record(value, f"{written.folder}: {len(written.made)} files made, {len(written.kept)} kept")
    if written.token and not as_json:
        screen.line(f"token of the operator, shown this once: {written.token}")
    return OK


def compose(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where compose.yaml goes.")],
    size: Size = DEFAULT.size,
    fanout: Fanout = DEFAULT.fanout,
    image: Annotated[str, typer.Option("--image", metavar="IMAGE", help="Of the members.")] = DEFAULT.image,
    nfp: Nfp = False,
    oslo: Oslo = False,
    bare: Bare = False,
    name: Name = NAME,
) -> int:
    """Write the compose file of a cluster, for Docker and Podman.

    Their own commands start it and cause faults in it; the file begins with the usual ones. It is written anew each
    time; with --nfp tasks for the workers are put beside it, unless they are there.
    """
    shape = Shape(name, size, fanout, gateway=not bare, nfp=nfp, oslo=oslo, image=image)
    screen = Screen()
    for path in compose_file.write(shape, folder):
        screen.line(str(path))
    return OK


VERBS: Final[dict[str, Callable[..., int]]] = {"init": init, "compose": compose}
"""Verb -> what does it."""

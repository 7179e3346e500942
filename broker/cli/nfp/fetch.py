"""``headgate nfp fetch``: a file from ``nf://``, with a progress bar."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from broker.cli import options
from broker.cli.exits import OK, UsageError
from broker.cli.nfp.session import NfpSession, with_session
from broker.cli.screen import progress_bar
from broker.nfp.client import FetchFailed, NfpClient
from broker.nfp.client.fetch import path_of
from broker.nfp.client.job import JOB_TIMEOUT_S

EXAMPLES = (
    "headgate nfp fetch nf://configs/core-1.txt          into this folder",
    "headgate nfp fetch nf://images/big.bin -o /tmp/",
    "headgate nfp fetch --list nf://configs",
    "headgate nfp fetch --details nf://images/big.bin    size and digest",
)


async def _list(client: NfpClient, session: NfpSession, url: str) -> int:
    for name in await client.list_files(url):
        session.screen.record({"name": name}, name)
    return OK


async def _details(client: NfpClient, session: NfpSession, url: str) -> int:
    found = await client.file_details(url)
    digest = f"sha256 {found.sha256}" if found.sha256 else f"md5 {found.md5}"
    value = {"url": url, "size_bytes": found.size_bytes, "md5": found.md5, "sha256": found.sha256 or None}
    session.screen.record(value, f"{url} {found.size_bytes} bytes {digest}")
    return OK


@with_session("fetch")
def fetch(
    session: NfpSession,
    url: Annotated[str, typer.Argument(metavar="nf://PATH")] = "nf://",
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", metavar="FILE|FOLDER", help="Where it goes. Default: this folder."),
    ] = None,
    listing: Annotated[bool, typer.Option("--list", "-l", help="Print the names in a folder.")] = False,
    details: Annotated[bool, typer.Option("--details", help="Print size and digest, fetch nothing.")] = False,
    timeout: Annotated[
        float, typer.Option("--timeout", min=0.1, metavar="SECONDS", help="Until then it must be here.")
    ] = JOB_TIMEOUT_S,
) -> int:
    """Fetch a file that the broker or one of its workers shares, and print where it is.

    A copy that is here and the same is not sent again; a transfer that was interrupted goes on where it stopped.
    """
    try:
        wanted = () if listing else path_of(url)
    except FetchFailed as error:
        raise UsageError(str(error)) from error

    async def work(client: NfpClient) -> int:
        if listing:
            return await _list(client, session, url)
        if details:
            return await _details(client, session, url)
        last = wanted[-1]
        with nullcontext() if session.screen.as_json else progress_bar(last) as progress:
            found = await client.fetch(url, output or Path.cwd() / last, progress=progress, timeout_s=timeout)
        value = {
            "path": str(found.path),
            "size_bytes": found.size_bytes,
            "digest": found.digest,
            "worker": found.worker,
            "cached": found.cached,
        }
        session.screen.record(value, f"{found.path}{' (was here)' if found.cached else ''}")
        return OK

    return session.run(work, timeout)


def main(argv: list[str]) -> int:
    """Entry point of the verb."""
    return options.run("nfp fetch", fetch, EXAMPLES, argv)

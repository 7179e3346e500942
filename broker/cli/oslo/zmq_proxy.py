"""``oslo-messaging-zmq-proxy``: the command of the zmq driver of 2015 to 2018, for ``headgate oslo proxy``.

What it was told is translated, option by option, and the words that it becomes are printed; options of ``headgate oslo
proxy`` may stand beside the old ones. Its file is an oslo.config one (or a TOML one of ours, by its name): the group
``zmq_proxy_opts``, and of ``oslo_messaging_zmq``, ``matchmaker_redis`` and ``DEFAULT`` what concerns a proxy.
"""

from __future__ import annotations

import argparse
import configparser
import os
import shlex
from collections.abc import Callable, Iterator, Mapping
from typing import Final
from urllib.parse import urlsplit

from broker.cli import main as command
from broker.cli.exits import CONFIG
from broker.cli.parsing import Parser
from broker.errors import ConfigError, print_error

Lookup = Callable[[str, str], str]
"""(group, option) -> its value in the file; "" it is not there."""

_EPILOG: Final = """\
The rest of the words are options of `headgate oslo proxy`, which this command runs: see its --help.
A port that leaves this machine needs --curve-cert FILE (headgate keygen), or --insecure.
"""
_UNUSED: Final = {
    "backend_port": "servers of this node use sockets in a folder, not a port",
    "local_publisher": "every proxy serves the fan-outs of its own node",
    "ack_pub_sub": "publishers see the subscriptions of each node before they publish",
}


def arguments() -> Parser:
    """The options that there were."""
    parser = Parser(
        "",
        "Run this node's proxy, as `headgate oslo proxy` does.",
        _EPILOG,
        program="oslo-messaging-zmq-proxy",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add(
        "-c",
        "--config-file",
        metavar="FILE",
        help="An oslo.config file; or a TOML file with a section [oslo].",
    )
    add("-l", "--log-file", metavar="FILE", help="Append what is logged to this file.")
    add("-H", "--host", metavar="H", help="Address of the ports, and what other nodes dial.")
    add("-f", "--frontend-port", type=int, metavar="P", help="TCP port of calls.")
    add("-p", "--publisher-port", type=int, metavar="P", help="TCP port of fan-outs.")
    add("-u", "--url", metavar="URL", help="The Redis that shares the directory, zmq+redis://HOST:PORT.")
    add("-b", "--backend-port", type=int, metavar="P", help="Not used.")
    add("-lp", "--local-publisher", action="store_true", help="Not used.")
    add("-a", "--ack-pub-sub", action="store_true", help="Not used.")
    add("-d", "--debug", action="store_true", help="Not used: `headgate oslo status` shows what passes.")
    return parser


def translated(given: argparse.Namespace) -> list[str]:
    """Options of ``headgate oslo proxy`` for what the old ones and their file say.

    Raises:
        ConfigError: the file cannot be read, or a URL of Redis lacks the name of the service that sentinels watch.
    """
    ours = bool(given.config_file) and given.config_file.endswith(".toml")
    words = ["--config", given.config_file] if ours else []
    look = _lookup("" if ours else given.config_file)
    told = {
        "--host": given.host
        or look("zmq_proxy_opts", "host")
        or look("oslo_messaging_zmq", "rpc_zmq_bind_address"),
        "--node": look("oslo_messaging_zmq", "rpc_zmq_host"),
        "--ipc-dir": look("oslo_messaging_zmq", "rpc_zmq_ipc_dir"),
        "--call-port": _port(given.frontend_port, look("zmq_proxy_opts", "frontend_port")),
        "--fanout-port": _port(given.publisher_port, look("zmq_proxy_opts", "publisher_port")),
    }
    words += [word for option, value in told.items() if value for word in (option, value)]
    for url in _redis(given.url or look("zmq_proxy_opts", "url") or look("DEFAULT", "transport_url"), look):
        words += ["--redis", url]
    return words


def _lookup(path: str | None) -> Lookup:
    if not path:
        return lambda _group, _option: ""
    parser = configparser.ConfigParser(
        interpolation=None, strict=False, default_section="", allow_no_value=True
    )
    try:
        with open(path, encoding="utf-8") as file:
            parser.read_file(file)
    except (OSError, UnicodeDecodeError, configparser.Error) as error:
        raise ConfigError(f"--config-file {path}: {error}") from None
    return lambda group, option: (parser.get(group, option, fallback="") or "").strip().strip("\"'")


def _port(given: int | None, configured: str) -> str:
    """0 meant a random port: ours is fixed then."""
    port = str(given) if given is not None else configured
    return "" if port == "0" else port


def _redis(url: str, look: Lookup) -> Iterator[str]:
    """URLs of Redis for a transport URL of then, or for the group that stood in for one."""
    parts = urlsplit(url)
    service = look("matchmaker_redis", "sentinel_group_name") or "oslo-messaging-zeromq"
    sentinels = look("matchmaker_redis", "sentinel_hosts")
    if parts.scheme == "zmq+sentinel" and parts.netloc:
        yield f"sentinel://{parts.netloc}/{service}"
    elif parts.scheme in ("zmq+redis", "zmq") and parts.netloc:
        login, at, hosts = parts.netloc.rpartition("@")
        yield from (f"redis://{login}{at}{host.rpartition('@')[2]}" for host in hosts.split(","))
    elif sentinels:
        yield f"sentinel://{sentinels.replace(' ', '')}/{service}"
    elif look("matchmaker_redis", "host"):
        password = look("matchmaker_redis", "password")
        login = f":{password}@" if password else ""
        yield f"redis://{login}{look('matchmaker_redis', 'host')}:{look('matchmaker_redis', 'port') or 6379}"


def _say_unused(given: argparse.Namespace) -> None:
    unused: Mapping[str, str] = {name: why for name, why in _UNUSED.items() if getattr(given, name)}
    for name, why in unused.items():
        print_error(f"oslo-messaging-zmq-proxy: --{name.replace('_', '-')} changes nothing: {why}")


def main() -> int:
    """Entry point of the command."""
    given, ours = arguments().parse_known_args()
    try:
        words = ["oslo", "proxy", *translated(given), *ours]
        if given.log_file:
            log = os.open(given.log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o640)
            os.dup2(log, 2)
    except (ConfigError, OSError) as error:
        print_error(f"oslo-messaging-zmq-proxy: {error}")
        return CONFIG
    _say_unused(given)
    shown = [
        "..." if before == "--redis" else word for before, word in zip(["", *words], words, strict=False)
    ]
    print_error(f"oslo-messaging-zmq-proxy: headgate {shlex.join(shown)}")
    return command.main(words)

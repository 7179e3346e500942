"""``headgate oslo VERB ...``: the pipelines of oslo.messaging on the command line; a file a verb, each ``main(argv)``.

    proxy      run this node's proxy: its pipelines and its directory
    status     what the rooms of this node count, which nodes the directory knows
    bridge     be reachable on a Flux broker: topics as a service, notifications as events
    call       call a method of an rpc-server and print its result
    cast       have one server of a topic do something
    fanout     have every server of a topic do something
    notify     send a notification
    listen     print notifications as they come

A verb's file is loaded when it is called: ``proxy`` and ``bridge`` load neither typer nor rich. What several verbs
share stands beside them: ``shared_options`` has options and signals, ``plan`` makes of settings what each process is
told, ``children`` are these processes, ``room`` is what such a
process does, ``metrics`` serves its figures, ``embedded`` is the proxy as a part of ``headgate up``, ``start`` and
``broker``, ``sending`` what the verbs that send have in common, ``picture`` how ``status`` shows what it was told.
"""

from __future__ import annotations

from typing import Final

from broker.cli.verbs import run_family

VERBS: Final = {
    "proxy": "this node's proxy: its pipelines and its directory",
    "status": "what the rooms of this node count, which nodes are known",
    "bridge": "be reachable on a Flux broker (oslo.EXCHANGE.TOPIC.METHOD)",
    "call": "call a method of an rpc-server, print its result",
    "cast": "have one server of a topic do something",
    "fanout": "have every server of a topic do something",
    "notify": "send a notification",
    "listen": "print notifications as they come",
}
"""Verb -> what it does; the order of ``headgate oslo --help``."""
_ABOUT: Final = "The transport zmq:// of oslo.messaging: the proxy of a node, and what goes through it."
_MORE: Final = """

Examples:
  headgate oslo proxy                            on this machine; prints the transport_url
  headgate oslo call scheduler select host=a1    what a server of the topic answers
  headgate oslo listen notifications             until Ctrl-C"""


def main(argv: list[str]) -> int:
    """Entry point of the verb ``oslo``."""
    return run_family("oslo", VERBS, _ABOUT, _MORE, argv)

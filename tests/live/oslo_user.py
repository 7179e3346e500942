"""A service of oslo.messaging whose configuration says ``transport_url`` and nothing else; run by ``test_oslo_users``.
The URL is ``zmq://``, or the argument.

It serves a topic and calls itself: prints the answer, or what went wrong, behind what it logged.
"""

import logging
import os
import sys

import oslo_messaging
from oslo_config import cfg


class Endpoint:
    def who(self, ctxt: dict) -> int:
        return os.getuid()


def main() -> int:
    logging.basicConfig(stream=sys.stdout, level=logging.WARNING, format="%(message)s")
    conf = cfg.CONF  # the one that oslo.messaging's own options are in
    conf([], project="headgate-test", default_config_files=[], default_config_dirs=[])
    transport = oslo_messaging.get_rpc_transport(conf, sys.argv[1] if sys.argv[1:] else "zmq://")
    server = oslo_messaging.get_rpc_server(
        transport,
        oslo_messaging.Target(topic="t", server=f"s{os.getuid()}"),
        [Endpoint()],
        executor="threading",
        access_policy=oslo_messaging.DefaultRPCAccessPolicy,
    )
    server.start()
    client = oslo_messaging.get_rpc_client(transport, oslo_messaging.Target(topic="t"), timeout=2)
    try:
        print(f"answered by {client.call({}, 'who')}")
        return 0
    except oslo_messaging.MessagingTimeout as error:
        print(f"failed: {error}")
        return 1
    finally:
        server.stop()
        server.wait()
        transport.cleanup()


if __name__ == "__main__":
    sys.exit(main())

"""The service ``stock``: an rpc-server at the topic "stock", and a listener for what the service ``orders`` tells.

python stock.py SERVER_NAME          with OSLO_TRANSPORT_URL, by default zmq://
"""

import os
import signal
import sys

import oslo_messaging
from oslo_config import cfg


class Shelf:
    """What others may call; each prints what it was asked for."""

    def __init__(self, name):
        self.name = name
        self.left = {"bolt": 10}

    def reserve(self, ctxt, item, count):
        if self.left.get(item, 0) < count:
            raise ValueError(f"only {self.left.get(item, 0)} of {item} left")
        self.left[item] -= count
        print(f"{self.name}: reserved {count} of {item}", flush=True)
        return {"server": self.name, "left": self.left[item]}

    def restock(self, ctxt, item, count):
        self.left[item] = self.left.get(item, 0) + count
        print(f"{self.name}: restocked {count} of {item}", flush=True)

    def recount(self, ctxt):
        print(f"{self.name}: recounted", flush=True)


class Bell:
    """Notifications of priority info."""

    def __init__(self, name):
        self.name = name

    def info(self, ctxt, publisher_id, event_type, payload, metadata):
        print(f"{self.name}: {publisher_id} says {event_type} {payload['number']}", flush=True)


ENDS = (signal.SIGTERM, signal.SIGINT)


def main():
    name = sys.argv[1]
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDS)  # before the library's threads begin
    conf = cfg.CONF
    conf([], project="stock")
    url = os.environ.get("OSLO_TRANSPORT_URL", "zmq://")
    transport = oslo_messaging.get_rpc_transport(conf, url=url)
    notices = oslo_messaging.get_notification_transport(conf, url=url)
    server = oslo_messaging.get_rpc_server(
        transport, oslo_messaging.Target(topic="stock", server=name), [Shelf(name)], executor="threading"
    )
    bell = oslo_messaging.get_notification_listener(
        notices, [oslo_messaging.Target(topic="orders")], [Bell(name)], executor="threading", pool="stock"
    )
    server.start()
    bell.start()
    print(f"{name}: ready", flush=True)
    signal.sigwait(ENDS)
    for each in (server, bell):
        each.stop()
        each.wait()
    transport.cleanup()
    notices.cleanup()


if __name__ == "__main__":
    main()

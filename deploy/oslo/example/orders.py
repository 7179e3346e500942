"""The service ``orders``: one call, one cast, one fan-out and one notification.

python orders.py                     with OSLO_TRANSPORT_URL, by default zmq://
"""

import os

import oslo_messaging
from oslo_config import cfg


def main():
    conf = cfg.CONF
    conf([], project="orders")
    url = os.environ.get("OSLO_TRANSPORT_URL", "zmq://")
    transport = oslo_messaging.get_rpc_transport(conf, url=url)
    notices = oslo_messaging.get_notification_transport(conf, url=url)

    stock = oslo_messaging.get_rpc_client(transport, oslo_messaging.Target(topic="stock"), timeout=10)
    answer = stock.call({}, "reserve", item="bolt", count=4)
    print(f"orders: {answer['server']} has {answer['left']} bolts left", flush=True)
    stock.cast({}, "restock", item="bolt", count=4)
    stock.prepare(fanout=True).cast({}, "recount")
    notifier = oslo_messaging.Notifier(notices, "orders", driver="messagingv2", topics=["orders"])
    notifier.info({}, "order.placed", {"number": 1})

    transport.cleanup()
    notices.cleanup()


if __name__ == "__main__":
    main()

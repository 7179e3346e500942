"""What survives a restart: SQLite files, each written by one thread in group commits (NFP, "Job Persistence").

    journal     Store: the broker's journal; NoStore: the store switched off
    thread      one thread that owns a database: put, commit, durable, retry; for every store of the wing
    database    files: mode, lock, damage, version
    events      the schema, the clock, and what is written: jobs, events of them, names; one for all
    upgrade     files of versions before
    peers       PeerStore: jobs of a worker or a client, what their events make of them, retention

The stores of the worker and of the client (``worker.store``, ``client.store``) are built on ``peers``.
"""

from broker.nfp.contract import NotStored
from broker.nfp.store.journal import NoStore, Store

__all__ = ["NoStore", "NotStored", "Store"]

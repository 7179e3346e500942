"""What survives a restart: SQLite files, each written by one thread in group commits (NFP, "Job Persistence").

    journal     Store: the broker's journal; NoStore: the store switched off
    thread      one thread that owns a database: put, commit, durable, retry; for every store of the wing
    writer      the thread's side of it: opens, writes groups, answers questions, cleans up
    database    files: mode, lock, damage, version
    clock       ages that no step of the wall clock changes
    events      the schema, and what is written: jobs, events of them, names; one for all
    upgrade     files of the version before
    peers       PeerStore: jobs of a worker or a client, what their events make of them, retention

The stores of the worker and of the client (``worker.store``, ``client.store``) are built on ``peers``.
"""

from broker.nfp.contract import NotStored
from broker.nfp.store.journal import NoStore, Store

__all__ = ["NoStore", "NotStored", "Store"]

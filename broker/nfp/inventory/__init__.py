"""The inventory datastore (NFP, "Broker Simple Inventory Datastore", whose implementation is TBD in the text).

A YAML file as deployed NorFab reads it, rendered by Jinja2 in a sandbox with ``env``, the environment::

    broker: {...}                  of the broker, for people and for clients that share the file
    workers:
      nornir-*: [common.yaml]      glob of workers' names -> files beside this one, or mappings, merged in order
      nornir-1: [site/one.yaml, {service: nornir}]
    topology: {...}                what ``headgate nfp up`` starts
    logging, client, hooks, plugins: read, shown, and not acted upon

Rooms::

    reading      YAML -> plain JSON values: limits, aliases, duplicates; errors with file and line
    mappings     mappings into one; what those may see who may not see values
    datastore    the file and those it names: loading, reloading, one worker's merged mapping; that in a thread, for a
                 broker with others to answer
    topology     what the inventory wants to be started

A broker tells of it in ``management.inventory``.
"""

from broker.nfp.inventory.datastore import Datastore, Reader
from broker.nfp.inventory.mappings import redacted
from broker.nfp.inventory.topology import Topology, TopologyWorker, load_environment, read_topology

__all__ = [
    "Datastore",
    "Reader",
    "Topology",
    "TopologyWorker",
    "load_environment",
    "read_topology",
    "redacted",
]

"""Scripts written for deployed NorFab 0.25, run over our client library. One line of such a script changes::

    from broker.nfp.norfab import NorFab                # was: from norfab.core.nfapi import NorFab

    nf = NorFab(inventory="./inventory.yaml")
    nf.start()                                          # `headgate nfp up`: the topology's broker and workers
    client = nf.make_client()
    print(client.run_job("nornir", "cli", kwargs={"commands": ["show clock"]}, workers="any", timeout=60))
    nf.destroy()

or none, when it is run as ``python -m broker.nfp.norfab SCRIPT.py [ARGUMENT]...``: the modules ``norfab.core.nfapi``
and ``norfab.core.client`` are then these classes. Names, arguments and what comes back are NorFab's. Differences:

- A job for a service without workers waits for one until its timeout, where NorFab's broker refuses it at once.
- A client's name is in use once at a time on a machine; a second one of the name is a ConfigError.
- Keys that do not fit raise LinkRefused at once.
- ``nf://`` is the folder of the topology's filesharing worker; without one, ``files`` of the broker's own folder, not
  the whole folder of the inventory.
- Workers of the topology that are NorFab's own are run by the interpreter that ``$NORFAB_PYTHON`` names.
- Our own things are elsewhere: keys and jobs in ``peer.keys.default_base_dir()``. Fetched files are where NorFab has
  them, in ``__norfab__/files/client/NAME/fetchedfiles`` beside the inventory.

::

    nfapi        NorFab: start, make_client, destroy
    client       NFPClient and the future that it submits jobs with; what of the inventory they need

``__main__`` runs a script without a changed line.
"""

from broker.nfp.norfab.client import NFPClient, NFPJobFuture
from broker.nfp.norfab.nfapi import NorFab

__all__ = ["NFPClient", "NFPJobFuture", "NorFab"]

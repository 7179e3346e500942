"""Files for workers and clients (NFP, "Broker File Sharing Service"): a folder shared by ``nf://`` URLs.

``tree``: what may be opened, and nothing else. ``reading``: an open file that threads read, and its digests.
``service``: the tasks and their worker. A worker's side is ``worker/fetched``.
"""

"""Files for workers and clients (NFP, "Broker File Sharing Service"): a folder shared by ``nf://`` URLs.

``tree``: what may be opened, and nothing else. ``reading``: an open file
that a thread reads. ``digests``: MD5 and SHA-256, remembered. ``sharing``: the tasks and
their answers. ``service``: the same as a worker. ``fetching``: the worker's side, URLs in arguments become files.
"""

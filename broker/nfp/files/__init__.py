"""Files for workers and clients (NFP, "Broker File Sharing Service"): a folder shared by ``nf://`` URLs.

``tree``: what may be opened, and nothing else; digests of open files, remembered while these stay the same.
``service``: the tasks and their worker. Who fetches is ``client/fetch``.
"""

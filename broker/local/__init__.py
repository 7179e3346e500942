"""A tree of brokers on this machine, from its first process to its last: what ``headgate start``, ``up`` and
``cluster`` have in common.

``tree``     its ranks as children: started, joined, ended, rank 0 first
``ranks``    ranks that are forked from this process, and the settings of each
``rundir``   the directory of their sockets and certificates, with a lock
``command``  a command in the foreground of the terminal, which finds rank 0

Ranks are children of a process with an event loop (``broker.children``). Those of ``start`` and ``up`` go on from a
process that has loaded what a broker needs, so that a rank costs milliseconds; those of ``cluster`` are programs, for
they are killed and started again. ``up`` has rank 0 and the gateway in its own process, where calls from the web to the
broker cost no hop from process to process. Four brokers and a gateway take 90 MiB (PSS) so, and 135 MiB as a cluster:
that is why ``up`` is no cluster in the foreground.
"""

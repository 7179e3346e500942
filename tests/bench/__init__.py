"""Benchmarks: `make bench`, or `python -m tests.bench --help`.

Every figure about speed is a ratio within one run: machines differ, and so do two minutes on one machine.

``__main__``    the command: which rows, how many rounds, table and JSON file
``works``       what is measured, one function a row (``tree`` has its own file)
``libflux_works``  what a program of the real libflux sees of a tree of four; the program is ``libflux.c``
``web_works``   the same by WebSocket, through the gateway
``counting``    what the figures by method cost a call
``keeping``     what it costs rank 0 to keep the last events
``guards``      what a log that nobody waits for, the check of who listens and the hook cost their paths
``load``        how busy the machine is: said before and after, and why no document gets a table
``targets``     floor and aim of each row, and the verdict
``builds``      which build of Headgate is measured: a wheel (--wheel), the sources beside it
``contenders``  who is measured: Headgate, flux-core (FLUX_PREFIX), a relay of bytes that parses nothing
``web_contenders``  by WebSocket: the gateway, nats-server, Crossbar (in an environment of its own, see --cache)
``loadgen``     builds and runs the load generators: ``loadgen.c`` on UNIX sockets, ``wsload.c`` on WebSockets (frames:
                ``ws_frames.h``; Flux, NATS and WAMP in them: ``ws_languages.h``), ``libflux.c``; what all of them share
                (phases, samples, CPU time) is ``measure.h``
``byte_relay``  the relay of bytes, a process of its own
``processes``   CPU time and memory of processes, start and stop
``tree``        a tree of 131 072 routers in one process, no I/O
``oslo_works``  oslo.messaging beside RabbitMQ and ``fake:``: calls, casts, fan-outs, notifications; ``oslo_width`` and
                ``oslo_crowd``: one node with many servers, many nodes. Applications are ``oslo_side``, a proxy is
                ``oslo_node``, ``oslo_raw`` an echo of pyzmq alone, ``oslo_kernel`` counts TCP's bytes
``hotspots``    one broker under cProfile while the load runs
``report``      the table, bars, the JSON file
"""

"""Flux messages outward: WebSocket and HTTP, users of the web, a dashboard; behind it a broker, ours or a flux-core's.

A message of a browser passes ``websocket`` (frames, then a codec of ``codecs``), ``sessions`` (rights, stamp, hop) and
``upstream``; its answer comes back the same way. An event comes from ``upstream`` once and leaves through ``events``.
Rooms below know nothing of those above: ``events``, ``upstream``, then ``sessions`` and ``trends``, ``administration``,
and the doors ``codecs``, ``websocket`` and ``web``.

``principal``  who a web client is: a leaf
``closes``     close codes: a leaf
``notices``    what a gateway tells its clients beside messages: a leaf
``settings``   typed configuration (TOML)
``access``     rules: role x kind x topic prefix
``identity``   tokens, JWT, certificates, login links, origins, proxies; the store that workers share
``tls``        certificates that are replaced while the gateway runs
``selfsigned`` a certificate for trying it out
``codecs``     subprotocols: WebSocket messages <-> Flux messages
``websocket``  RFC 6455 and its links
``events``     runs, fan-out, history
``upstream``   the owner link to the broker, kept
``sessions``   who is connected: what a client may, its calls, its services, coming back; and what is carried for all
``trends``     figures of the last day, for the dashboard's charts
``administration`` what owners do and see: the service ``gateway``
``history``    what the pipeline's tables say, read with pyarrow
``pipeline``   the journal -> tables, on Spark
``delta``      Delta tables opened, in a folder or a store: a leaf of the two
``web``        HTTP: calls, events, health, metrics, login, static files
``serve``      settings -> a gateway: the composition root
``process``    a gateway as a process: signals, logging, systemd
``fleet``      several processes as one service: workers, and gateways by way of a Redis server
``workers``    several processes behind the same listeners
``demo``       services and clients that ``up --demo`` shows
``cluster``    test clusters on this machine, and faults in them
``cli``        the verbs ``gateway``, ``up``, ``cluster``, ``token``, ``login``, ``tls``, ``pipeline``

The folder ``dashboard`` has static files: the page, and ``client.js`` for any page.
"""

__distribution__ = "headgate"  # other distributions have a package of this name, too (headgate.py)

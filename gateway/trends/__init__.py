"""What a gateway knows of the brokers behind it: now, for the dashboard, and over the last day, for its charts.

``figures``    what the two tables share: names, quantiles (pure)
``answers``    what brokers answer, checked (pure)
``ranks``      broker by broker: its place, its health, what flows (pure)
``calls``      method by method: rate, errors, duration, at one broker or at all (pure)
``rings``      rings of values, a second and ten seconds apart, by name; marks of what happened (pure)
``overlay``    asks for the tree and its health
``collector``  asks every broker, again and again, each on its own
``keeping``    the rings in a file, over a restart
``trends``     all of it in one gateway, and what ``gateway.series``, ``gateway.calls`` and ``gateway.ranks`` answer

Every worker process collects for itself; while nobody looks, every ten seconds, so that a fleet of gateways costs its
brokers next to nothing; while somebody does, every second, for all pages together.
"""

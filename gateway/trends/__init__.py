"""What a gateway knows of the brokers behind it: now, for the dashboard, and over the last day, for its charts.

``answers``    what brokers answer, checked; names of the figures that are made of it (pure)
``ranks``      broker by broker: its place, its health, what flows (pure)
``calls``      method by method: rate, errors, duration, at one broker or at all (pure)
``rings``      rings of values, a second and ten seconds apart, by name; marks of what happened (pure)
``collector``  asks every broker, again and again, each on its own; the root for the tree and its health
``trends``     all of it in one gateway, and in a file over a restart; what ``gateway.series``, ``gateway.calls`` and
               ``gateway.ranks`` answer

Every worker process collects for itself; while nobody looks, every ten seconds, so that a fleet of gateways costs its
brokers next to nothing; while somebody does, every second, for all pages together.
"""

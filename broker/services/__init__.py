"""Built-in services: they answer requests addressed to this broker.

``context``   what services may ask of the broker that runs them: interfaces, implemented by ``broker.node``
``service``   what a service is: Service, the ``method`` decorator; Streams, its open streams; Services, those of one
              broker; ``built_in``, which finds them
``dispatch``  what is special about their handlers (see ``broker.serving``), and what every service answers
``tracers``   callers that trace messages, and the records that each is sent
``idset``     sets of ranks as text

The services by file: ``attr``, ``broker`` (and ``connector-local``), ``config``, ``event``, ``groups``, ``heartbeat``,
``journal``, ``log``, ``module``, ``overlay``, ``providers`` (the service named ``service``), ``state_machine`` (and
``shutdown``), ``absent`` (``resource``, ``job-manager``, ``rexec``: what this broker does not have).
"""

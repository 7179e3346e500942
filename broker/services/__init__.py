"""Built-in services: they answer requests addressed to this broker, one file each.

``context``   what services may ask of the broker that runs them: interfaces, implemented by ``broker.node``
``service``   what a service is: Service, the ``method`` decorator; Services, those of one broker
``dispatch``  what is special about their handlers (see ``broker.serving``), and what every service answers
``streams``   requests whose answers go on, and how they end
``tracers``   who wants to see messages pass, and what each is told
``service_locations`` which ranks provide which service, at a broker and below it (pure)
``attachment`` requests about the sender's own link
``wings``     what NFP and oslo count, beside the broker's own figures
``idset``     sets of ranks as text
``ring``      log entries and the ring that holds them
``registry``  finds them: ``attr``, ``broker``, ``config``, ``connector_local``, ``event``, ``groups``,
              ``heartbeat``, ``journal``, ``log``, ``module``, ``overlay``, ``providers`` (the service named
              ``service``), ``rexec``, ``scheduler`` (the services ``resource`` and ``job-manager``), ``shutdown``,
              ``state_machine``
"""

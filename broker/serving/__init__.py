"""From a request to its handler: what the built-in services and the services of clients have in common (RFC 6).

``received`` a message that came in, with what a program asks of it
``request``  one request for a method, and what its handler may do with it
``method``   one method: its handler, and who may call it
``runner``   runs the handlers of one service: at once or as bounded tasks; cancel, disconnect, errors

What differs is in the two subclasses of ``Runner``: ``broker.services.dispatch`` and ``broker.client.service``.
"""

"""From a request to its handler: what the built-in services and the services of clients have in common (RFC 6).

``request``  a message that came in, with what a program asks of it; a request for a method, and how it is answered
``runner``   one method, its handler and the roles that may call it; runs the handlers of one service: at once or as
             bounded tasks; cancel, disconnect, errors

What differs is in the two subclasses of ``Runner``: ``broker.services.dispatch`` and ``broker.client.service``.
"""

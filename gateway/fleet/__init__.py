"""Several processes as one service: the workers of a gateway, and gateways that share a Redis server.

``peers``     who the others are: connections of their users, their answers
``siblings``  brings word between the workers of one gateway
``member``    brings word between gateways, and replicates what their stores have
``messages``  what they tell each other
``login_rows`` logins as gateways tell them
``kept``      what Redis keeps: logins that count at all of them, revocations, answers of providers that were used

What the workers of a gateway find in their store (``identity.store``) nobody has to tell them.
"""

"""Several gateways as one, by way of a Redis server that they share.

``member``    one process among those of all gateways: what is told, what was heard until it is written down
``peers``     the processes of other gateways: connections of their users, their answers
``messages``  what they tell each other, logins among it
``kept``      what Redis keeps: logins that count at all of them, revocations, answers of providers that were used
"""

"""Several gateways as one, by way of a Redis server that they share.

``member``    one process among those of all gateways: who is there, what is told
``questions`` what is asked of the others
``roster``    the processes of other gateways, and the connections of their users
``logins``    logins that count at all of them
``messages``  what they tell each other
``inbox``     what was heard, until it is written down
``kept``      what Redis keeps: logins, revocations, answers of providers that were used
"""

"""One client costs only itself: many loads, each beside the same victims, who measure what it costs them.

    lines     connections of an attacker, which never block: UNIX, CURVE, WebSocket in its three subprotocols
    ground    what a load gets: lines, a service that never answers, the time it has
    loads     loads made of messages, over every kind of line
    grammar   loads drawn by seed from all valid messages
    web       loads on a gateway that are no messages: HTTP, SSE, bytes that are neither, silence
    wings     loads on the brokers of NFP and oslo.messaging
    table     the loads by name
    attacker  the process that makes the loads
    stand     a tree of four; a gateway or another wing; users
    victims   who calls, publishes, subscribes and connects all the time, and times it
    figures   what a load has cost, and the bars
    run       one load beside the victims
    seeds     random loads that have failed once

``python -m tests.overload [LOAD ...]`` prints a table; ``test_short`` asserts what no busy machine can break,
``test_soak`` the bars.
"""

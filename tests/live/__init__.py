"""What tests of a running instance share: brokers as processes, and a client that speaks bare frames.

brokers   one broker or a tree of them, each a process of its own; its memory, descriptors and ports
speaker   a blocking client over the socket: frames in, messages out, nothing of ``broker.client``
"""

"""What tests of a running instance share: brokers as processes, and a client that speaks bare frames.

guard     what a run of the tests has started ends with it, also when it is killed
brokers   one broker or a tree of them, each a process of its own; its memory, descriptors and ports
starter   processes as copies of one that has imported what they run
speaker   a blocking client over the socket: frames in, messages out, nothing of ``broker.client``
cmb1      a peer of an older dialect: CURVE, ZeroMQ parts written by hand from the text
balancer  a plain TCP balancer in front of several gateways
listeners ``[[listen]]`` tables of any dialect with CURVE keys, and where they ended up listening
"""

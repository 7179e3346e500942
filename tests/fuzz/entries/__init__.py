"""Entry points of fuzzers: a function per decoder that takes any bytes and returns whether they were read.

``flux``     what brokers read of each other and of clients: streams, parts, dialects, hello, payloads, services
``web``      what a gateway reads of browsers and identity providers: frames, subprotocols, tokens, keys, origins
``wings``    what the brokers of NFP and oslo.messaging read of their peers
``disk``     what is read from files: journals, settings, certificates
``packing``  several frames in one string of bytes

An entry refuses what it should by the error that its decoder documents, and lets every other one out: that is what a
fuzzer finds. Where there is a second reading or a way back, an entry compares them.
"""

"""The outward side of Headgate: the same Flux messages, carried to browsers by HTTP and WebSocket.

Empty until the gateway is built; the package exists so that its name and its import rules are fixed from
the start.
"""

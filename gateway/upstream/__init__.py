"""The broker behind the gateway, ours or a real flux-core.

``upstream``   joins it, with which keys, looks after the link, comes back after a loss
``trunk``      the one owner link: a Handle that carries all sessions
``numbering``  which events were seen, which were missed, and whose numbers they are
``flux_core``  what is different in front of a real flux-core
"""

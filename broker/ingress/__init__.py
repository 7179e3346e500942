"""Ingress decides the identity of a peer; the service that answers decides what it may do (``broker.serving.runner``).

Pure rules of RFC 12:

``admission`` the access rules: a peer at connect -> refused, or credentials and a stamping policy
``stamping`` the userid and rolemask of each message as it comes in
"""

"""Ingress decides who you are; the one who answers decides what you may do (``broker.serving.runner``, say).

Pure rules of RFC 12:

``admission`` the access rules: a peer at connect -> refused, or credentials and a stamping policy
``stamping`` the userid and rolemask of each message as it comes in
"""

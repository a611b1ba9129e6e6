"""Weights of pretrained feature networks: which there are, where they lie on this machine, and how to get them.

Everything is checked by SHA-256 before it is read, and nothing is ever unpickled that could run code.
"""

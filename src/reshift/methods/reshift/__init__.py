"""The default method: dense discrimination of reconstruction shifts.

Imports core, nets, ops, the protocol and the paper's method, which is one of its parts.
"""

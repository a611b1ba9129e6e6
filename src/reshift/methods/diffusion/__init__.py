"""The diffusion baselines.

Import core, nets, ops and the protocol.
"""

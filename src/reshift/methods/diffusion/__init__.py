"""The diffusion baselines, with the samplers and the simplex noise that they share.

May import core, nets, ``ops`` and the base class of all methods.
"""

"""The networks: plain ``nn.Module``s that run anywhere, one per file. ``kernels`` can replace their layers by faster ones.

May import core.
"""

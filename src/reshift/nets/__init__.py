"""The networks: plain ``nn.Module``s, one a file.

May import core.
"""

"""``reshift export``: a bundle as one graph that other runtimes take, kept only if it scores like the bundle.

trace (with operations) → formats → parity → folder; monai adds what a MONAI bundle has, cached keeps what ``reshift score``
converts by itself. Who reads such a folder is ``inference/exported``.
"""

"""The paper, one pure function per equation. Imports torch and nothing else.

Shapes follow torch, not the paper: images are ``(B, C, H, W)`` in [-1, 1], latents ``(B, d_z, h, w)``, masks ``(B, 1, h, w)``.
``docs/equations.md`` maps every equation number to its function and its test.
"""

"""Files in, prepared images out: readers, geometry, manifests, and the source of training images.

Imports system and config only.
"""

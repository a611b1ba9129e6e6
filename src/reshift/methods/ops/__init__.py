"""Image operations that several methods share: filters and augmentation.

Imports torch and numpy only.
"""

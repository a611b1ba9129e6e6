"""Image operations that several methods share: filters, noise, samplers, augmentation.

Imports core and torch only.
"""

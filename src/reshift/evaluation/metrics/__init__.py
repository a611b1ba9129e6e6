"""The metrics, in numpy alone.

Imports nothing of ours but errors.
"""

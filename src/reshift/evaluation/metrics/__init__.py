"""The metrics, with numpy alone; ``table`` has one row for each.

Imports nothing of the package but ``errors``.
"""

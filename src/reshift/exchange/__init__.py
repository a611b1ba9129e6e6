"""Bundles from and to others: checksums, a model card, the hub, plain URLs and folders; and JSON Schemas of our files.

Only safetensors, JSON and Markdown travel, and nothing is kept unless it is complete.
"""

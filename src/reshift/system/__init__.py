"""What touches the machine: device, worker processes, files, progress.

Imports config and errors only.
"""

"""The training loop, one step, checkpoints, the log, the cache of trained stages, and ``reshift train`` as a whole.

May import what lies below it: methods, kernels, system, data, inference.
"""

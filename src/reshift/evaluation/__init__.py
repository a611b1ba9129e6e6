"""How good a model is: metrics, ``evaluate``, ``compare``, ``select``.

May import what lies below it: data, inference, training.
"""

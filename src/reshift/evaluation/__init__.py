"""How good a model is: ``metrics``, ``evaluate``, ``compare``, ``select``. Computes and stores; ``reports`` shows the results.

May import data, inference and training.
"""

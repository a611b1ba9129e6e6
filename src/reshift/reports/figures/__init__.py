"""The paper's figures, drawn from saved evaluations.

May import evaluation and inference; matplotlib is imported when a figure is drawn.
"""

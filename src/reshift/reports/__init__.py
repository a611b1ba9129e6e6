"""What people look at: the evaluation report, comparisons, data-set checks, the paper's figures. Templates are beside them.

May import what lies below it: data, inference, evaluation.
"""

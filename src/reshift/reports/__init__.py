"""Reports for people: the evaluation report, comparisons, data-set checks, the paper's figures.

Pages are Jinja2 templates in ``templates/``. May import data, inference and evaluation.
"""

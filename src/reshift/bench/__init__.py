"""``reshift bench``: a suite of method × data set × seed becomes cells, tables and figures.

May import everything but the command line.
"""

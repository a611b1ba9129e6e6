"""``reshift bench``: a suite of method × data set × seed becomes cells, tables and figures.

It may import everything but the command line.
"""

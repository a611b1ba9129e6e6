"""The paper's method: Algorithm 1 (method.py) and Algorithm 2 (inference.py).

May import core, nets and the base class of all methods.
"""

"""The paper's method: Algorithm 1 (training) and Algorithm 2 (inference).

Imports core, nets and the protocol.
"""

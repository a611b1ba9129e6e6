"""What only makes it faster: fused layers, recorded steps, bf16 weights. Results do not depend on it beyond rounding.

May import core and nets.
"""

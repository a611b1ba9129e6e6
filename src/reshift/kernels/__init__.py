"""What only makes it faster. Results do not depend on it beyond rounding, and everything runs without it.

``accelerate(module, device)`` replaces plain layers by fast twins; table.py lists them. Beside it: recorded steps
(graphs.py), bf16 copies of weights (bf16_weights.py), weight gradients on a second stream (streams.py), a fused AdamW
(adamw.py). The environment variable RESHIFT_KERNELS switches parts off. May import core and nets.
"""

from reshift.kernels.table import accelerate

__all__ = ["accelerate"]

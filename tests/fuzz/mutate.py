"""Change bytes at random: for tests, and where there is no coverage-guided fuzzer."""

import random

EDGES = (
    *(b"\0", b"\xff", b"\xff\xff", b"\x7f\xff\xff\xff", b"\xff\xff\xff\x7f", b"\0" * 8),
    *(b"-1", b"1e999", b"NaN", b"../", b'"', b"\n", b"[" * 40),
)


def mutate(data: bytes, rng: random.Random, largest: int = 2**16) -> bytes:
    """One to eight changes: flipped bits, other bytes, cuts, repeats, exchanged parts and awkward values."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4, 8))):
        at, end = sorted(rng.randrange(len(out) + 1) for _ in range(2))
        kind = rng.randrange(6)
        if kind == 0 and out:
            out[rng.randrange(len(out))] ^= 1 << rng.randrange(8)
        elif kind == 1 and out:
            out[rng.randrange(len(out))] = rng.randrange(256)
        elif kind == 2:
            del out[at : min(end, at + rng.choice((1, 4, 64, 2**16)))]
        elif kind == 3:
            out[at:at] = out[at : min(end, at + 256)]
        elif kind == 4:
            edge = rng.choice(EDGES)
            out[at : at + len(edge)] = edge
        else:
            other = rng.randrange(len(out) + 1)
            part = out[other : other + 16]
            out[at : at + len(part)] = part
    return bytes(out[:largest])

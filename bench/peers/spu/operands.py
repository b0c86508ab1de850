"""Random operands of one layer or operation, the same for every program that is compared."""

import numpy as np

# About so many words has a single operation, in rows of `tokens`.
WORDS = 100_000
OPERATIONS = {
    "gelu": "GELU of 10^5 words, in rows of {}",
    "softmax": "Softmax of 10^5 words, in rows of {}",
    "compare": "Signs of 10^5 words, in rows of {}",
}


def operands(kind, width, heads, tokens, seed):
    """Random operands of the layer: how many of them are shared, and all. The rest belongs to the server."""
    rng = np.random.default_rng(seed)
    if kind in OPERATIONS:
        return 1, [(3.0 * rng.standard_normal((WORDS // tokens, tokens))).astype(np.float32)]
    size, inner = width // heads, 4 * width
    draw = lambda *shape, scale=1.0: (rng.standard_normal(shape) * scale).astype(np.float32)
    weight = lambda rows, columns: draw(rows, columns, scale=rows**-0.5)
    if kind == "decode":
        shared = [draw(1, width), draw(heads, tokens, size, scale=0.5), draw(heads, tokens, size, scale=0.5)]
    else:
        shared = [draw(tokens, width)]
    affine = lambda: [1.0 + draw(width, scale=0.1), draw(width, scale=0.1)]
    return len(shared), shared + [
        *affine(), weight(width, 3 * width), draw(3 * width, scale=0.1), weight(width, width), draw(width, scale=0.1),
        *affine(), weight(width, inner), draw(inner, scale=0.1), weight(inner, width), draw(width, scale=0.1),
    ]  # fmt: skip

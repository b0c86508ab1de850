"""Gated DeltaNet as attention without a softmax over a cache that never changes, against its authors' program.

    venv/bin/python model/references/delta.py          # torch==2.15.0, transformers==5.24.0

With c_t the sum of g up to t, S_t = e^(g_t) S_(t-1) + w_t k_t' gives S_t q = sum over j <= t of e^(c_t - c_j) w_j
(k_j . q), and w_t = b_t (v_t - sum over j < t of e^(c_t - c_j) w_j (k_j . k_t)). No trained gates are at hand: those
below are of transformers' first weights (A of 0.01 to 16, dt_bias 1), and with the dt_bias of Mamba (dt of 0.001 to
0.1).
"""

import torch
import torch.nn.functional as F
from transformers.models.qwen3_5.modeling_qwen3_5 import l2norm, torch_recurrent_gated_delta_rule as authors

HEADS, DIM, UNITS = 16, 128, 2.0**18
torch.manual_seed(1)
A = torch.empty(HEADS).uniform_(0.01, 16)


def gates(tokens, dt_bias):
    """g, (tokens, heads)."""
    return -A * F.softplus(torch.randn(tokens, HEADS) + dt_bias)


def cached(q, k, v, g, b, rounded=lambda x: x):
    """(tokens, heads, width) each: the outputs by the rows (k_j, w_j) alone, token by token."""
    k, q, c, w, out = l2norm(k), l2norm(q) / DIM**0.5, g.double().cumsum(0), torch.zeros_like(v), torch.zeros_like(v)
    for t in range(len(q)):
        decay = rounded((c[t] - c[: t + 1]).exp().float())
        scores = lambda x: rounded(decay * torch.einsum("jhd,hd->jh", k[: t + 1], x))
        mix = lambda x: torch.einsum("jh,jhd->hd", scores(x), w[: t + 1])
        w[t] = 0
        w[t] = rounded(b[t, :, None] * (v[t] - mix(k[t])))
        out[t] = rounded(mix(q[t]))
    return out


mamba = lambda: (lambda dt: dt + torch.log(-torch.expm1(-dt)))(torch.exp(torch.empty(HEADS).uniform_(-6.9, -2.3)))
for name, bias in (("dt_bias 1", torch.ones(HEADS)), ("Mamba's", mamba())):
    tokens = 512
    q, k, v = (torch.randn(tokens, HEADS, DIM) for _ in range(3))
    g, b = gates(tokens, bias), torch.randn(tokens, HEADS).sigmoid()
    want = authors(*(x[None] for x in (q, k, v, g, b)), use_qk_l2norm_in_kernel=True)[0][0]
    off = lambda got: ((got - want).abs().max() / want.abs().max()).item()
    fixed = lambda x: (x * UNITS).round() / UNITS
    exact, rounded = off(cached(q, k, v, g, b)), off(cached(q, k, v, g, b, fixed))
    print(f"{name}: off by {exact:.1e} of the largest output, {rounded:.1e} in 18 bits")
    for tokens in (64, 512, 4096):
        bits = (-gates(tokens, bias).sum(0) / torch.log(torch.tensor(2.0))).sort().values
        least, median, most = (f"2^{bits[i]:.0f}" for i in (0, HEADS // 2, -1))
        print(f"  e^(-c) after {tokens} tokens: {least}, {median}, {most} (least, median, most of {HEADS} heads)")

# A prompt: (1 + N) W = diag(b) V for the strictly lower N. Its inverse is the product of all 1 + (-N)^(2^i).
for name, key in (("random keys", torch.randn(64, DIM)), ("one token repeated", torch.randn(1, DIM).expand(64, DIM))):
    n = torch.tril(l2norm(key) @ l2norm(key).T, -1).double()
    powers = [torch.linalg.matrix_power(n, 2**i).abs().max().item() for i in range(6)]
    inverse = torch.linalg.inv(torch.eye(64, dtype=torch.double) + n).abs().max().item()
    print(f"64 tokens, {name}, b = 1, no decay: powers up to {max(powers):.1e}, the inverse up to {inverse:.1f}")

"""Random configurations of all families of texts, and the logits of Hugging Face transformers, to compare.

    python3 -m venv venv && venv/bin/pip install torch==2.15.0 transformers==5.24.0
    venv/bin/python model/references/sweep.py 1 200 OUT
    cargo run --release -p waggle-model --example compare -- OUT

The first number is the seed, the second the number of configurations. Each directory in OUT has a model as transformers
writes it, which is how its newest version writes every key, and `reference.json` as that of make.py. The second command
prints what differs.
"""

import json
import random
import sys
from pathlib import Path

import torch
import transformers
from make import built

ENCODERS = ("bert", "roberta", "distilbert")
KINDS = (
    "gpt2 llama mistral qwen2 qwen3 smollm3 granite granite_swa phi3 phi gpt_neox opt olmo2 gemma2 gemma3_text "
    "gemma4_text"
).split() + list(ENCODERS)

ACTIVATIONS = ["silu", "gelu", "gelu_new", "gelu_pytorch_tanh", "relu"]


def ropes(r, head, longrope):
    """A rotary embedding of `head` coordinates, of any type."""
    theta = dict(rope_theta=r.choice([50.0, 1000.0, 10000.0]))
    kind = r.choice(["default", "linear", "llama3"] + ["longrope"] * longrope)
    if kind == "linear":
        return theta | dict(rope_type=kind, factor=r.choice([2.0, 3.5]))
    if kind == "llama3":
        more = dict(low_freq_factor=1.0, high_freq_factor=r.choice([2.0, 4.0]), original_max_position_embeddings=16)
        return theta | dict(rope_type=kind, factor=r.choice([2.0, 8.0])) | more
    if kind == "longrope":
        factors = {f"{name}_factor": [round(r.uniform(1, most), 2) for _ in range(head // 2)]
                   for name, most in (("short", 1.5), ("long", 4.0))}
        more = r.choice([{}, {"factor": 3.0}, {"attention_factor": 1.25}])
        return theta | dict(rope_type=kind) | factors | more
    return theta | dict(rope_type=kind)


def layer_types(r, layers):
    return [r.choice(["full_attention", "sliding_attention"]) for _ in range(layers - 1)] + ["full_attention"]


def keys_of(r, kind):
    """The keys of a random configuration."""
    heads = r.choice([1, 2, 4])
    head = r.choice([4, 8, 12])
    kv, layers, hidden = r.choice([n for n in (1, 2, 4) if heads % n == 0]), r.choice([1, 2, 3, 5]), heads * head
    base = dict(vocab_size=r.choice([37, 72]), tie_word_embeddings=r.random() < 0.5, pad_token_id=r.choice([0, 1]))
    inner, context, eps = r.choice([24, 40]), 64, r.choice([1e-6, 1e-5, 1e-2])
    if kind == "gpt2":
        return base | dict(n_embd=hidden, n_head=heads, n_layer=layers, n_positions=context, n_inner=r.choice([None, inner]),
                           activation_function=r.choice(ACTIVATIONS), layer_norm_epsilon=eps,
                           scale_attn_weights=r.random() < 0.7, scale_attn_by_inverse_layer_idx=r.random() < 0.5)
    if kind == "distilbert":
        return base | dict(dim=hidden, hidden_dim=inner, n_layers=layers, n_heads=heads, max_position_embeddings=context,
                           activation=r.choice(["gelu", "relu"]), num_labels=r.choice([1, 2, 5]))
    base |= dict(hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=heads, max_position_embeddings=context)
    if kind == "opt":
        return base | dict(ffn_dim=inner, word_embed_proj_dim=hidden, activation_function=r.choice(["relu", "gelu"]))
    base |= dict(intermediate_size=inner)
    if kind in ENCODERS:
        return base | dict(type_vocab_size=r.choice([1, 2]), hidden_act=r.choice(ACTIVATIONS), layer_norm_eps=eps,
                           num_labels=r.choice([1, 2, 5]))
    gemma, bias = kind.startswith("gemma"), dict(attention_bias=r.random() < 0.5)
    base["hidden_activation" if gemma else "hidden_act"] = r.choice(ACTIVATIONS)
    base["layer_norm_eps" if kind in ("phi", "gpt_neox") else "rms_norm_eps"] = eps
    partial = r.choice([0.5, 1.0])
    if kind in ("phi", "gpt_neox", "phi3"):
        turned = int(head * partial)
        rope = ropes(r, turned, kind == "phi3")
        while kind == "phi3" and rope["rope_type"] not in ("default", "longrope"):
            rope = ropes(r, turned, True)
        base["rope_parameters"] = rope | dict(partial_rotary_factor=partial)
    elif not gemma or kind == "gemma2":
        base["rope_parameters"] = ropes(r, head, False)
    if kind == "gpt_neox":
        return base
    base["num_key_value_heads"] = kv
    if kind == "phi":
        return base | dict(tie_word_embeddings=False)
    if kind == "phi3":
        return base | dict(original_max_position_embeddings=8, sliding_window=r.choice([None, 7]))
    windows = dict(sliding_window=r.choice([5, 9]))
    if kind in ("llama", "mistral", "qwen3") and r.random() < 0.5:
        base["head_dim"] = head + 4
        if "rope_parameters" in base:
            base["rope_parameters"] = ropes(r, head + 4, False)
    elif kind == "qwen3":
        base["head_dim"] = head
    if kind == "llama":
        return base | bias | dict(mlp_bias=r.random() < 0.5)
    if kind == "mistral":
        return base | dict(sliding_window=r.choice([None, 6]))
    if kind in ("qwen2", "qwen3"):
        return base | (bias if kind == "qwen3" else {}) | r.choice(
            [{}, windows | dict(use_sliding_window=True, max_window_layers=r.randrange(layers + 1))])
    if kind == "smollm3":
        return base | bias | dict(mlp_bias=r.random() < 0.5, no_rope_layer_interval=r.choice([2, 3])) | r.choice(
            [{}, windows | dict(use_sliding_window=True)])
    if kind.startswith("granite"):
        base |= bias | dict(mlp_bias=r.random() < 0.5, embedding_multiplier=r.choice([1.0, 0.5]), residual_multiplier=0.4,
                            attention_multiplier=r.choice([0.2, 1.0]), logits_scaling=r.choice([1.0, 5.0]))
        if kind == "granite_swa":
            bases = [r.choice([0.0, 50.0, 1000.0]) for _ in range(layers)]
            base |= windows | dict(layer_rope_theta=r.choice([None, bases]), layer_types=r.choice([None, layer_types(r, layers)]))
        return base
    if kind == "olmo2":
        return base | bias
    base |= windows | dict(head_dim=head, final_logit_softcapping=r.choice([None, 5.0]), layer_types=layer_types(r, layers))
    if kind == "gemma4_text":
        wide = dict(global_head_dim=16, attention_k_eq_v=r.random() < 0.5, num_global_key_value_heads=1)
        each = r.choice([0, 6])
        return base | wide | dict(hidden_size_per_layer_input=each, vocab_size_per_layer_input=base["vocab_size"])
    base |= bias | dict(query_pre_attn_scalar=r.choice([8, 12]))
    if kind == "gemma2":
        base["attn_logit_softcapping"] = r.choice([None, 6.0])
    if kind == "gemma3_text":
        base["rope_parameters"] = {name: ropes(r, head, False) for name in ("full_attention", "sliding_attention")}
    return base


@torch.no_grad()
def make(seed, number, out):
    r = random.Random(f"{seed} {number}")
    kind = KINDS[number % len(KINDS)]
    encoder = kind in ENCODERS
    auto = transformers.AutoModelForSequenceClassification if encoder else transformers.AutoModelForCausalLM
    model = built(auto, f"{seed} {number}", kind, keys_of(r, kind))
    model.tie_weights()
    path = out / f"{number:04}-{kind}"
    model.save_pretrained(path)
    sequences = []
    for length in (44, 7):
        ids = torch.randint(3, model.config.vocab_size, (1, length))
        logits = model(ids).logits if encoder else model(ids, use_cache=False).logits[0]
        sequences.append({"ids": ids[0].tolist(), "logits": logits.tolist()})
    (path / "reference.json").write_text(json.dumps({"sequences": sequences}))


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    for number in range(int(sys.argv[2])):
        make(int(sys.argv[1]), number, Path(sys.argv[3]))

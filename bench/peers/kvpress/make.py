"""What kvpress keeps of a prompt, and the logits after it, as references of Waggle's policies.

    python3 -m venv venv && venv/bin/pip install kvpress==0.5.5      # Python 3.10 or later
    HF_HUB_OFFLINE=1 venv/bin/python bench/peers/kvpress/make.py model/tests/data/kvpress.json

Both programs read the tiny checkpoint `model/tests/data/families/llama3` (3 layers, 4 query heads, 2 key/value heads)
in f32. The prompt is its longer text, the continuation begins the shorter one. For each policy of Waggle with options
the file says which tokens kvpress keeps by layer and key/value head when the last token of the continuation comes,
and the logits after every token of the continuation. `scored` has what scores keep that Waggle learns. Where the rules of the programs differ, `plain` is what kvpress
keeps as it is, and the rest is by our rules. `model/tests/all/kvpress.rs` reads the file. Equal versions give equal
files.
"""

import json
import math
import sys
from pathlib import Path

import numpy
import torch
import transformers
from kvpress import (
    DecodingPress,
    DuoAttentionPress,
    KeyDiffPress,
    KnormPress,
    KVzapPress,
    ObservedAttentionPress,
    PerLayerCompressionPress,
    PrefillDecodingPress,
    PyramidKVPress,
    QFilterPress,
    SnapKVPress,
    StreamingLLMPress,
    TOVAPress,
)
from kvpress.presses.kvzap_press import KVzapConfig, KVzapModel
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

CHECKPOINT = Path(__file__).parents[3] / "model/tests/data/families/llama3"

# Tokens of the prompt, of the continuation, and those kept where all layers keep as many.
PROMPT, STEPS, KEPT = 44, 4, 22


def keeping(kept, press, **options):
    """A press that keeps so many tokens; by half a token more, because most round down."""
    return press(compression_ratio=1 - (kept + 0.5) / PROMPT, **options)


def by_our_rules(press, units, recent=1):
    """`press`, but scores are rounded to `units`, the earlier of equal ones stays, and so do the latest tokens."""
    score = press.score

    def changed(*arguments):
        scores = torch.floor(score(*arguments).double() * units + 0.5)
        scores -= torch.arange(scores.shape[-1]) / scores.shape[-1] / 2
        scores[..., -recent:] = torch.inf
        return scores

    press.score = changed
    return press


def units(terms):
    """Units in a probability, of which so many are summed: `grid` in mpcache/src/attention.rs."""
    return 2.0 ** (10 - math.ceil(math.floor(math.log2(terms)) / 2))


def voting(window, kernel, press=SnapKVPress, kept=KEPT, **options):
    """SnapKV or a press like it, and that by our rules. They take means where ours sums."""
    make = lambda: press(1 - kept / PROMPT, window_size=window, kernel_size=kernel, **options)
    terms = window * kernel * 2
    return make(), by_our_rules(make(), units(terms) * terms, window)


class Squared(KnormPress):
    """Ours compares the squares of norms."""

    def score(self, *arguments):
        return -super().score(*arguments).square()


class Summed(ObservedAttentionPress):
    """The sum of what a token received, as in H2O's paper; kvpress takes the mean over the queries that see it."""

    def score(self, module, hidden_states, keys, *rest):
        return super().score(module, hidden_states, keys, *rest) * torch.arange(keys.shape[2], 0, -1)


class GivenHeads(DuoAttentionPress):
    """The first head of layer 0 and the second of layer 1 keep every token."""

    def load_attention_pattern(self, model):
        return 4, KEPT - 4, numpy.array([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]])


def columns():
    """By layer and head a column of the scoring head."""
    column = lambda of: [((i * 7 + of) % 13) / 8 - 0.75 for i in range(32)]
    return [[column(layer * 3 + head * 5) for head in range(2)] for layer in range(3)]


class GivenColumns(KVzapPress):
    """The linear functions of `columns`. A bias changes no choice."""

    def post_init_from_model(self, model):
        self.kvzap_model = KVzapModel(KVzapConfig(input_dim=32, output_dim=2, n_modules=3))
        for function, layer, weights in zip(self.kvzap_model.layers, model.model.layers, columns()):
            # Ours reads what the norm returns before its gain.
            function.weight.copy_(torch.tensor(weights) / layer.input_layernorm.weight)
            function.bias.copy_(torch.tensor([3.0, -2.0]))


def policies():
    """Waggle's policy; kvpress's; that by our rules if those differ.

    With a number of tokens and a block ours keeps the first less the second at the end of the prompt, or one more.
    The next tokens go when the number is reached.
    """
    by_layer = lambda press: PerLayerCompressionPress(press, [1 - (kept + 0.5) / PROMPT for kept in (27, 12, 27)])
    each_step = lambda kept, press: PrefillDecodingPress(press, DecodingPress(press, 1, kept))
    return [
        ("full", None, None),
        ("streaming:budget=28,block=7,sinks=4", keeping(KEPT, StreamingLLMPress, n_sink=4), None),
        ("duo:heads=1.2.0,budget=28,block=7,sinks=4", GivenHeads(head_compression_ratio=4 / 6), None),
        ("snapkv:budget=0.5,window=8,kernel=5", *voting(8, 5)),
        ("mpcache-2pc:budget=0.5,window=8,kernel=1,topk=rank", *voting(8, 1)),
        ("pyramid:budget=0.5454,window=4,kernel=5,beta=5", *voting(4, 5, PyramidKVPress, kept=24, beta=3)),
        ("squeeze:budget=0.5,window=4,kernel=5,layers=1,part=0.5", *map(by_layer, voting(4, 5))),
        ("knorm:budget=0.5,recent=1", keeping(KEPT, KnormPress), by_our_rules(keeping(KEPT, Squared), 2.0**6)),
        (
            "kvzap:budget=0.5,recent=4",
            keeping(KEPT, GivenColumns),
            by_our_rules(keeping(KEPT, GivenColumns), 2.0**6, 4),
        ),
        (
            "h2o:budget=28,block=6",
            keeping(KEPT, ObservedAttentionPress),
            by_our_rules(keeping(KEPT, Summed), units(PROMPT * 2) * 2, KEPT // 2),
        ),
        ("tova:budget=28,block=6", keeping(KEPT, TOVAPress), by_our_rules(keeping(KEPT, TOVAPress), units(4) * 4)),
        ("tova:budget=12,block=1", each_step(11, keeping(11, TOVAPress)), None),
        (
            "knorm:budget=23,block=1,recent=1",
            each_step(KEPT, keeping(KEPT, KnormPress)),
            each_step(KEPT, by_our_rules(keeping(KEPT, Squared), 2.0**6)),
        ),
    ]


class OwnFilters(QFilterPress):
    """Filters from the prompt itself, because those of this checkpoint are not published."""

    def post_init_from_model(self, model):
        pass

    def score(self, module, hidden_states, keys, values, attentions, kwargs):
        heads = (module.config.num_key_value_heads, -1, module.head_dim)
        queries = module.q_proj(hidden_states).unflatten(-1, (-1, module.head_dim)).transpose(1, 2)
        queries, _ = apply_rotary_pos_emb(queries, queries, *kwargs["position_embeddings"])
        queries = queries.reshape(heads)
        filters = torch.linalg.svd(queries, full_matrices=False).Vh[:, 0]
        filters *= (filters * queries.mean(1)).sum(-1, keepdim=True).sign()
        self.q_filters = [-filters if i == module.layer_idx else None for i in range(module.layer_idx + 1)]
        return super().score(module, hidden_states, keys, values, attentions, kwargs)


class Seen:
    """The keys of all tokens that each layer ever saw: by these it finds which tokens a cache holds."""

    def __init__(self, model):
        self.layers = [layer.self_attn for layer in model.model.layers]
        self.keys = [[] for _ in self.layers]
        # Before the hooks of the press.
        for layer in self.layers:
            layer.register_forward_hook(self.note, with_kwargs=True)

    def note(self, layer, args, kwargs, output):
        keys = kwargs["past_key_values"].layers[layer.layer_idx].keys[0]
        self.keys[layer.layer_idx].append(keys[:, -kwargs["hidden_states"].shape[1] :].clone())

    def held(self, cache):
        found = []
        for layer, keys, stored in zip(self.layers, self.keys, cache.layers):
            held = (torch.cat(keys, 1)[:, :, None] == stored.keys[0, :, None]).all(-1).any(2)
            # DuoAttention drops nothing, but puts other keys in the place of these.
            masked = getattr(layer, "masked_key_indices", None)
            if masked is not None:
                held[masked[1], masked[2]] = False
            found.append([head.nonzero().flatten().tolist() for head in held])
        return found


@torch.no_grad()
def run(press, prompt, continuation):
    # Attention that is observed has to be computed in the open; DuoAttention refuses that.
    attention = "eager" if isinstance(press, ObservedAttentionPress) else "sdpa"
    options = dict(dtype=torch.float32, attn_implementation=attention)
    model = transformers.AutoModelForCausalLM.from_pretrained(CHECKPOINT, **options).eval()
    seen, cache, rows = Seen(model), transformers.DynamicCache(), []
    with press(model) if press else torch.no_grad():
        model(torch.tensor([prompt]), past_key_values=cache)
        for position, token in enumerate(continuation, PROMPT):
            kept = seen.held(cache)
            place = dict(past_key_values=cache, position_ids=torch.tensor([[position]]))
            rows.append(model(torch.tensor([[token]]), **place).logits[0, -1].tolist())
    return dict(kept=kept, logits=[[float(f"{x:.7g}") for x in row] for row in rows])


def main():
    transformers.utils.logging.disable_progress_bar()
    texts = json.loads((CHECKPOINT / "reference.json").read_text())["sequences"]
    prompt, continuation = texts[0]["ids"], texts[1]["ids"][:STEPS]
    assert len(prompt) == PROMPT
    runs = []
    for policy, plain, ours in policies():
        found = run(plain, prompt, continuation)
        if ours:
            found = dict(plain=found["kept"], **run(ours, prompt, continuation))
        runs.append(dict(policy=policy, **found))
    presses = dict(qfilters=OwnFilters, keydiff=KeyDiffPress)
    scored = {name: run(keeping(KEPT, press), prompt, continuation)["kept"] for name, press in presses.items()}
    versions = dict(kvpress="0.5.5", torch=torch.__version__, transformers=transformers.__version__)
    reference = dict(**versions, prompt=prompt, continuation=continuation, columns=columns(), scored=scored, runs=runs)
    Path(sys.argv[1]).write_text(json.dumps(reference, separators=(",", ":")) + "\n")


main()

"""What kvpress keeps of a prompt, and the logits after it, as references of Waggle's policies.

    python3 -m venv venv && venv/bin/pip install kvpress==0.5.5      # Python 3.10 or later
    HF_HUB_OFFLINE=1 venv/bin/python bench/peers/kvpress/make.py model/tests/data/kvpress.json

Both programs read the tiny checkpoint `model/tests/data/families/llama3` (3 layers, 4 query heads, 2 key/value heads) in
f32. The prompt is its longer text, the continuation begins the shorter one. The file says for every policy of Waggle,
with options, which tokens kvpress keeps of the prompt by layer and key/value head, and the logits of each token of the
continuation. `model/tests/all/kvpress.rs` compares them with ours. Equal versions give equal files.
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy
import torch
import transformers
from kvpress import (
    DecodingPress,
    DuoAttentionPress,
    KnormPress,
    KVzapPress,
    ObservedAttentionPress,
    PerLayerCompressionPress,
    PrefillDecodingPress,
    PyramidKVPress,
    ScorerPress,
    SnapKVPress,
    StreamingLLMPress,
    TOVAPress,
)
from kvpress.presses.kvzap_press import KVzapConfig, KVzapModel

CHECKPOINT = Path(__file__).parents[3] / "model/tests/data/families/llama3"

# Tokens of the prompt, of the continuation, and those kept where all layers keep as many.
PROMPT, STEPS, KEPT = 44, 4, 22


def dropping(keep):
    """The ratio at which kvpress keeps so many tokens; half a token more, because it rounds down."""
    return 1 - (keep + 0.5) / PROMPT


@dataclass
class Protecting(ScorerPress):
    """`press`, but the latest tokens stay."""

    press: ScorerPress = None
    recent: int = 0

    def post_init_from_model(self, model):
        self.press.post_init_from_model(model)

    def score(self, module, hidden_states, keys, values, attentions, kwargs):
        scores = self.press.score(module, hidden_states, keys, values, attentions, kwargs).clone()
        scores[..., -self.recent :] = torch.inf
        return scores


class Summed(ObservedAttentionPress):
    """The sum of what a token received, as in H2O's paper, where kvpress takes the mean over the queries after it."""

    def score(self, module, hidden_states, keys, *rest):
        queries = torch.arange(keys.shape[2], 0, -1)
        return super().score(module, hidden_states, keys, *rest) * queries


class GivenHeads(DuoAttentionPress):
    """The first head of layer 0 and the second of layer 1 keep every token."""

    def load_attention_pattern(self, model):
        return 4, KEPT - 4, numpy.array([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]])


class GivenColumns(KVzapPress):
    """The linear functions of `columns`, and biases, which change no choice."""

    def post_init_from_model(self, model):
        config = KVzapConfig(input_dim=32, output_dim=2, n_modules=3)
        self.kvzap_model = KVzapModel(config)
        with torch.no_grad():
            for layer, weights in zip(self.kvzap_model.layers, columns()):
                layer.weight.copy_(torch.tensor(weights))
                layer.bias.copy_(torch.tensor([3.0, -2.0]))


def columns():
    """By layer and head a column of the scoring head; multiples of an 8th."""
    return [[[((i * 7 + head * 5 + layer * 3) % 13) / 8 - 0.75 for i in range(32)] for head in range(2)] for layer in range(3)]


# Waggle's policy, and kvpress's. With a number of tokens and a block ours keeps the first less the second at the end of
# the prompt, and nothing more goes for a few tokens.
def policies():
    half = dropping(KEPT)
    tova = TOVAPress(half)
    return [
        ("full", None),
        ("streaming:budget=28,block=7,sinks=4", StreamingLLMPress(half, n_sink=4)),
        ("duo:heads=1.2.0,budget=28,block=7,sinks=4", GivenHeads(head_compression_ratio=4 / 6)),
        ("snapkv:budget=0.5,window=8,kernel=5", SnapKVPress(half, window_size=8, kernel_size=5)),
        ("mpcache-2pc:budget=0.5,window=8,kernel=1,topk=rank", SnapKVPress(half, window_size=8, kernel_size=1)),
        ("pyramid:budget=0.5454,window=4,kernel=5,beta=5", PyramidKVPress(1 - 24 / PROMPT, window_size=4, kernel_size=5, beta=3)),
        (
            "squeeze:budget=0.5,window=4,kernel=5,layers=1,part=0.5",
            PerLayerCompressionPress(SnapKVPress(0.0, window_size=4, kernel_size=5), [dropping(n) for n in (27, 11, 27)]),
        ),
        ("knorm:budget=0.5,recent=1", Protecting(half, KnormPress(), 1)),
        ("kvzap:budget=0.5,recent=4", Protecting(half, GivenColumns(), 4)),
        ("h2o:budget=28,block=6", Protecting(half, Summed(), KEPT // 2)),
        ("tova:budget=28,block=6", tova),
        (
            "tova:budget=23,block=1",
            PrefillDecodingPress(tova, DecodingPress(TOVAPress(), compression_interval=1, target_size=KEPT)),
        ),
    ]


class Seen:
    """The keys of all tokens that each layer ever saw: by these it finds which tokens a cache holds."""

    def __init__(self, model):
        self.keys = [[] for _ in model.model.layers]
        # Before the hooks of the press.
        self.hooks = [layer.self_attn.register_forward_hook(self.note, with_kwargs=True) for layer in model.model.layers]

    def note(self, module, args, kwargs, output):
        new = kwargs["hidden_states"].shape[1]
        self.keys[module.layer_idx].append(kwargs["past_key_values"].layers[module.layer_idx].keys[0, :, -new:].clone())

    def held(self, model, cache):
        found = []
        for layer, all_keys, stored in zip(model.model.layers, self.keys, cache.layers):
            all_keys, heads = torch.cat(all_keys, 1), []
            for head in range(all_keys.shape[0]):
                same = (all_keys[head][:, None] == stored.keys[0, head]).all(-1).any(1)
                # DuoAttention drops nothing, but puts other keys in the place of these.
                masked = getattr(layer.self_attn, "masked_key_indices", None)
                if masked is not None:
                    same[masked[2][masked[1] == head]] = False
                heads.append(same.nonzero().flatten().tolist())
            found.append(heads)
        return found


def rounded(logits):
    return [float(f"{x:.7g}") for x in logits.tolist()]


@torch.no_grad()
def run(press, prompt, continuation):
    # Attention that is observed has to be computed in the open; DuoAttention refuses that.
    eager = isinstance(getattr(press, "press", None), ObservedAttentionPress)
    attention = "eager" if eager else "sdpa"
    model = transformers.AutoModelForCausalLM.from_pretrained(CHECKPOINT, dtype=torch.float32, attn_implementation=attention)
    model.eval()
    seen, cache, logits = Seen(model), transformers.DynamicCache(), []
    with press(model) if press else torch.no_grad():
        model(torch.tensor([prompt]), past_key_values=cache)
        for i, token in enumerate(continuation):
            kept = seen.held(model, cache)
            position = torch.tensor([[PROMPT + i]])
            logits.append(rounded(model(torch.tensor([[token]]), past_key_values=cache, position_ids=position).logits[0, -1]))
    return dict(kept=kept, logits=logits)


def main():
    transformers.utils.logging.disable_progress_bar()
    texts = json.loads((CHECKPOINT / "reference.json").read_text())["sequences"]
    prompt, continuation = texts[0]["ids"], texts[1]["ids"][:STEPS]
    assert len(prompt) == PROMPT
    runs = [dict(policy=policy, **run(press, prompt, continuation)) for policy, press in policies()]
    versions = {of.__name__: of.__version__ for of in (torch, transformers)}
    reference = dict(kvpress="0.5.5", **versions, prompt=prompt, continuation=continuation, columns=columns(), runs=runs)
    Path(sys.argv[1]).write_text(json.dumps(reference, separators=(",", ":")) + "\n")


main()

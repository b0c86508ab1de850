"""Tiny checkpoints of every family, and the logits of the authors' programs in Hugging Face transformers.

    python3 -m venv venv && venv/bin/pip install torch==2.5.1 transformers==4.51.3
    venv/bin/python model/references/make.py model/tests/data/families

SmolLM3, and the windows of Qwen by layer, came with transformers 4.53.3:

    venv/bin/pip install transformers==4.53.3
    venv/bin/python model/references/make.py model/tests/data/families smollm3 qwen2-window

Gemma 4, Granite, and encoders, by torch==2.15.0 and transformers==5.24.0:

    venv/bin/python model/references/make.py model/tests/data/families gemma4 gemma4-values gemma4-shared
    venv/bin/python model/references/make.py model/tests/data/families granite granite-sinks
    venv/bin/python model/references/make.py model/tests/data/encoders bert roberta distilbert vit
    venv/bin/python model/references/make.py model/tests/data/encoders bert-masked roberta-masked distilbert-masked

The ViT needs pillow==13.0.0 as well.

Each directory gets `config.json` and `model.safetensors` as transformers writes them, with weights in f16, and
`reference.json`: sequences of token ids and the logits of every position, of the classes, or of the words in the
place of the mask, computed in f32 from the rounded weights. A ViT gets `image.png` and `preprocessor_config.json`, too, and `reference.json` has the bytes of the
pixels that its authors' program makes of the image, row by row, in hexadecimal.
Gains are far from one, biases far from zero, and scores so large that attention is far from uniform: a step that is
left out, or done twice, changes the logits. Windows are shorter than the sequences, and the longer sequence reaches
beyond the lengths at which scaled rotary embeddings change. Equal versions give equal files.
"""

import json
import sys
import zlib
from pathlib import Path

import torch
import transformers

LONG, SHORT = 44, 11

# Where the second text of a pair begins.
SECOND = 6

SHAPE = dict(
    vocab_size=72,
    hidden_size=32,
    intermediate_size=56,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=64,
    bos_token_id=1,
    eos_token_id=2,
    pad_token_id=0,
)


def changed(**keys):
    return {key: value for key, value in {**SHAPE, **keys}.items() if value != "absent"}


LLAMA3 = dict(
    rope_type="llama3", factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=16
)

LONG_ROPE = dict(
    type="longrope",
    short_factor=[1.0, 1.05, 1.2, 1.5],
    long_factor=[1.0, 1.3, 2.5, 4.0],
)

GRANITE = dict(
    embedding_multiplier=0.25,
    residual_multiplier=0.4,
    attention_multiplier=0.2,
    logits_scaling=5.0,
)

# Layers that see all tokens have longer heads than those with a window.
GEMMA4 = dict(
    head_dim=8,
    global_head_dim=16,
    sliding_window=9,
    layer_types=["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
    num_hidden_layers=4,
    hidden_size_per_layer_input=0,
    final_logit_softcapping=5.0,
    rope_parameters=dict(
        sliding_attention=dict(rope_type="default", rope_theta=50.0),
        full_attention=dict(rope_type="proportional", partial_rotary_factor=0.25, rope_theta=1000.0),
    ),
)

# Two layers of each kind read the keys and values of an earlier one, of which neither is the first.
GEMMA4_SHARED = GEMMA4 | dict(
    layer_types=["sliding_attention"] * 2 + ["full_attention"] * 2 + ["sliding_attention", "full_attention"] * 2,
    num_hidden_layers=8,
    num_kv_shared_layers=4,
    use_double_wide_mlp=True,
    hidden_size_per_layer_input=24,
    vocab_size_per_layer_input=72,
)

# The same for encoders. Three classes, so that an answer is more than a sign.
CLASSES = {0: "no", 1: "perhaps", 2: "yes"}
ENCODERS = {
    "bert": ("bert", changed(num_key_value_heads="absent", type_vocab_size=2, id2label=CLASSES)),
    "roberta": (
        "roberta",
        changed(num_key_value_heads="absent", type_vocab_size=1, id2label=CLASSES, pad_token_id=1, bos_token_id=0),
    ),
    "distilbert": (
        "distilbert",
        dict(
            vocab_size=72,
            max_position_embeddings=64,
            dim=32,
            hidden_dim=56,
            n_layers=3,
            n_heads=4,
            pad_token_id=0,
            id2label=CLASSES,
        ),
    ),
}

# The same with the head of words, whose mask is the token 4 of `WORDS`.
MASK = 4
MASKED = {
    f"{name}-masked": (kind, {key: value for key, value in keys.items() if key != "id2label"})
    for name, (kind, keys) in ENCODERS.items()
}
# Positions begin behind this one.
MASKED["roberta-masked"][1]["pad_token_id"] = 3

VIT = dict(
    image_size=32,
    patch_size=8,
    hidden_size=32,
    intermediate_size=56,
    num_hidden_layers=2,
    num_attention_heads=4,
    id2label=CLASSES,
)

# Directory: model type, keys of its configuration.
FAMILIES = {
    "llama3": ("llama", changed(rope_theta=500.0, rope_scaling=LLAMA3, tie_word_embeddings=True)),
    "mistral": ("mistral", changed(head_dim=12, sliding_window=9)),
    "qwen2": ("qwen2", changed(tie_word_embeddings=True, use_sliding_window=False, sliding_window=64)),
    "qwen2-window": ("qwen2", changed(use_sliding_window=True, sliding_window=7, max_window_layers=1)),
    "qwen3": ("qwen3", changed(head_dim=12, rope_theta=1000.0)),
    "smollm3": ("smollm3", changed(num_hidden_layers=4, tie_word_embeddings=True)),
    "granite": ("granite", changed(tie_word_embeddings=True, attention_bias=True, mlp_bias=True, **GRANITE)),
    "granite-sinks": (
        "granite_swa",
        changed(num_hidden_layers=4, sliding_window=9, layer_rope_theta=[0.0, 50.0, 50.0, 1000.0], **GRANITE),
    ),
    "phi3": ("phi3", changed(sliding_window=30)),
    "phi3-longrope": (
        "phi3",
        changed(rope_scaling=LONG_ROPE, original_max_position_embeddings=16, num_key_value_heads=4),
    ),
    "phi": ("phi", changed(partial_rotary_factor=0.5, num_key_value_heads=4)),
    "gpt_neox": (
        "gpt_neox",
        changed(rotary_pct=0.25, hidden_act="gelu", num_key_value_heads="absent", hidden_size=40, num_attention_heads=5),
    ),
    "opt": (
        "opt",
        changed(ffn_dim=56, word_embed_proj_dim=32, intermediate_size="absent", num_key_value_heads="absent"),
    ),
    "olmo2": ("olmo2", changed()),
    "gemma2": (
        "gemma2",
        changed(head_dim=12, query_pre_attn_scalar=10, sliding_window=9, attn_logit_softcapping=6.0,
                final_logit_softcapping=5.0),
    ),
    "gemma3": (
        "gemma3_text",
        changed(head_dim=12, query_pre_attn_scalar=10, sliding_window=9, sliding_window_pattern=3, num_hidden_layers=4,
                rope_theta=1000.0, rope_local_base_freq=50.0, rope_scaling=dict(rope_type="linear", factor=2.0)),
    ),
    "gemma4": ("gemma4_text", changed(**GEMMA4, attention_k_eq_v=True, num_global_key_value_heads=1)),
    "gemma4-values": ("gemma4_text", changed(**GEMMA4, num_key_value_heads=4)),
    # As E2B and E4B: embeddings by layer, and layers without keys and values, whose MLP is twice as wide.
    "gemma4-shared": ("gemma4_text", changed(**GEMMA4_SHARED)),
}


# What came with later versions.
LATER = ("smollm3", "qwen2-window", "gemma4", "gemma4-values", "gemma4-shared", "granite", "granite-sinks")


def fill(name, parameter, kind):
    """Random values of the size of trained ones."""
    gemma, less_one = kind.startswith("gemma"), kind in ("gemma2", "gemma3_text")
    leaf = name.rsplit(".", 1)[-1]
    if parameter.dim() == 1 and "norm" in name.lower() and leaf == "weight":
        parameter.normal_(0.0 if less_one else 1.0, 0.35)
    elif leaf == "sinks":
        # As large as scores.
        parameter.normal_(1.0, 1.5)
    elif parameter.dim() == 1:
        parameter.normal_(0.0, 0.3)
    elif name.endswith("patch_embeddings.projection.weight"):
        parameter.normal_(0.0, parameter[0].numel() ** -0.5)
    elif "embed" in name and "embed_out" not in name:
        parameter.normal_(0.0, parameter.shape[1] ** -0.5 if gemma else 1.0)
    else:
        # Larger queries and keys: scores spread by a few units.
        sharp = any(part in name for part in ("q_proj", "k_proj", "qkv_proj", "query_key_value", ".query.", ".key.", "q_lin", "k_lin"))
        parameter.normal_(0.0, (1.6 if sharp else 1.1) * parameter.shape[1] ** -0.5)


WORDS = "[PAD] [UNK] [CLS] [SEP] [MASK] hello world ##s ##ing go the a film was very good bad not , . ! caf ##e 中"
PAIR = ["the film", "hello worlds"]
TEXTS = ["Hello worlds, the FILM was not very good!", "Café 中中 goings", "", "unheard of"]


def write_words(path):
    """A tokenizer as BERT's are, of a few words; texts, and what it makes of them."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    words = WORDS.split()
    tokenizer = Tokenizer(models.WordPiece({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer.decoder = decoders.WordPiece(prefix="##")
    tokenizer.add_special_tokens(words[:5])
    tokenizer.save(str(path))
    both = tokenizer.encode(*PAIR)
    pair = {"pair": PAIR, "ids": both.ids, "second": both.type_ids.index(1)}
    return [{"text": text, "ids": tokenizer.encode(text).ids} for text in TEXTS] + [pair]


def picture(width, height):
    """Waves of three colours with noise and an edge."""
    y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    waves = torch.stack([torch.sin(x / 7.0), torch.sin(y / 5.0), torch.sin((x + y) / 3.0)], -1)
    edge = (x > 2 * y).float()[..., None]
    return (128 + 60 * waves + 30 * edge + 12 * torch.randn(height, width, 3)).clamp(0, 255).byte().numpy()


def write_image(path, model):
    """An image as a PNG, how it is read, its pixels when it was read, and the logits of its classes."""
    from PIL import Image
    from transformers import ViTImageProcessorPil

    image = Image.fromarray(picture(57, 43))
    image.save(path / "image.png")
    side = model.config.image_size
    half = [0.5, 0.5, 0.5]
    processor = ViTImageProcessorPil(size=dict(height=side, width=side), image_mean=half, image_std=half)
    processor.save_pretrained(path)
    sequences = []
    for resample, name in ((2, "bilinear"), (3, "bicubic")):
        values = processor(image, resample=resample, return_tensors="pt").pixel_values
        pixels = ((values[0] * 0.5 + 0.5) * 255).round().byte().permute(1, 2, 0)
        logits = [[float(f"{x:.7g}") for x in model(values).logits[0].tolist()]]
        sequences.append({"resample": name, "pixels": bytes(pixels.flatten().tolist()).hex(), "logits": logits})
    return sequences


def built(auto, name, kind, keys):
    """A model with random weights, rounded to f16."""
    torch.manual_seed(zlib.crc32(name.encode()))
    config = transformers.AutoConfig.for_model(kind, **keys)
    config._attn_implementation = "eager"
    model = auto.from_config(config, attn_implementation="eager")
    model.float().eval()
    for parameter_name, parameter in model.named_parameters():
        fill(parameter_name, parameter, kind)
        parameter.copy_(parameter.half().float())
    # Gemma 4 stores the number that a layer's sum is multiplied by as a buffer.
    for buffer_name, buffer in model.named_buffers():
        if buffer_name.endswith("layer_scalar"):
            buffer.uniform_(0.4, 1.6)
            buffer.copy_(buffer.half().float())
    return model


@torch.no_grad()
def make_vit(out):
    model = built(transformers.AutoModelForImageClassification, "vit", "vit", VIT)
    path = out / "vit"
    path.mkdir(exist_ok=True)
    sequences = write_image(path, model)
    model.half().save_pretrained(path)
    reference = {"transformers": transformers.__version__, "torch": torch.__version__, "sequences": sequences}
    (path / "reference.json").write_text(json.dumps(reference, separators=(",", ":")) + "\n")
    print("vit: logits", sequences[0]["logits"])


@torch.no_grad()
def make(name, out):
    kind, keys = (FAMILIES | ENCODERS | MASKED)[name]
    masked = name in MASKED
    encoder = masked or name in ENCODERS
    auto = transformers.AutoModelForSequenceClassification if encoder else transformers.AutoModelForCausalLM
    auto = transformers.AutoModelForMaskedLM if masked else auto
    model = built(auto, name, kind, keys)
    config = model.config

    sequences = []
    for length in (LONG, SHORT):
        # Ids below 3 are special: RoBERTa gives padding no position.
        ids = torch.randint(MASK + 1 if masked else 3 if encoder else 0, config.vocab_size, (1, length))
        # The shorter text is a pair where the model knows of two.
        pair = dict(second=SECOND) if length == SHORT and encoder and getattr(config, "type_vocab_size", 1) > 1 else {}
        segments = dict(token_type_ids=(torch.arange(length) >= SECOND).long()[None]) if pair else {}
        place = dict(mask=length // 3) if masked else {}
        if masked:
            ids[0, place["mask"]] = MASK
        logits = model(ids, **segments).logits if encoder else model(ids, use_cache=False).logits[0]
        logits = logits[:, place["mask"]] if masked else logits
        sequences.append({**pair, **place, "ids": ids[0].tolist(), "logits": [[float(f"{x:.7g}") for x in row] for row in logits.tolist()]})

    model.half().save_pretrained(out / name)
    (out / name / "generation_config.json").unlink(missing_ok=True)
    reference = {"transformers": transformers.__version__, "torch": torch.__version__, "sequences": sequences}
    if kind == "bert":
        texts = write_words(out / name / "tokenizer.json")
        if not masked:
            reference["texts"] = texts
    (out / name / "reference.json").write_text(json.dumps(reference, separators=(",", ":")) + "\n")
    spread = torch.tensor(sequences[0]["logits"]).std().item()
    size = sum(file.stat().st_size for file in (out / name).iterdir())
    print(f"{name}: logits spread by {spread:.2f}, {size} bytes")


def main():
    out = Path(sys.argv[1])
    wanted = sys.argv[2:] or [n for n in FAMILIES if n not in LATER]
    for name in wanted:
        make_vit(out) if name == "vit" else make(name, out)


if __name__ == "__main__":
    main()

"""Tiny checkpoints in the forms of other programs with few bits, and the numbers that these programs make of them.

    python3 -m venv venv
    venv/bin/pip install torch==2.15.0 safetensors==0.8.0 compressed-tensors==0.20.0 bitsandbytes==0.50.2
    venv/bin/python model/references/forms.py model/tests/data/forms

Each directory gets `config.json` and `model.safetensors` in the form, and `reference.safetensors` with the same model
in plain floating point. compressed-tensors and bitsandbytes pack and unpack by their own programs. For GPTQ, AWQ and
FP8 the integers, zeros and scales are drawn here and packed as is published; the numbers follow from what was drawn,
not from what was packed. Equal versions give equal files.
"""

import json
import sys
import zlib
from pathlib import Path

import torch
from safetensors.torch import save_file

CONFIG = dict(
    model_type="llama",
    architectures=["LlamaForCausalLM"],
    vocab_size=12,
    hidden_size=16,
    intermediate_size=24,
    num_hidden_layers=1,
    num_attention_heads=2,
    num_key_value_heads=2,
    max_position_embeddings=32,
    tie_word_embeddings=True,
)

LAYER = "model.layers.0"

# Outputs and inputs.
MATRICES = {
    "self_attn.q_proj": (16, 16),
    "self_attn.k_proj": (16, 16),
    "self_attn.v_proj": (16, 16),
    "self_attn.o_proj": (16, 16),
    "mlp.gate_proj": (24, 16),
    "mlp.up_proj": (24, 16),
    "mlp.down_proj": (16, 24),
}


def plain(dtype):
    """What has no few bits."""
    gains = {f"{LAYER}.{name}_layernorm.weight": (16,) for name in ("input", "post_attention")}
    shapes = {"model.embed_tokens.weight": (12, 16), "model.norm.weight": (16,), **gains}
    return {name: (torch.randn(shape) * 0.3 + 1.0).to(dtype) for name, shape in shapes.items()}


def into_words(integers, bits, axis, places=None):
    """Neighbours along an axis in words of 32 bits: the i-th at the place `places[i]` from the lowest bits."""
    per = 32 // bits
    places = places or range(per)
    moved = integers.long().movedim(axis, -1)
    count = moved.shape[-1]
    words = torch.zeros(*moved.shape[:-1], (count + per - 1) // per, dtype=torch.long)
    for i in range(count):
        words[..., i // per] |= moved[..., i] << (bits * places[i % per])
    return words.movedim(-1, axis).contiguous()


def signed(words):
    """Words as I32."""
    return (((words + 2**31) % 2**32) - 2**31).to(torch.int32)


def drawn(bits, groups, outputs, inputs, dtype):
    codes = torch.randint(0, 2**bits, (inputs, outputs))
    # A zero less 1 fits as well.
    zeros = torch.randint(1, 2**bits, (groups, outputs))
    return codes, zeros, (torch.rand(groups, outputs) * 0.05 + 0.001).to(dtype)


def gptq(bits, size, version, order):
    def matrix(name, outputs, inputs):
        groups = inputs // size if size > 0 else 1
        codes, zeros, scales = drawn(bits, groups, outputs, inputs, torch.float16)
        index = torch.arange(inputs) // (size if size > 0 else inputs)
        index = index[torch.randperm(inputs)] if order else index
        less = 1 if version == "gptq" else 0
        packed = {
            "qweight": signed(into_words(codes, bits, 0)),
            "qzeros": signed(into_words(zeros - less, bits, 1)),
            "scales": scales,
            "g_idx": index.to(torch.int32),
        }
        number = scales[index] * (codes - zeros[index]).to(torch.float16)
        # Older programs write a bias for every matrix.
        packed["bias"] = torch.zeros(outputs, dtype=torch.float16)
        return {f"{name}.{part}": tensor for part, tensor in packed.items()}, number.T

    keys = dict(quant_method="gptq", bits=bits, group_size=size, desc_act=order, sym=False, checkpoint_format=version)
    return keys, matrix, torch.float16


# Neighbours of a word from its lowest bits on: the first, the third, ...
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]


def awq(size):
    places = [AWQ_ORDER.index(i) for i in range(8)]

    def matrix(name, outputs, inputs):
        codes, zeros, scales = drawn(4, inputs // size, outputs, inputs, torch.float16)
        index = torch.arange(inputs) // size
        packed = {
            "qweight": signed(into_words(codes, 4, 1, places)),
            "qzeros": signed(into_words(zeros, 4, 1, places)),
            "scales": scales,
        }
        number = (codes - zeros[index]).to(torch.float16) * scales[index]
        return {f"{name}.{part}": tensor for part, tensor in packed.items()}, number.T

    return dict(quant_method="awq", bits=4, group_size=size, version="gemm", zero_point=True), matrix, torch.float16


def fp8(block, scale_dtype):
    def matrix(name, outputs, inputs):
        codes = (torch.randn(outputs, inputs) * 60).clamp(-440, 440).to(torch.float8_e4m3fn)
        # The smallest numbers, too.
        codes[0, :8] = torch.arange(8).to(torch.uint8).view(torch.float8_e4m3fn)
        if block is None:
            scale = (torch.rand(1) * 0.01).to(scale_dtype)
            wide, parts = scale, {"weight_scale": scale, "input_scale": torch.rand(1)}
        else:
            grid = [-(-size // of) for size, of in zip((outputs, inputs), block)]
            scale = (torch.rand(grid) * 0.01).to(scale_dtype)
            wide = scale.repeat_interleave(block[0], 0).repeat_interleave(block[1], 1)[:outputs, :inputs]
            parts = {"weight_scale_inv": scale}
        packed = {"weight": codes, **parts}
        number = (codes.float() * wide.float()).to(scale_dtype)
        return {f"{name}.{part}": tensor for part, tensor in packed.items()}, number

    keys = dict(quant_method="fp8", fmt="e4m3", activation_scheme="static" if block is None else "dynamic")
    return keys | (dict(weight_block_size=block) if block else {}), matrix, torch.bfloat16


def compressed(form, dtype, **args):
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from compressed_tensors.quantization.utils import calculate_qparams

    weights = QuantizationArgs(**args)
    scheme = QuantizationScheme(targets=["Linear"], weights=weights)
    compressor = BaseCompressor.get_value_from_registry(form)

    def matrix(name, outputs, inputs):
        weight = (torch.randn(outputs, inputs) * 0.3 + 0.05).to(dtype)
        strategy = args["strategy"]
        size = {"group": weights.group_size, "channel": inputs, "tensor": outputs * inputs}[strategy]
        parts = weight.reshape(1 if strategy == "tensor" else outputs, -1, size)
        scale, zero = calculate_qparams(parts.amin(-1), parts.amax(-1), weights)
        if strategy == "tensor":
            scale, zero = scale.reshape(1), zero.reshape(1)
        state = {"weight": weight, "weight_scale": scale.to(dtype)}
        if not weights.symmetric:
            state["weight_zero_point"] = zero
        packed = compressor.compress(state, scheme)
        number = compressor.decompress(packed, scheme)["weight"]
        return {f"{name}.{part}": tensor.contiguous() for part, tensor in packed.items()}, number

    group = {"targets": ["Linear"], "weights": json.loads(weights.model_dump_json()), "input_activations": None}
    keys = dict(quant_method="compressed-tensors", format=form, config_groups={"group_0": group}, ignore=["lm_head"])
    return keys | dict(quantization_status="compressed", kv_cache_scheme=None), matrix, dtype


def eights():
    from bitsandbytes import functional

    def matrix(name, outputs, inputs):
        codes, scales, _ = functional.int8_vectorwise_quant((torch.randn(outputs, inputs) * 0.3).half())
        packed = {"weight": codes, "SCB": scales.float(), "weight_format": torch.tensor(0, dtype=torch.uint8)}
        number = functional.int8_vectorwise_dequant(codes, scales.float())
        return {f"{name}.{part}": tensor for part, tensor in packed.items()}, number

    return dict(quant_method="bitsandbytes", load_in_8bit=True, load_in_4bit=False), matrix, torch.float16


def fours(kind, nested, dtype):
    from bitsandbytes import functional

    def matrix(name, outputs, inputs):
        weight = (torch.randn(outputs, inputs) * 0.3).to(dtype)
        codes, state = functional.quantize_4bit(weight, blocksize=64, compress_statistics=nested, quant_type=kind)
        packed = {"weight": codes, **{f"weight.{part}": x for part, x in state.as_dict(packed=True).items()}}
        # Blocks go on from line to line, which the program's kernel for processors knows of one long line alone.
        state.shape = torch.Size((1, outputs * inputs))
        number = functional.dequantize_4bit(codes, state).reshape(outputs, inputs)
        return {f"{name}.{part}": tensor.clone() for part, tensor in packed.items()}, number

    keys = dict(quant_method="bitsandbytes", load_in_8bit=False, load_in_4bit=True, bnb_4bit_quant_type=kind)
    return keys | dict(bnb_4bit_quant_storage="uint8", bnb_4bit_use_double_quant=nested), matrix, dtype


INT4 = dict(num_bits=4, type="int", strategy="group", group_size=8)
INT8 = dict(num_bits=8, type="int", strategy="channel")

FORMS = {
    "gptq": lambda: gptq(4, 8, "gptq", order=True),
    "gptq-8": lambda: gptq(8, -1, "gptq", order=False),
    "gptq-v2": lambda: gptq(4, 8, "gptq_v2", order=False),
    "awq": lambda: awq(8),
    "fp8-block": lambda: fp8([16, 16], torch.bfloat16),
    "fp8-tensor": lambda: fp8(None, torch.float32),
    "compressed-int4": lambda: compressed("pack-quantized", torch.bfloat16, symmetric=True, **INT4),
    "compressed-int4-zeros": lambda: compressed("pack-quantized", torch.float16, symmetric=False, **INT4),
    "compressed-int8": lambda: compressed("int-quantized", torch.bfloat16, symmetric=True, **INT8),
    "compressed-int8-zeros": lambda: compressed("int-quantized", torch.float32, symmetric=False, **INT8),
    "compressed-int8-tensor": lambda: compressed(
        "int-quantized", torch.float16, symmetric=True, **INT8 | dict(strategy="tensor")
    ),
    "compressed-fp8": lambda: compressed("float-quantized", torch.bfloat16, symmetric=True, **INT8 | dict(type="float")),
    "bitsandbytes-8": eights,
    "bitsandbytes-nf4": lambda: fours("nf4", False, torch.bfloat16),
    "bitsandbytes-nested": lambda: fours("nf4", True, torch.float16),
    "bitsandbytes-fp4": lambda: fours("fp4", False, torch.float32),
}


@torch.no_grad()
def make(form, out):
    torch.manual_seed(zlib.crc32(form.encode()))
    keys, matrix, dtype = FORMS[form]()
    tensors = plain(dtype)
    reference = dict(tensors)
    for name, (outputs, inputs) in MATRICES.items():
        packed, number = matrix(f"{LAYER}.{name}", outputs, inputs)
        tensors |= packed
        reference[f"{LAYER}.{name}.weight"] = number.contiguous()
    path = out / form
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(CONFIG | dict(quantization_config=keys), indent=1) + "\n")
    save_file(tensors, path / "model.safetensors")
    save_file(reference, path / "reference.safetensors")
    print(form, sum(file.stat().st_size for file in path.iterdir()), "bytes")


def main():
    for form in sys.argv[2:] or FORMS:
        make(form, Path(sys.argv[1]))


main()

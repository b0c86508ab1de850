"""LoRA adapters to the tiny checkpoints of make.py, and the logits of Hugging Face PEFT.

    python3 -m venv venv && venv/bin/pip install torch==2.15.0 transformers==5.24.0 peft==0.21.2
    venv/bin/python model/references/adapters.py model/tests/data/families model/tests/data/adapters

Each directory gets `adapter_config.json` and `adapter_model.safetensors` as PEFT writes them, in f32, and
`reference.json`: sequences of token ids with the logits of every position, computed in f32 by the base with its
adapter, and the largest difference to the model into which PEFT merged it. Factors are so large that a layer whose
adapter is left out, or scaled otherwise, changes the logits.
"""

import json
import sys
import zlib
from pathlib import Path

import peft
import torch
import transformers

ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]

# Directory, which is that of the base and what differs: settings.
ADAPTERS = {
    "llama3": dict(r=4, lora_alpha=8, target_modules=ALL),
    "qwen2-patterns": dict(
        r=3, lora_alpha=6, target_modules=ALL, layers_to_transform=[0, 2], use_rslora=True,
        rank_pattern={"q_proj": 5},
        alpha_pattern={"v_proj": 9, "layers.2.self_attn.v_proj": 1, "layers.2.mlp.down_proj": 3},
    ),
    "gpt_neox": dict(
        r=3, lora_alpha=6, target_modules=["query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"],
    ),
    "phi": dict(r=2, lora_alpha=4, target_modules=["q_proj", "v_proj", "fc1"]),
    "phi3": dict(r=4, lora_alpha=4, target_modules=["qkv_proj", "gate_up_proj"]),
    "opt": dict(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj", "out_proj", "fc1", "fc2"]),
    "gemma2": dict(r=4, lora_alpha=8, target_modules=ALL),
}


@torch.no_grad()
def make(name, bases, out):
    torch.manual_seed(zlib.crc32(name.encode()))
    load = lambda: transformers.AutoModelForCausalLM.from_pretrained(
        bases / name.split("-")[0], dtype=torch.float32, attn_implementation="eager"
    ).eval()
    model = peft.get_peft_model(load(), peft.LoraConfig(**ADAPTERS[name], task_type="CAUSAL_LM")).eval()
    for parameter_name, parameter in model.named_parameters():
        if "lora_" in parameter_name:
            side = parameter.shape[1] if "lora_A" in parameter_name else parameter.shape[1] * 6
            parameter.normal_(0.0, side**-0.5)
    path = out / name
    path.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(path)
    (path / "README.md").unlink(missing_ok=True)
    settings = json.loads((path / "adapter_config.json").read_text())
    # Not the path of this machine, and in one order.
    settings["base_model_name_or_path"] = name.split("-")[0]
    settings["target_modules"] = sorted(settings["target_modules"])
    settings = json.loads(json.dumps(settings, sort_keys=True))
    # Of patterns that fit the first counts, and PEFT itself writes them in the order of their names.
    settings["alpha_pattern"] = ADAPTERS[name].get("alpha_pattern", {})
    (path / "adapter_config.json").write_text(json.dumps(settings, indent=2) + "\n")

    base, texts = load(), json.loads((bases / name.split("-")[0] / "reference.json").read_text())["sequences"]
    sequences, moved = [], 0.0
    for text in texts:
        ids = torch.tensor([text["ids"]])
        logits = model(ids, use_cache=False).logits[0]
        moved = max(moved, float((logits - base(ids, use_cache=False).logits[0]).abs().max()))
        sequences.append({"ids": text["ids"], "logits": [[float(f"{x:.7g}") for x in row] for row in logits.tolist()]})
    merged = model.merge_and_unload()
    apart = max(
        float((merged(torch.tensor([s["ids"]]), use_cache=False).logits[0] - torch.tensor(s["logits"])).abs().max())
        for s in sequences
    )
    reference = {"peft": peft.__version__, "torch": torch.__version__, "merged": apart, "sequences": sequences}
    (path / "reference.json").write_text(json.dumps(reference, separators=(",", ":")) + "\n")
    print(f"{name}: logits move by {moved:.3g}, merged apart by {apart:.2g}")


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    for name in sys.argv[3:] or ADAPTERS:
        make(name, Path(sys.argv[1]), Path(sys.argv[2]))

"""The keys of `config.json` that Hugging Face transformers reads, family by family, with their defaults.

    python3 -m venv venv && venv/bin/pip install torch==2.15.0 transformers==5.24.0
    venv/bin/python model/references/keys.py model/tests/data/keys.json

`defaults` are the fields of a family's configuration class, its base included; `others` are names that the class takes
beside its fields, second names of fields, and what the program of the model looks up in its configuration. `rope` has
the keys of a rotary embedding.
"""

import dataclasses
import importlib
import inspect
import json
import re
import sys

import transformers
from transformers import masking_utils
from transformers.configuration_utils import PreTrainedConfig
from transformers.modeling_rope_utils import RopeParameters
from transformers.modeling_rope_utils import RotaryEmbeddingConfigMixin as Rope
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

FAMILIES = (
    "gpt2 llama mistral qwen2 qwen3 smollm3 granite granite_swa phi3 phi gpt_neox opt olmo2 gemma2 gemma3_text "
    "gemma4_text bert roberta distilbert vit"
).split()

# Methods and fields that are made of others, which no file has.
MADE = {"get_text_config", "is_heterogeneous", "kv_sharing_modes", "name_or_path", "to_dict"}


def popped(*sources):
    """Names that are looked up beside the fields of a class."""
    source = "".join(inspect.getsource(s) for s in sources)
    return set(re.findall(r"(?:kwargs\.(?:pop|get|setdefault)|(?:get|has)attr)\((?:\s*|self, )\"(\w+)\"", source))


def looked_up(source):
    """Names that a program looks up in a configuration."""
    return set(re.findall(r"config(?:\.|, \")([a-z]\w*)", source))


def family(kind):
    config = CONFIG_MAPPING[kind]
    fields = {}
    for field in dataclasses.fields(config):
        default = None if field.default is dataclasses.MISSING else field.default
        fields[field.name] = default
    package = config.__module__.rsplit(".", 1)[0]
    models = importlib.import_module(package + ".modeling_" + package.rsplit(".", 1)[1])
    # The parts for text of a module that has others as well.
    name = config.__name__.removesuffix("Config")
    own = [c for n, c in vars(models).items() if inspect.isclass(c) and n.startswith(name) and c.__module__ == models.__name__]
    source = "".join(inspect.getsource(c) for c in own)
    others = looked_up(source) | looked_up(inspect.getsource(masking_utils)) | {"transformers_weights"}
    others |= popped(config, PreTrainedConfig.__post_init__) | set(config.attribute_map)
    if "rope_parameters" in fields:
        others |= popped(Rope.convert_rope_params_to_dict, Rope.standardize_rope_params)
    return {"defaults": dict(sorted(fields.items())), "others": sorted(others - set(fields) - MADE)}


def main():
    families = ",\n".join(f"{json.dumps(kind)}: {json.dumps(family(kind))}" for kind in FAMILIES)
    rope = json.dumps(sorted(RopeParameters.__annotations__))
    with open(sys.argv[1], "w") as file:
        file.write(f'{{"transformers": "{transformers.__version__}",\n"rope": {rope},\n"families": {{\n{families}}}}}\n')


main()

"""Directories of small tokenizers and chat templates, and what transformers makes of texts and conversations with them.

    pip install transformers==5.24.0
    python crates/tokenizer/references/make.py > crates/tokenizer/tests/data/published.json

Each case is a directory (names and contents of its files) and what `AutoTokenizer.from_pretrained` makes of it: ids by
text, and what `decode` makes of the ids without special tokens. Each template has the text of the conversation below,
at the time below, or null where transformers refuses it.
"""

import datetime
import json
import os
import tempfile

from transformers import AutoTokenizer, logging
from transformers.utils import chat_template_utils

logging.set_verbosity_error()

TEXTS = ["Héllo the 漢字", "hi <|im_start|>the", " a  the <new> [MASK] hi"]

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "hello", "Hello", "h", "##i", "a", "漢", "字", "Hé", "##llo"]


def bytes_alphabet():
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in plain]
    return [chr(b) for b in plain] + [chr(256 + i) for i in range(len(others))]


BYTES = bytes_alphabet() + ["th", "the", "Ġt", "Ġthe", "hi"]
BYTE_MERGES = ["t h", "th e", "Ġ t", "Ġt he", "h i"]
BYTE_MERGES[3:4] = ["Ġ the"]
PIECES = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)] + list("▁thei") + ["th", "the", "▁the", "hi"]
PIECE_MERGES = ["t h", "th e", "▁ the", "h i"]


def ids(words):
    return {word: i for i, word in enumerate(words)}


def file(model, **parts):
    empty = dict.fromkeys(["truncation", "padding", "normalizer", "pre_tokenizer", "post_processor", "decoder"])
    return {"version": "1.0", **empty, "added_tokens": [], "model": model, **parts}


WORDPIECE = {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100,
             "vocab": ids(WORDS)}
BPE = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
       "fuse_unk": False, "byte_fallback": False}
BYTE_BPE = {**BPE, "vocab": ids(BYTES), "merges": BYTE_MERGES}
PIECE_BPE = {**BPE, "fuse_unk": True, "byte_fallback": True, "vocab": ids(PIECES), "merges": PIECE_MERGES}
LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}


def bert(**normalizer):
    stages = {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None,
              "lowercase": True, **normalizer}
    return file(WORDPIECE, normalizer=stages, pre_tokenizer={"type": "BertPreTokenizer"},
                decoder={"type": "WordPiece", "prefix": "##", "cleanup": True})


def level(**parts):
    return file(BYTE_BPE, **{"pre_tokenizer": LEVEL, "decoder": LEVEL, **parts})


def pieces(**parts):
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    return file(PIECE_BPE, **{"normalizer": replace, **parts})


def token(content, **flags):
    return {"content": content, "lstrip": False, "rstrip": False, "normalized": False, "single_word": False,
            "special": True, **flags}


def typed(kind):
    return {"model_type": kind}


MARKS = {"270": token("<|im_start|>"), "271": token("<new>", special=False, normalized=True)}

CASES = {
    "lower case by the configuration": [typed("bert"), bert(lowercase=False), {"do_lower_case": True}],
    "no lower case by the configuration": [typed("bert"), bert(), {"do_lower_case": False, "tokenizer_class": "BertTokenizer"}],
    "lower case where nothing is said": [typed("distilbert"), bert(lowercase=False), None],
    "accents by the configuration": [typed("bert"), bert(), {"do_lower_case": False, "strip_accents": True}],
    "Chinese by the configuration": [typed("bert"), bert(), {"tokenize_chinese_chars": False}],
    "the file of no class": [typed("bert"), bert(lowercase=False), {"tokenizer_class": "PreTrainedTokenizerFast", "do_lower_case": True}],
    "other names of ends": [typed("bert"), bert(), {"cls_token": "a", "sep_token": "the"}],
    "words as they are": [typed("bert"), None, {"do_lower_case": False}, {"vocab.txt": "\n".join(WORDS) + "\n"}],
    "a space before a text": [typed("gpt2"), level(), {"add_prefix_space": True}],
    "ends asked for in vain": [typed("gpt2"), level(), {"add_bos_token": True, "bos_token": "hi"}],
    "vocabulary and merges": [typed("opt"), None, {"tokenizer_class": "GPT2Tokenizer", "add_bos_token": True, "bos_token": "hi"},
                              {"vocab.json": ids(BYTES), "merges.txt": "#version: 0.2\n" + "\n".join(BYTE_MERGES) + "\n"}],
    "ends of RoBERTa": [typed("roberta"), level(), {"cls_token": "hi", "sep_token": "the"}],
    "the stages of Qwen2": [typed("qwen2"), level(), {"tokenizer_class": "LlamaTokenizerFast"}],
    "the stages of GPT-NeoX": [typed("gpt_neox"), level(), {"tokenizer_class": "GPTNeoXTokenizerFast"}],
    "a class that is wrong": [typed("llama"), level(), {"tokenizer_class": "LlamaTokenizerFast"}],
    "a type that trusts no class": [typed("mistral"), pieces(), {"tokenizer_class": "LlamaTokenizer"}],
    "pieces of Llama": [typed("llama"), pieces(), {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>"}],
    "pieces of old": [typed("llama"), pieces(), {"tokenizer_class": "LlamaTokenizer", "legacy": True}],
    "pieces without a space": [typed("llama"), pieces(), {"tokenizer_class": "LlamaTokenizer", "add_prefix_space": False}],
    "pieces of Gemma": [typed("gemma2"), pieces(), {}],
    "marks of the configuration": [typed("llama"), level(), {"added_tokens_decoder": MARKS}],
    "marks that are there already": [typed("llama"), level(added_tokens=[{"id": 5, **token("&", special=False)}]),
                                     {"added_tokens_decoder": {"5": token("&"), "90": token("the", rstrip=True)}}],
    "marks in files of their own": [typed("llama"), level(), {"additional_special_tokens": ["<|im_start|>"]},
                                    {"added_tokens.json": {"<|im_start|>": 261, "<new>": 262}}],
    "named tokens in a file of their own": [typed("llama"), level(), {"bos_token": "<new>"},
                                            {"special_tokens_map.json": {"eos_token": token("<|im_start|>"), "bos_token": "hi"}}],
    "named tokens beside marks": [typed("llama"), level(), {"added_tokens_decoder": MARKS, "mask_token": "[MASK]"},
                                  {"special_tokens_map.json": {"eos_token": "the"}}],
    "named tokens of the model's own": [typed("llama"), level(), {"image_token": "<new>", "extra_special_tokens": {"boi_token": "[MASK]"}}],
    "a text that was cut": [typed("llama"), level(truncation={"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0},
                            padding={"strategy": {"Fixed": 9}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0,
                                     "pad_type_id": 0, "pad_token": "!"}), None],
    "stages of published files": [typed("bert"), file(WORDPIECE, normalizer={"type": "Sequence", "normalizers": [
        {"type": "NFD"}, {"type": "Lowercase"}, {"type": "StripAccents"}]}, pre_tokenizer={"type": "Sequence", "pretokenizers": [
            {"type": "Whitespace"}, {"type": "Punctuation", "behavior": "Isolated"}]}), {"tokenizer_class": "PreTrainedTokenizerFast"}],
}


class Then(datetime.datetime):
    @classmethod
    def now(cls):
        return cls(2026, 11, 28, 17, 5, 9)


MESSAGES = [{"role": "user", "content": "it's"}, {"role": "assistant", "content": "<b> é"}]
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}

TEMPLATES = [
    # What is always given, and what is not.
    "{{ tools is none }} {{ documents is not none }} {{ tools is defined }} {{ x is defined }}",
    "{{ unk_token is defined }}{{ unk_token }}{{ bos_token + eos_token }}",
    "{{ unk_token + 'x' }}",
    "{{ nothing.there }}",
    "{{ nothing | tojson }}",
    "{{ raise_exception('no') }}",
    # Training marks are blocks of their own.
    "{% for m in messages %}{%- generation -%}{% set a = m.role %} {{ a }}{%- endgeneration -%}{% endfor %}{{ a }}",
    "{% generation %}",
    # Time.
    "{{ strftime_now('%d %B %Y, %H:%M:%S %a %j') }}{% if strftime_now is defined %}!{% endif %}",
    "{{ strftime_now('%-d %b %y %I %p %A %%') }}",
    # JSON.
    "{{ messages | tojson }}",
    "{{ {'b': [1, none, true], 'a': {}, 'c': [], 'd': {'e': 'f'}} | tojson(indent=2) }}",
    "{{ {'b': 1, 'a': [1.5, -2]} | tojson(separators=(',', ':'), sort_keys=true) }}",
    "{{ 'é😀' | tojson(ensure_ascii=true) }}{{ '/\\\\' ~ '\n\t\"' | tojson }}",
    "{{ [1, 2] | tojson(indent='>') }}{{ 7 | tojson }}{{ messages[0] | tojson(true) }}",
    # Values in texts.
    "{{ '%s-%d %05.1f %%' % (messages[0].role, 7, 3.14159) }}|{{ '%s' % messages[1].content | upper }}",
    "{{ \"it's %r\" % 'q' + 'x' }}{{ 17 % 5 }}{{ '%-4s|' % m['a'] if m else '%' }}",
    "{{ '%s %s' % (1,) }}",
    "{{ '%s' % ('%d' % 3) }}{{ ('a%sb' % 'c') | length }}{{ '%x' % 255 }}{{ '%s' % [1, 'a'] }}",
    # Texts, lists.
    "{{ 'a'.rjust(3) }}{{ 'b'.ljust(3, '.') }}{{ 'c'.center(4) }}{{ '-5'.zfill(4) }}",
    "{{ 'a,b,c'.rsplit(',', 1) }}{{ 'x-y'.partition('-')[2] }}{{ 'x-y-z'.rpartition('-')[0] }}{{ 'xy'.partition('-')[0] }}",
    "{{ 'abc'.removeprefix('a').removesuffix('c') }}{{ 'aB'.swapcase() }}{{ 'abc'.index('c') }}{{ 'a b  c'.rsplit() }}",
    "{{ [1, 'a', {'k': none}, \"it's\", 1.0, true] }}{{ 'x' * 3 }}{{ 7 // 2 }} {{ 1 / 2 }} {{ 2 ** 3 }}",
    "{{ messages[::-1][0].role }}{{ messages | map(attribute='role') | join(',') }}{{ messages | selectattr('role', 'equalto', 'user') | list | length }}",
    "{% set ns = namespace(a=1) %}{% for m in messages %}{% set ns.a = ns.a + loop.index0 %}{% endfor %}{{ ns.a }}",
    "{% for m in messages if m.role == 'user' %}{{ loop.first }}{{ loop.last }}{% endfor %}{% for x in [1, 2, 3] %}{% if x == 2 %}{% break %}{% endif %}{{ x }}{% endfor %}",
    "{% macro f(x, y='d') %}[{{ x }}{{ y }}]{% endmacro %}{{ f(1) }}{{ f(1, y=2) }}{{ messages[0].content | trim | capitalize | replace('t', 'T') }}",
    # Line ends, and what only looks like a tag.
    "a\r\nb{{ '\r\n' }}\rc\n",
    "{% raw %}{% generation %}{{ '%s' % x }}{% endraw %}{# '%s' % y #}{{ {'k': '}}'}['k'] }} { % {{ {'a': {'b': 1}}['a']['b'] }}",
    "  {% if true %}\n  x\n  {% endif %}\n{{- ' y' -}}\n z",
    "{{ '",
]

# Templates in the manner of families, in words of our own.
TEMPLATES += [
    # Llama 2, Mistral: turns in brackets, roles in turn.
    """{{ bos_token }}{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('Roles take turns: user, assistant, user.') }}{% endif %}{% if m.role == 'user' %}[INST] {{ m.content.strip() }} [/INST]
{%- else %} {{ m.content | trim }} {{ eos_token }}{% endif %}{% endfor %}""",
    # Llama 3: headers, and a date where there is a clock.
    """{{- bos_token }}{%- if not date_string is defined %}{%- if strftime_now is defined %}{%- set date_string = strftime_now("%d %b %Y") %}
{%- else %}{%- set date_string = "26 Jul 2024" %}{%- endif %}{%- endif %}{%- if messages[0]['role'] == 'system' %}
{%- set system_message = messages[0]['content'] | trim %}{%- set messages = messages[1:] %}{%- else %}{%- set system_message = "" %}{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\n\nToday: " + date_string + "\n\n" + system_message + "<|eot_id|>" }}
{%- for message in messages %}{{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' }}{%- endfor %}""",
    # Gemma: another name for one role, no system.
    """{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('No system here') }}{% endif %}
{%- for message in messages %}{%- if message['role'] == 'assistant' %}{% set role = 'model' %}{% else %}{% set role = message['role'] %}{% endif %}
{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}{% endfor %}""",
    # Qwen 2.5: a system text of its own, tools that nobody gave.
    """{%- if tools %}{{- '<|im_start|>system\n# Tools' }}{%- for tool in tools %}{{- tool | tojson }}{%- endfor %}{%- elif messages[0].role != 'system' %}
{{- '<|im_start|>system\nYou help.<|im_end|>\n' }}{%- endif %}{%- for message in messages %}
{%- if (message.role == "user") or (message.role == "assistant" and not message.tool_calls) %}
{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}{%- endif %}{%- endfor %}""",
    # Qwen 3: thoughts of earlier answers, a loop backwards.
    """{%- set ns = namespace(at=messages | length - 1, found=false) %}{%- for message in messages[::-1] %}
{%- set index = (messages | length - 1) - loop.index0 %}{%- if not ns.found and message.role == 'user' and message.content is string and not (message.content.startswith('<r>') and message.content.endswith('</r>')) %}
{%- set ns.found = true %}{%- set ns.at = index %}{%- endif %}{%- endfor %}{%- for message in messages %}{%- set content = message.content %}
{%- if '</think>' in content %}{%- set content = content.split('</think>')[-1].lstrip('\n') %}{%- endif %}
{{- '<|im_start|>' + message.role + '\n' + ('<think>\n\n</think>\n\n' if loop.index0 > ns.at and loop.last else '') + content + '<|im_end|>\n' }}{%- endfor %}
{%- if add_generation_prompt %}{%- if enable_thinking is defined and enable_thinking is false %}x{%- endif %}{%- endif %}""",
    # SmolLM3: training marks, a date, options that nobody gave.
    """{%- if enable_thinking is not defined -%}{%- set enable_thinking = true -%}{%- endif -%}{%- set mode = "/think" if enable_thinking else "/no_think" -%}
{{- "Mode: " ~ mode ~ ", " ~ strftime_now("%d %B %Y") ~ "\n" -}}{%- for message in messages -%}{%- set content = message.content if message.content is string else "" -%}
{%- if message.role == "assistant" -%}{%- generation -%}{{- "<|im_start|>assistant\n" + content.lstrip("\n") + "<|im_end|>\n" -}}{%- endgeneration -%}
{%- else -%}{{ "<|im_start|>" + message.role + "\n" + content + "<|im_end|>\n" }}{%- endif -%}{%- endfor -%}""",
    # Phi-3, Zephyr, OLMo 2: a mark for each role, and ends.
    """{% for message in messages %}{% if message['role'] == 'user' %}{{ '<|user|>\n' + message['content'] + '<|end|>\n' }}
{% elif message['role'] == 'assistant' %}{{ '<|assistant|>\n' + message['content'] + '<|end|>\n' }}{% endif %}{% if loop.last and add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}
{% endfor %}{% if not add_generation_prompt %}{{ eos_token }}{% endif %}""",
    # Granite: documents that nobody gave, and a mapping over roles.
    """{%- set given = documents is defined and documents -%}{{- '<|start_of_role|>system<|end_of_role|>' + strftime_now('%B %d, %Y') + ('.' if not given else '!') }}
{%- for message in messages %}{{- '\n<|start_of_role|>' + message['role'] + '<|end_of_role|>' + message['content'] + '<|end_of_text|>' }}{%- endfor %}
{%- for role, count in {'user': 1, 'assistant': 2}.items() %}{{ role ~ count }}{% endfor %}{{ messages | map(attribute='role') | list | tojson }}""",
]


def rendered(tokenizer, template):
    try:
        return tokenizer.apply_chat_template(MESSAGES, chat_template=template, tokenize=False)
    except Exception:
        return None


def main():
    directories = []
    for name, (config, tokenizer, settings, *more) in CASES.items():
        files = {"config.json": config, **(more[0] if more else {})}
        if tokenizer:
            files["tokenizer.json"] = tokenizer
        if settings is not None:
            files["tokenizer_config.json"] = settings
        files = {name: text if isinstance(text, str) else json.dumps(text, ensure_ascii=False) for name, text in files.items()}
        with tempfile.TemporaryDirectory() as path:
            for file_name, text in files.items():
                with open(os.path.join(path, file_name), "w", encoding="utf-8") as to:
                    to.write(text)
            made = AutoTokenizer.from_pretrained(path)
            answers = []
            for text in TEXTS:
                found = made(text)["input_ids"]
                answers.append({"text": text, "ids": found, "decoded": made.decode(found, skip_special_tokens=True)})
        directories.append({"name": name, "files": files, "answers": answers})
    chat_template_utils.datetime = Then
    with tempfile.TemporaryDirectory() as path:
        for name, text in {"config.json": typed("llama"), "tokenizer.json": level(), "tokenizer_config.json": TOKENS}.items():
            with open(os.path.join(path, name), "w", encoding="utf-8") as to:
                json.dump(text, to)
        tokenizer = AutoTokenizer.from_pretrained(path)
    templates = [{"template": template, "text": rendered(tokenizer, template)} for template in TEMPLATES]

    def lines(all):
        return "[\n" + ",\n".join(json.dumps(one, ensure_ascii=False) for one in all) + "\n]"

    print('{"directories": ' + lines(directories) + ',\n"templates": ' + lines(templates) + "}")


main()

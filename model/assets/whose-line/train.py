"""Trains the tiny BERT of this folder: whose words are these, Shakespeare's or TinyStories'?

    python train.py ../text .

needs torch and transformers. It writes config.json, model.safetensors (f16), tokenizer.json and dev.tsv: words from the
last fifth of each text, which the model has not seen, in the form of GLUE's SST-2. Every choice follows from the seed.
"""

import json
import random
import re
import sys
from pathlib import Path

import torch
from tokenizers import BertWordPieceTokenizer
from tokenizers.processors import BertProcessing
from transformers import BertConfig, BertForSequenceClassification

SEED, VOCABULARY, POSITIONS = 7, 640, 64
LABELS = ["shakespeare", "tinystories"]
DEV, STEPS, BATCH = 120, 1200, 64


def sentences(texts):
    """Sentences of both authors, in order, without names of speakers and without signs that tell an author."""
    plays = (texts / "tinyshakespeare.txt").read_text(encoding="utf-8")
    plays = re.sub(r"(?m)^[A-Z][^\n]*:\n", "", plays)
    stories = " ".join(json.loads((texts / "tinystories.json").read_text(encoding="utf-8")))
    for text in (plays, stories):
        plain = [re.sub(r"[^a-z' ]+", " ", part.lower()) for part in re.split(r"[.!?;:]", text)]
        yield [words for words in (part.split() for part in plain) if len(words) >= 3]


def snippet(rng, pool):
    """Three to seven neighbouring words."""
    words = rng.choice(pool)
    length = min(len(words), rng.randint(3, 7))
    at = rng.randint(0, len(words) - length)
    return " ".join(words[at : at + length])


def main(texts, out):
    torch.manual_seed(SEED)
    rng = random.Random(SEED)
    pools = list(sentences(texts))
    seen = [pool[: len(pool) * 4 // 5] for pool in pools]
    unseen = [pool[len(pool) * 4 // 5 :] for pool in pools]

    tokenizer = BertWordPieceTokenizer(lowercase=True)
    lines = (" ".join(words) for pool in seen for words in pool)
    tokenizer.train_from_iterator(lines, vocab_size=VOCABULARY, min_frequency=2, show_progress=False)
    ends = [(token, tokenizer.token_to_id(token)) for token in ("[SEP]", "[CLS]")]
    tokenizer.post_processor = BertProcessing(*ends)
    tokenizer.save(str(out / "tokenizer.json"))
    tokenizer.enable_padding(length=18)
    tokenizer.enable_truncation(18)

    def batch(examples):
        encoded = [tokenizer.encode(text) for text, _ in examples]
        ids = torch.tensor([e.ids for e in encoded])
        return ids, torch.tensor([e.attention_mask for e in encoded]), torch.tensor([label for _, label in examples])

    config = BertConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        max_position_embeddings=POSITIONS,
        hidden_dropout_prob=0.2,
        attention_probs_dropout_prob=0.1,
        id2label=dict(enumerate(LABELS)),
        label2id={label: i for i, label in enumerate(LABELS)},
    )
    model = BertForSequenceClassification(config)
    steps = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(steps, 1e-3, total_steps=STEPS)
    for step in range(STEPS):
        labels = [rng.randrange(2) for _ in range(BATCH)]
        ids, mask, wanted = batch([(snippet(rng, seen[label]), label) for label in labels])
        loss = model(ids, attention_mask=mask, labels=wanted).loss
        steps.zero_grad()
        loss.backward()
        steps.step()
        schedule.step()
        if step % 250 == 0:
            print(step, round(loss.item(), 3))

    dev = sorted({(snippet(rng, unseen[label]), label) for label in (0, 1) for _ in range(DEV)})
    rng.shuffle(dev)
    model.eval()
    ids, mask, wanted = batch(dev)
    with torch.no_grad():
        right = (model(ids, attention_mask=mask).logits.argmax(1) == wanted).float().mean().item()
    print(f"{len(dev)} lines, {right:.1%} right")
    rows = "".join(f"{text}\t{label}\n" for text, label in dev)
    (out / "dev.tsv").write_text("sentence\tlabel\n" + rows, encoding="utf-8")
    model.half().save_pretrained(out)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))

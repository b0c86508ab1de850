"""`lm-eval` with `local-completions` against a proxy: its scores are those of the plaintext engine.

The tokens of the bundled model are characters, so a tokenizer of characters counts them.
"""

import json

import lm_eval
import pytest
from lm_eval.api.instance import Instance
from lm_eval.models.openai_completions import LocalCompletionsAPI
from lm_eval.tasks import TaskManager

from conftest import ASSETS, MODEL

VOCABULARY = json.loads((ASSETS / MODEL / "tokenizer.json").read_text())["model"]["vocab"]
LINES = [
    ("ROMEO:\nI will", [" not go.", " xqz gj.", " be gone."], 0),
    ("JULIET:\nGood", [" zvbqk.", " night.", " nihgt."], 1),
    ("NURSE:\nMy", [" lord.", " lrod.", " qqqq."], 0),
    ("KING:\nWhat", [" kxj?", " say you?", " sya yuo?"], 1),
]


class Completions(LocalCompletionsAPI):
    """The client of lm-eval, with the model's own tokens in the place of a tokenizer of a hub."""

    def __init__(self, tokenized, **options):
        super().__init__(tokenizer_backend=None, model=MODEL, max_length=256, **options)
        # It insists that there is one.
        self.tokenizer, self.tokenized_requests = VOCABULARY, tokenized

    def tok_encode(self, string, **_):
        return [VOCABULARY[character] for character in string]

    @property
    def eot_token_id(self):
        return VOCABULARY["\n"]


@pytest.fixture
def task(tmp_path):
    data = tmp_path / "lines.jsonl"
    rows = [{"query": query, "choices": choices, "gold": gold} for query, choices, gold in LINES]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "task.yaml").write_text(f"""
task: lines
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: query
target_delimiter: ""
doc_to_choice: choices
doc_to_target: gold
metric_list: [{{metric: acc, aggregation: mean, higher_is_better: true}}]
""")
    return TaskManager(include_path=str(tmp_path), include_defaults=False)


def test_scores(proxy, clear, task):
    model = Completions(tokenized=True, base_url=f"{proxy}/v1/completions", batch_size=3)
    out = lm_eval.simple_evaluate(model=model, tasks=["lines"], task_manager=task, log_samples=True, bootstrap_iters=0)
    right = 0
    for sample in out["samples"]["lines"]:
        doc = sample["doc"]
        truth = []
        for choice in doc["choices"]:
            _, worth = clear(doc["query"] + choice)
            truth.append(sum(worth[len(doc["query"]) - 1 : len(doc["query"] + choice) - 1]))
        found = [response[0][0] for response in sample["resps"]]
        print(doc["query"], [f"{a:.4f}/{b:.4f}" for a, b in zip(found, truth)])
        # Each token's logarithm is off by less than 0.03.
        assert found == pytest.approx(truth, abs=0.03 * max(map(len, doc["choices"])))
        right += truth.index(max(truth)) == doc["gold"]
    assert out["results"]["lines"]["acc,none"] == right / len(LINES)


def test_generations(proxy, clear):
    model = Completions(tokenized=False, base_url=f"{proxy}/v1/completions", batch_size=1)
    asked = ("ROMEO:\n", {"until": ["\n"], "max_gen_toks": 12, "temperature": 0})
    instance = Instance(request_type="generate_until", doc={}, arguments=asked, idx=0)
    assert model.generate_until([instance]) == [clear("ROMEO:\n", 12)[0].split("\n")[0]]

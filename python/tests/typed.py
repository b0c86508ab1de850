"""What a program with types may write; `mypy --strict` reads it, and nobody runs it."""

from collections.abc import Sequence
from pathlib import Path

import numpy
import pandas

import waggle


def heavy(scores: waggle.Scores, keep: int) -> Sequence[Sequence[int]]:
    return [numpy.argsort(head)[-keep:].tolist() for head in scores]


def bar(progress: waggle.Progress) -> None:
    print(f"{progress.step}: {progress.done / progress.total:.0%}")


planned: waggle.Report = waggle.plan(Path("config.json"), prompt_len=8, policy="h2o:budget=0.25", preprocess=True)
operations: pandas.DataFrame = planned.to_pandas()
text: str = waggle.demo([1, 2, 3], tokens=2, stream=print, progress=bar, temperature=0.7)["text"]
study = waggle.evaluate("some words", ["h2o", heavy], budgets=[0.1, 20], progress=True)
assert isinstance(study, waggle.Evaluation)
rows: pandas.DataFrame = study.to_pandas()
flows: int = planned["phases"]["prefill"]["flows"]
where: list[str] = [operation["path"] for operation in planned["operations"]]
perplexities: list[float] = [row["perplexity"] for row in study["rows"]]
swept: waggle.Table = waggle.sweep("gpt2", contexts=[16], phases=["one", "two"], cores=16)

with waggle.Server("shakespeare-llama", sessions=2) as server, waggle.Client(server.address) as client:
    words: list[str] = server.log
    with client.chat(tokens=4, preprocess=True) as chat:
        turn: waggle.Turn = chat.say("ROMEO:", stream=words.append, progress=bar)
        said: list[dict[str, str]] = chat.transcript
    prompts: list[waggle.Prompt] = ["ROMEO:", [1, 2]]
    texts: list[str] = client.generate(prompts, tokens=2)["texts"]
    pieces: waggle.Pieces = client.stream("ROMEO:", tokens=2, temperature=0.7)
    words.extend(piece for piece in pieces)
    inputs: list[waggle.Input] = [("a text", "another"), "a third", [1, 2, 3], Path("image.png")]
    for answer in client.classify(inputs, batch=2):
        name: str = str(answer)

async def later(client: waggle.Client) -> waggle.Report:
    async for piece in client.stream("ROMEO:"):
        print(piece, end="")
    return await client.stream("JULIET:", policy="h2o")


waggle.plan(polcy="h2o")  # type: ignore[call-arg]
waggle.plan(prompt_len="8")  # type: ignore[arg-type]
waggle.demo(stream=1)  # type: ignore[arg-type]
waggle.evaluate("words", policies=[1])  # type: ignore[list-item]

"""The package `openai` and `curl` against a proxy."""

import asyncio
import json
import subprocess

import openai
import pytest

from conftest import MODEL

PROMPT = "ROMEO:\nWhat"


@pytest.fixture
def client(proxy):
    return openai.OpenAI(base_url=f"{proxy}/v1", api_key="none", max_retries=0, timeout=600)


def test_models(client):
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).owned_by == "waggle"


def test_completions(client, clear):
    truth, _ = clear(PROMPT, 12)
    asked = dict(model=MODEL, prompt=PROMPT, max_tokens=12, temperature=0)
    answer = client.completions.create(**asked)
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == (truth, "length")
    assert answer.usage.completion_tokens == 12
    saw = answer.usage.waggle["passes"][0]["server_saw"]
    assert (saw["texts"], saw["tokens"]) == (1, 12)
    pieces = list(client.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    assert "".join(piece.choices[0].text for piece in pieces if piece.choices) == truth
    assert pieces[-1].usage.total_tokens == answer.usage.total_tokens
    several = client.completions.create(**{**asked, "prompt": [PROMPT, "JULIET:"]}, n=2)
    assert [choice.text for choice in several.choices] == [truth] * 2 + [clear("JULIET:", 12)[0]] * 2


def test_logprobs(client, clear):
    answer = client.completions.create(
        model=MODEL, prompt=PROMPT, max_tokens=0, echo=True, logprobs=1, temperature=0)
    found = answer.choices[0].logprobs
    _, truth = clear(PROMPT)
    assert "".join(found.tokens) == PROMPT and found.token_logprobs[0] is None
    assert found.token_logprobs[1:] == pytest.approx(truth[: len(PROMPT) - 1], abs=0.03)
    assert all(len(top) in (1, 2) for top in found.top_logprobs[1:])


def test_chat(client):
    said = [{"role": "system", "content": "A play."}, {"role": "user", "content": "ROMEO:"}]
    asked = dict(model=MODEL, temperature=0, max_tokens=16)
    first = client.chat.completions.create(messages=said, **asked)
    said += [first.choices[0].message.model_dump(include={"role", "content"}), {"role": "user", "content": "JULIET:"}]
    pieces = list(client.chat.completions.create(
        messages=said, **asked, stream=True, stream_options={"include_usage": True}))
    text = "".join(piece.choices[0].delta.content or "" for piece in pieces if piece.choices)
    saw = pieces[-1].usage.waggle["passes"][0]["server_saw"]
    assert len(text) > 0 and saw["continues"] and saw["prompt_tokens"] < 16


def test_helpers(client, proxy):
    """The helpers that put a stream together: an answer has a role, once, also if it is empty."""
    asked = dict(model=MODEL, messages=[{"role": "user", "content": "ROMEO:"}], temperature=0, max_tokens=8)
    truth = client.chat.completions.create(**asked).choices[0].message.content
    # They take an answer that its length ends for an error.
    for stop in (truth[0], truth[-1]):
        text = truth.split(stop)[0]
        with client.chat.completions.stream(**asked, stop=stop) as stream:
            pieces = [event.delta for event in stream if event.type == "content.delta"]
            message = stream.get_final_completion().choices[0].message
        assert (message.role, message.content or "", "".join(pieces)) == ("assistant", text, text)
    assert client.chat.completions.parse(**asked, stop=stop).choices[0].message.content == text
    raw = client.chat.completions.with_raw_response.create(**asked)
    assert raw.status_code == 200 and raw.parse().choices[0].message.content == truth

    async def ask():
        async with openai.AsyncOpenAI(base_url=f"{proxy}/v1/", api_key="none", timeout=600) as several:
            return await asyncio.gather(*(several.chat.completions.create(**asked) for _ in range(3)))

    assert [answer.choices[0].message.content for answer in asyncio.run(ask())] == [truth] * 3


def test_refusals(client):
    with pytest.raises(openai.NotFoundError):
        client.completions.create(model="gpt-4", prompt="A")
    with pytest.raises(openai.BadRequestError, match="frequency_penalty") as refused:
        client.completions.create(model=MODEL, prompt="A", frequency_penalty=1)
    assert refused.value.param == "frequency_penalty"
    with pytest.raises(openai.BadRequestError, match="tools"):
        client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "A"}],
            tools=[{"type": "function", "function": {"name": "f", "parameters": {}}}])
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(model=MODEL, prompt="A", max_tokens=100_000)
    assert refused.value.code == "context_length_exceeded"


def test_curl(proxy, clear):
    body = json.dumps({"prompt": PROMPT, "max_tokens": 4, "temperature": 0})
    out = subprocess.run(
        ["curl", "-sS", f"{proxy}/v1/completions", "-H", "Content-Type: application/json", "-d", body],
        check=True, capture_output=True, text=True).stdout
    assert json.loads(out)["choices"][0]["text"] == clear(PROMPT, 4)[0]

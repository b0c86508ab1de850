"""The packages `litellm` and `llama-index` against a proxy: both read streams and errors with code of their own."""

import litellm
import pytest
from llama_index.core.llms import ChatMessage
from llama_index.llms.openai_like import OpenAILike

from conftest import MODEL

PROMPT = "ROMEO:\nWhat"


@pytest.fixture
def asked(proxy):
    return dict(api_base=f"{proxy}/v1", api_key="none", temperature=0, max_tokens=8, max_retries=0, timeout=600)


def test_litellm(asked, clear):
    chat = dict(model=f"openai/{MODEL}", messages=[{"role": "user", "content": "ROMEO:"}], **asked)
    answer = litellm.completion(**chat)
    pieces = list(litellm.completion(**chat, stream=True, stream_options={"include_usage": True}))
    whole = litellm.stream_chunk_builder(pieces)
    assert whole.choices[0].message.role == "assistant"
    assert whole.choices[0].message.content == answer.choices[0].message.content
    assert whole.usage.completion_tokens == answer.usage.completion_tokens == 8
    text = litellm.text_completion(model=f"text-completion-openai/{MODEL}", prompt=PROMPT, **asked)
    assert text.choices[0].text == clear(PROMPT, 8)[0]
    with pytest.raises(litellm.BadRequestError, match="tools"):
        litellm.completion(**chat, tools=[{"type": "function", "function": {"name": "f", "parameters": {}}}])
    with pytest.raises(litellm.ContextWindowExceededError):
        litellm.completion(**{**chat, "max_tokens": 100_000})


def test_llama_index(asked, clear):
    options = dict(model=MODEL, context_window=512, **asked)
    texts = OpenAILike(is_chat_model=False, **options)
    truth = clear(PROMPT, 8)[0]
    assert texts.complete(PROMPT).text == truth
    assert [piece.text for piece in texts.stream_complete(PROMPT)][-1] == truth
    talks = OpenAILike(is_chat_model=True, **options)
    # Two messages of one side, and an answer first.
    said = [ChatMessage(role=role, content=text) for role, text in
            [("assistant", "A play."), ("user", "ROMEO:"), ("user", "Speak.")]]
    answer = talks.chat(said).message
    assert answer.role == "assistant" and answer.content
    assert [piece.message.content for piece in talks.stream_chat(said)][-1] == answer.content

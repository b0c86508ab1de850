"""The package, from plans to sessions between two processes."""

import asyncio
import importlib.metadata
import json
import math
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import threading
import time
import warnings

import numpy
import pytest

import waggle

TEXT = """GLOUCESTER:
Now is the winter of our discontent
Made glorious summer by this sun of York;
And all the clouds that lour'd upon our house
In the deep bosom of the ocean buried.
Now are our brows bound with victorious wreaths;
Our bruised arms hung up for monuments;
Our stern alarums changed to merry meetings,
Our dreadful marches to delightful measures.
"""

MODEL = "shakespeare-gpt2"


def total(report):
    return sum(op["bytes_client_to_server"] + op["bytes_server_to_client"] for op in report["operations"])


def heavy(scores, keep):
    """What received most stays."""
    return [numpy.argsort(head)[-keep:] for head in scores]


def heavy_and_recent(scores, keep):
    """Half of what stays are the latest tokens, and the other half received most: H2O."""
    kept = []
    for head in scores:
        old = len(head) - keep // 2
        kept.append([*numpy.argsort(head[:old])[keep // 2 - keep :], *range(old, len(head))])
    return kept


def study(policies, **setting):
    setting = {"context": 64, "prompt": 48, "sequences": 2, "budgets": [0.25], **setting}
    return waggle.evaluate(TEXT, policies, model=MODEL, **setting)


def test_policies_have_options_with_defaults():
    named = {policy["name"]: policy for policy in waggle.policies()}
    assert len(named) == len(waggle.policies()) and "python" not in named
    budget = {"key": "budget", "default": "0.25", "required": False}
    assert budget in named["h2o"]["options"]
    assert named["oracle"]["clear_only"] and not named["full"]["clear_only"]
    assert waggle.models() == ["shakespeare-gpt2", "shakespeare-llama", "stories260k", "recall", "whose-line"]


def test_a_plan_is_the_session_to_the_byte():
    # A plan is for other cores than those of this machine unless it is told.
    options = {"policy": "h2o:budget=0.5", "reveal": "token", "cores": "2"}
    ran = waggle.demo("ROMEO:\nSpeak", model=MODEL, tokens=3, check=True, **options)
    planned = waggle.plan(MODEL, prompt_len=len("ROMEO:\nSpeak"), tokens=3, link="memory", stop_at_eos=False, **options)
    assert planned["predicted"] and not ran["predicted"]
    assert total(planned) == total(ran) > 1e6
    assert ran["token_agreement"] == 1.0
    assert len(ran["tokens"]) == 3 and isinstance(ran["text"], str)
    # No calibration, no CPU seconds.
    assert math.isnan(planned["phases"]["decode"]["cpu_seconds"]) and ran["phases"]["decode"]["cpu_seconds"] > 0


def test_text_comes_as_it_is_generated():
    pieces = []
    ran = waggle.demo("ROMEO:\n", model=MODEL, tokens=4, stream=pieces.append)
    assert len(pieces) > 1 and "".join(pieces) == ran["text"]
    with pytest.raises(ZeroDivisionError):
        waggle.demo("ROMEO:\n", model=MODEL, tokens=2, stream=lambda text: 1 / 0)


def test_public_text_stands_before_private_words():
    joined = waggle.demo("ROMEO:\nSpeak", model=MODEL, tokens=4)
    ran = waggle.demo("Speak", model=MODEL, tokens=4, check=True, public_prefix="ROMEO:\n", prefix_policy="full")
    assert ran["text"] == joined["text"] and ran["token_agreement"] == 1.0
    assert (ran["prompt_tokens"], ran["options"]["public_tokens"]) == (len("Speak"), len("ROMEO:\n"))
    with pytest.raises(waggle.WaggleError, match="needs a public_prefix"):
        waggle.demo("Speak", model=MODEL, tokens=1, prefix_policy="full")


def test_documents_show_themselves_in_a_line_and_as_a_page():
    planned = waggle.plan(tokens=3)
    assert len(repr(planned)) < 300 and "plan of stories260k" in repr(planned)
    study = waggle.evaluate(TEXT, "streaming", budgets=[0.5], context=48, sequences=1)
    assert len(repr(study)) < 300
    for document in (planned, study):
        assert document._repr_html_().startswith("<iframe srcdoc=") and "&lt;html" in document._repr_html_()


def test_files_are_files(tmp_path):
    setting = {"budgets": [0.5], "context": 48, "sequences": 1}
    file = tmp_path / "text.txt"
    file.write_text(TEXT)
    words = waggle.evaluate(TEXT, "streaming", **setting)
    for given in (file, str(file)):
        assert waggle.evaluate(given, "streaming", **setting)["rows"] == words["rows"]
    bundled = waggle.evaluate("tinyshakespeare.txt", "streaming", **setting)
    assert bundled["rows"] != words["rows"]
    file.write_text(TEXT[:40])
    assert waggle.demo(file, model=MODEL, tokens=1)["prompt_tokens"] == 40


def test_the_version_is_that_of_the_package():
    assert waggle.__version__ == importlib.metadata.version("waggle")


def test_a_step_alone_is_planned_without_its_prompt():
    step = waggle.plan(cached=128, preprocess=True)
    assert step["phases"]["prefill"]["flows"] == 0 and total(step) > 0


def test_options_are_refused_in_the_words_of_the_command_line():
    assert waggle.WaggleError.__module__ == "waggle"
    with pytest.raises(waggle.WaggleError, match="unknown cache policy `h2`; known are: full, "):
        waggle.plan(policy="h2")
    with pytest.raises(waggle.WaggleError, match="no option `polcy`"):
        waggle.plan(polcy="h2o")
    with pytest.raises(waggle.WaggleError, match="neither|no such|is no|not"):
        waggle.plan("no/such/model")
    with pytest.raises(waggle.WaggleError, match="oracle"):
        waggle.demo(policy="oracle")
    with pytest.raises(TypeError, match="only evaluate"):
        waggle.plan(policy=heavy)


def test_a_function_of_python_is_a_policy():
    seen = []

    def watching(scores, keep):
        assert len(scores) == 4, "four key/value heads"
        for head, latest, positions in zip(scores, scores.latest, scores.positions):
            assert isinstance(head, numpy.ndarray) and head.shape == latest.shape == positions.shape
            # A query's weights add up to 1, and the latest one sees what is there.
            assert latest.sum() == pytest.approx(1, abs=1e-3)
            assert (numpy.diff(positions) > 0).all() and positions[-1] == scores.seen - 1
            assert len(head) > keep
        seen.append((scores.layer, scores.seen, keep))
        return heavy_and_recent(scores, keep)

    report = study(["h2o", watching, "full"])
    rows = {row["label"]: row for row in report["rows"]}
    assert list(rows) == ["full", "h2o", "python:function=watching"]
    own = rows["python:function=watching"]
    assert own["policy"] == "python:budget=0.25,function=watching"
    # H2O rounds votes before it compares them, and this function does not.
    assert own["perplexity"] == pytest.approx(rows["h2o"]["perplexity"], rel=1e-3), "the rule of H2O"
    assert own["perplexity"] != pytest.approx(rows["full"]["perplexity"], rel=1e-3)
    assert 0.2 < own["attended"] < 0.4, "what the budget says, and the newest tokens"
    # The end of the prompt, and every token after it that leaves too many.
    assert {(layer, 48, 12) for layer in range(4)} <= set(seen)


def test_a_function_that_keeps_everything_is_the_full_cache():
    report = waggle.evaluate(TEXT, policy=lambda scores, keep: [range(len(s)) for s in scores], context=64, sequences=1,
                             budgets=[1])
    full, own = report["rows"]
    assert own["perplexity"] == full["perplexity"] and own["agreement"] == 1


def test_what_a_function_raises_is_raised():
    def broken(scores, keep):
        raise KeyError("broken")

    with pytest.raises(KeyError, match="broken"):
        study(broken)
    for wrong, message in [
        (lambda scores, keep: scores, "index|cannot|float"),
        (lambda scores, keep: [[0]], "lists for 1 heads; the layer has 4"),
        (lambda scores, keep: [[0, 0]] * 4, "stands there twice"),
        (lambda scores, keep: [[1000]] * 4, "index 1000 of 48 tokens"),
        (lambda scores, keep: [[]] * 4, "0 tokens are kept, not 1 to 12"),
        (lambda scores, keep: [range(13)] * 4, "13 tokens are kept, not 1 to 12"),
    ]:
        with pytest.raises((waggle.WaggleError, IndexError), match=message):
            study(wrong)


def test_only_engines_in_the_clear_run_a_function():
    assert len(study(heavy, engine="fixed", sequences=1)["rows"]) == 2
    with pytest.raises(waggle.WaggleError, match="python"):
        study(heavy, engine="secure")
    with pytest.raises(ValueError, match="one of float, fixed, secure"):
        study(heavy, engine="gpu")
    with pytest.raises(waggle.WaggleError, match="python"):
        waggle.demo(policy="python:function=heavy")


def test_a_server_and_a_client(tmp_path, monkeypatch):
    monkeypatch.setenv("WAGGLE_HOME", str(tmp_path))
    with waggle.Server(MODEL, skip_range_check=True) as server:
        client = waggle.Client(server.address)
        first = client.generate("ROMEO:\n", tokens=4)
        # The client has no tokenizer but the server's, which runs in a process of its own.
        assert first["tokens"] == waggle.demo("ROMEO:\n", model=MODEL, tokens=4)["tokens"] and len(first["text"]) == 4
        assert first["wire"] is not None
        # Several prompts side by side, of which the shorter is padded.
        several = client.generate(["ROMEO:\n", [0, 1, 2]], tokens=4, samples=2)
        assert several["texts"][:2] == [first["text"]] * 2 and len(several["texts"]) == 4
        assert several["tokens"][-4:] == waggle.demo([0, 1, 2], model=MODEL, tokens=4)["tokens"]
        with pytest.raises(waggle.WaggleError, match="policy"):
            client.generate("ROMEO:\n", tokens=4, policy="h2o")
    with pytest.raises(waggle.WaggleError):
        waggle.Client(server.address, connect_timeout=1).generate(tokens=1)
    with pytest.raises(waggle.WaggleError, match="nosuchmodel"):
        waggle.Server("nosuchmodel")


ROOT = pathlib.Path(__file__).parents[2]
BERT, MASKED, VIT = (ROOT / "model/tests/data/encoders" / name for name in ("bert", "bert-masked", "vit"))


def test_texts_have_the_classes_that_the_model_gives_in_the_clear():
    lines = (ROOT / "model/assets/whose-line/dev.tsv").read_text().splitlines()[1:4]
    texts = [line.split("\t")[0] for line in lines]
    clear = waggle.evaluate(task="glue", data="whose-line.tsv", model="whose-line", sequences=3)
    answers = waggle.classify(texts, batch=2)
    # Two texts in a session, and the third alone in another.
    assert [report["options"].get("texts", 1) for report in answers.reports] == [2, 1]
    assert len(answers) == 3 and isinstance(answers.reports[0], waggle.Report)
    for answer, expected in zip(answers, clear["answers"]):
        logits = answer["logits"]
        assert logits == pytest.approx(expected["logits"], abs=0.05)
        assert str(answer) == answer["class"] == ["shakespeare", "tinystories"][numpy.argmax(logits)]
        assert answer["probability"] == pytest.approx(1 / (1 + math.exp(-abs(logits[0] - logits[1]))), abs=1e-5)
        assert answer["score"] is None
    frame = answers.to_pandas()
    assert list(frame.columns) == ["class", "probability", "score", "logits"]
    assert list(frame["class"]) == [answer["class"] for answer in answers]


def test_an_encoder_reads_texts_pairs_ids_and_images():
    given = ["Hello worlds!", ("good", "hello"), numpy.array([2, 5, 3])]
    together = waggle.classify(given, model=BERT)
    alone = [answer for one in given for answer in waggle.classify(one, model=BERT)]
    assert len(together) == len(alone) == 3 and len(together.reports) == 1
    for several, one in zip(together, alone):
        assert several["class"] in ("no", "perhaps", "yes")
        assert several["logits"] == pytest.approx(one["logits"], abs=0.05)
    image = VIT / "image.png"
    assert [answer["class"] for answer in waggle.classify(image, model=VIT)] == ["yes"]
    own = {"preprocessor": VIT / "preprocessor_config.json"}
    assert [answer["class"] for answer in waggle.classify([image, image], model=VIT, **own)] == ["yes", "yes"]
    assert waggle.classify([]) == []


def test_a_masked_word_and_a_score(tmp_path):
    texts = ["the [MASK] was not very good!", "[MASK] good"]
    words = [waggle.demo(text, model=MASKED, tokens=1)["text"] for text in texts]
    answers = waggle.classify(texts, model=MASKED)
    assert [answer["class"] for answer in answers] == words and 0 < answers[0]["probability"] < 1
    with pytest.raises(waggle.WaggleError, match=r"the word in the place of one \[MASK\]; the text has 0"):
        waggle.classify("the film", model=MASKED)
    # One output is a score.
    config = json.loads((BERT / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "id2label": {"0": "LABEL_0"}}))
    made = ["synth", "--config", tmp_path / "config.json", "--out", tmp_path / "model"]
    subprocess.run([sys.executable, "-m", "waggle", *made], check=True, capture_output=True)
    for reveal in ("logits", "token"):
        [answer] = waggle.classify([2, 5, 3], model=tmp_path / "model", reveal=reveal)
        assert answer["class"] is None and answer["probability"] is None
        assert answer["logits"] == ([] if answer["score"] is None else [answer["score"]])
        assert (answer["score"] is None) == (reveal == "token")


def test_a_server_classifies(tmp_path, monkeypatch):
    monkeypatch.setenv("WAGGLE_HOME", str(tmp_path))
    texts = ["Hello worlds!", "The film was not very good.", "good"]
    classes = [answer["class"] for answer in waggle.classify(texts, model=BERT)]
    with waggle.Server(BERT, skip_range_check=True) as server:
        client = waggle.Client(server.address)
        for options in ({}, {"batch": 2}, {"pad": "auto", "preprocess": True}):
            answers = client.classify(texts, **options)
            assert [answer["class"] for answer in answers] == classes
            assert len(answers.reports) == (2 if "batch" in options else 1)
        assert answers.reports[0]["options"]["padded_prompt"] == 16
        with pytest.raises(waggle.WaggleError, match="these 3 inputs take 2"):
            client.classify(texts, batch=2, pool=tmp_path / "none")
        with pytest.raises(waggle.WaggleError, match="no images"):
            client.classify(VIT / "image.png")
    with pytest.raises(waggle.WaggleError):
        waggle.Client(server.address, connect_timeout=1).classify(texts)
    with waggle.Server(BERT, skip_range_check=True, reveal="token") as server:
        [shy] = waggle.Client(server.address, reveal="token").classify("good")
        assert shy == {"class": classes[2], "probability": None, "score": None, "logits": []}


def test_inputs_are_refused_in_the_words_of_the_command_line():
    with pytest.raises(waggle.WaggleError, match="batch: give 1 or more"):
        waggle.classify("good", batch=0)
    with pytest.raises(waggle.WaggleError, match="no option `temperature`"):
        waggle.classify("good", temperature=1)
    with pytest.raises(waggle.WaggleError, match="two texts need an encoder"):
        waggle.classify(("good", "hello"), model=MODEL)
    for wrong in (5, [5, "good"], [("a", "b", "c")]):
        with pytest.raises(TypeError):
            waggle.classify(wrong)


def test_a_plan_of_an_encoder_is_the_session_to_the_byte():
    options = {"cores": 2, "preprocess": True}
    for inputs, lengths in [
        ([[2, 5, 3], [2, 6, 3]], {"prompt_len": 3, "texts": 2}),
        ([[2, 5, 3], [2, 3]], {"prompt_len": 3, "texts": 2, "pad_prompt": True}),
    ]:
        [ran] = waggle.classify(inputs, model=BERT, **options).reports
        planned = waggle.plan(BERT, link="memory", **lengths, **options)
        assert total(planned) == total(ran) > 1e5
        assert planned["options"]["texts"] == 2 and planned["options"]["tokens"] == 1


def test_an_encoder_is_studied_on_a_task():
    lines = {"task": "glue", "data": "whose-line.tsv", "model": "whose-line", "sequences": 4}
    clear, secure = (waggle.evaluate(**lines, engine=engine) for engine in ("float", "secure"))
    assert clear["agreement"] == secure["agreement"] == 1 and clear["metrics"] == secure["metrics"]
    assert clear["largest_error"] == 0 < secure["largest_error"] < 0.05
    assert clear["options"] == {"task": "glue", "engine": "float", "data": "whose-line.tsv"}
    assert len(repr(clear)) < 300 and "4 examples" in repr(clear)
    frame = clear.to_pandas().set_index("metric")
    assert 0.5 <= frame["value"]["accuracy"] <= 1 and "matthews" in frame.index
    with pytest.raises(waggle.WaggleError, match="stories260k is none"):
        waggle.evaluate(task="glue", data="whose-line.tsv")
    with pytest.raises(waggle.WaggleError, match="budgets is no option of the task glue"):
        waggle.evaluate(**lines, budgets=[0.5])
    with pytest.raises(waggle.WaggleError, match="data is no option of the task text"):
        waggle.evaluate(TEXT, data="whose-line.tsv")
    with pytest.raises(waggle.WaggleError, match="text is missing"):
        waggle.evaluate()
    with pytest.raises(waggle.WaggleError, match="--data"):
        waggle.evaluate(TEXT, task="recall")


TURNS = ["ROMEO:", "What says my lady", "JULIET:", "Good night", "NURSE:"]


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A server for several conversations."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WAGGLE_HOME", str(tmp_path_factory.mktemp("home")))
        with waggle.Server("shakespeare-llama", skip_range_check=True) as server:
            yield server


def prepared(chat):
    """Waits until the next turn is prepared."""
    end = time.monotonic() + 120
    while chat.prepared[0] < chat.prepared[1]:
        assert time.monotonic() < end
        time.sleep(0.05)
    return chat.prepared


def bytes_of(cost):
    return cost["bytes_client_to_server"] + cost["bytes_server_to_client"]


def test_a_conversation_of_five_turns_with_another_process(served, tmp_path):
    kept = tmp_path / "kept.jsonl"
    options = {"turn_tokens": 24, "check": "shakespeare-llama", "no_stop_at_eos": True, "transcript": kept}
    with waggle.Client(served.address).chat(tokens=5, preprocess=True, **options) as chat:
        turns = []
        for words in TURNS:
            assert prepared(chat) == (29, 29)
            pieces = []
            turns.append(chat.say(words, stream=pieces.append))
            assert "".join(pieces) == turns[-1]["text"] == str(turns[-1])
        assert chat.report is None
    assert chat.report["turns"] == turns and isinstance(chat.report, waggle.Report)
    assert chat.report["token_agreement"] == 1.0
    for words, turn in zip(TURNS, turns):
        assert len(turn["tokens"]) == 5 and turn["token_agreement"] == 1.0
        # New words alone are read, with the end of their line and of the one before.
        assert turn["prompt_tokens"] <= len(words) + 3
        # Most was made before the turn.
        assert bytes_of(turn["before"]["offline"]) > bytes_of(turn["phases"]["offline"]) > 0
    said = [text for words, turn in zip(TURNS, turns) for text in (words, turn["text"])]
    assert [message["text"] for message in chat.transcript] == said
    assert [message["role"] for message in chat.transcript] == ["user", "assistant"] * 5
    assert [json.loads(line) for line in kept.read_text().splitlines()] == chat.transcript
    # The first turn is a generation on the same text.
    assert waggle.Client(served.address).generate("ROMEO:\n", tokens=5)["text"] == turns[0]["text"]


def test_a_refused_turn_leaves_the_conversation(served):
    with waggle.Client(served.address).chat(tokens=3, turn_tokens=9) as chat:
        assert chat.prepared == (0, 0) and chat.transcript == []
        with pytest.raises(waggle.WaggleError, match="a turn of 19 tokens is longer than the 9 that this conversation allows"):
            chat.say("a long turn indeed")
        assert chat.transcript == []
        first = chat.say("short")
        with pytest.raises(ZeroDivisionError):
            chat.say("again", stream=lambda text: 1 / 0)
        assert len(chat.transcript) == 4
        chat.reset()
        assert chat.transcript == []
        again = chat.say("short")
        assert again["text"] == first["text"] and (first["conversation"], again["conversation"]) == (0, 1)
        with pytest.raises(waggle.WaggleError, match="no tokens"):
            chat.say("")
    assert [turn["conversation"] for turn in chat.report["turns"]] == [0, 0, 1]
    chat.close()
    for closed in (lambda: chat.say("short"), chat.reset):
        with pytest.raises(waggle.WaggleError, match="over"):
            closed()


def test_a_template_that_rewrites_is_a_warning(tmp_path):
    assets = ROOT / "model/assets/shakespeare-llama"
    for file in ["config.json", "model.safetensors", "tokenizer.json"]:
        shutil.copy(assets / file, tmp_path)
    # The last message alone.
    (tmp_path / "chat_template.jinja").write_text("{{ messages[-1].content }}!")
    with waggle.Server(tmp_path, skip_range_check=True, insecure_plaintext=True) as server:
        client = waggle.Client(server.address, insecure_plaintext=True)
        with client.chat(tokens=2, check=tmp_path) as chat, warnings.catch_warnings():
            warnings.simplefilter("error")
            assert chat.say("Nay")["prompt_tokens"] == len("Nay!")
            with pytest.warns(UserWarning, match="from its beginning"):
                turn = chat.say("Good night")
            assert turn["prompt_tokens"] == len("Good night!") and turn["conversation"] == 0
    assert chat.report["token_agreement"] == 1.0


def test_a_template_that_is_new_is_a_warning(tmp_path, monkeypatch):
    assets = ROOT / "model/assets/shakespeare-llama"
    for file in ["config.json", "model.safetensors", "tokenizer.json"]:
        shutil.copy(assets / file, tmp_path)
    (tmp_path / "chat_template.jinja").write_text("\x1b[8m{{ messages[-1].content }}!")
    monkeypatch.setenv("WAGGLE_HOME", str(tmp_path / "theirs"))
    key = subprocess.run([sys.executable, "-m", "waggle", "keygen"], capture_output=True, text=True, check=True)
    with waggle.Server(tmp_path, skip_range_check=True, allow_any=True) as server:
        monkeypatch.setenv("WAGGLE_HOME", str(tmp_path / "ours"))
        client = waggle.Client(server.address, server_key=key.stdout.strip())
        with pytest.warns(UserWarning, match=r"words around yours.*(?s:.)*content }}!") as shown, client.chat(tokens=1):
            assert "\x1b" not in str(shown[0].message)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            client.chat(tokens=1).close()


def test_positions_are_used_up():
    with waggle.Server(MODEL, skip_range_check=True, insecure_plaintext=True) as server:
        client = waggle.Client(server.address, insecure_plaintext=True)
        with client.chat(tokens=1, turn_tokens=200, no_stop_at_eos=True) as chat:
            chat.say("a" * 150)
            with pytest.raises(waggle.WaggleError, match="of 256 positions"):
                chat.say("a" * 150)
            assert len(chat.transcript) == 2
            chat.reset()
            chat.say("b")


def test_conversations_are_refused_in_the_words_of_the_command_line(served):
    client = waggle.Client(served.address)
    with pytest.raises(waggle.WaggleError, match="exclude each other"):
        client.chat(stop_at_eos=True, no_stop_at_eos=True)
    with pytest.raises(waggle.WaggleError, match="no option `turns`"):
        client.chat(turns="file")
    with pytest.raises(waggle.WaggleError, match="nosuchmodel"):
        client.chat(check="nosuchmodel")


def test_an_error_of_the_session_is_raised_and_the_transcript_stays():
    server = waggle.Server("shakespeare-llama", skip_range_check=True, insecure_plaintext=True)
    chat = waggle.Client(server.address, insecure_plaintext=True).chat(tokens=2, timeout=20)
    chat.say("ROMEO:")
    server._process.kill()
    server.close()
    with pytest.raises(waggle.WaggleError) as failed:
        chat.say("JULIET:")
    assert "the session is over" not in str(failed.value)
    assert chat.transcript[0] == {"role": "user", "text": "ROMEO:"}
    with pytest.raises(waggle.WaggleError, match="the session is over"):
        chat.say("JULIET:")
    chat.close()
    assert chat.report is None


def test_a_conversation_that_nobody_closes_ends_with_the_object_or_the_program(served):
    chat = waggle.Client(served.address).chat(tokens=2)
    chat.say("ROMEO:")
    del chat
    # A server of one session serves the next one.
    words = f"import waggle; chat = waggle.Client({served.address!r}).chat(tokens=2); print(chat.say('ROMEO:')['tokens'])"
    ran = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0 and ran.stdout.startswith("["), ran.stderr
    assert len(waggle.Client(served.address).generate("ROMEO:", tokens=2)["tokens"]) == 2
    assert not [line for line in served.log if "error" in line.lower()], served.log


class Held:
    """Interrupts the call that calls this, and holds its thread until the call has ended."""

    def __init__(self):
        self.called = self.over = False
        self.free = threading.Event()

    def __call__(self, *_):
        if not self.called:
            self.called = True
            signal.raise_signal(signal.SIGINT)
            self.over = self.free.wait(120)


def interrupted(call):
    """Whether `call` of something that blocks ends by Ctrl-C, although the step that it is in does not."""
    held = Held()
    with pytest.raises(KeyboardInterrupt):
        call(held)
    assert held.called and not held.over
    held.free.set()


def test_ctrl_c_ends_a_call_in_the_middle_of_a_step(served):
    interrupted(lambda held: waggle.demo(TEXT[:40], model=MODEL, tokens=50, stream=held))
    # One function is the policy of one study at a time, also of one that was left alone.
    interrupted(lambda held: study(lambda scores, keep: held() or heavy(scores, keep)))
    assert len(study(lambda scores, keep: heavy(scores, keep))["rows"]) == 2
    with waggle.Client(served.address) as client:
        interrupted(lambda held: client.generate("ROMEO:", tokens=50, stream=held))
        chat = client.chat(tokens=100, no_stop_at_eos=True)
        interrupted(lambda held: chat.say("ROMEO:", stream=held))
        with pytest.raises(waggle.WaggleError, match="over"):
            chat.say("ROMEO:")
        assert chat.transcript[0] == {"role": "user", "text": "ROMEO:"}
        # The server lives on: Ctrl-C was not meant for it.
        assert len(client.generate("ROMEO:", tokens=2)["tokens"]) == 2


def test_ctrl_c_at_a_terminal_ends_the_command_and_leaves_the_server(served):
    words = ["import signal, waggle", "server = waggle.Server('stories260k')", "print(server.address, flush=True)"]
    with subprocess.Popen(
        [sys.executable, "-c", "; ".join([*words, "signal.pause()"])],
        stdout=subprocess.PIPE,
        start_new_session=True,
        text=True,
    ) as owner:
        address = owner.stdout.readline().strip()
        os.killpg(owner.pid, signal.SIGINT)
        assert owner.wait(120) != 0
    # It ends with its owner.
    with pytest.raises(waggle.WaggleError):
        for _ in range(1000):
            waggle.Client(address, connect_timeout=1).generate(tokens=1)
    demo = [sys.executable, "-m", "waggle", "demo", "--tokens", "200"]
    with subprocess.Popen(demo, stdout=subprocess.PIPE) as command:
        assert command.stdout.read(1)
        command.send_signal(signal.SIGINT)
        assert command.wait(120) == -signal.SIGINT


def test_progress_is_told_in_the_thread_of_the_call():
    told, threads = [], set()

    def watch(progress):
        told.append(progress)
        threads.add(threading.get_ident())

    waggle.demo("ROMEO:", model=MODEL, tokens=3, preprocess=True, progress=watch)
    assert threads == {threading.get_ident()}
    assert {far.step for far in told} == {"offline", "prefill", "decode"}
    made = [far.done for far in told if far.step == "offline"]
    assert made == sorted(made) and made[-1] > 0
    assert [far for far in told if far.step == "decode"] == [("decode", done, 3) for done in (1, 2, 3)]
    layers = [far for far in told if far.step == "prefill"]
    assert layers[-1].done == layers[-1].total == len(layers)
    told.clear()
    study("h2o", progress=watch)
    assert told[-1].step == "study" and sorted(far.done for far in told) == list(range(1, told[-1].total + 1))
    told.clear()
    waggle.classify(["good", "good good"], model=BERT, batch=1, progress=watch)
    assert [far.done for far in told if far.step == "prefill" and far.done == far.total] == [told[-1].total] * 2
    with pytest.raises(ZeroDivisionError):
        waggle.demo("ROMEO:", model=MODEL, tokens=50, progress=lambda far: 1 / 0)


def test_bars_are_shown(capsys):
    waggle.demo("ROMEO:", model=MODEL, tokens=2, progress=True)
    shown = capsys.readouterr().err
    assert "prefill: 100%" in shown and "decode: 100%" in shown


def test_a_client_ends_its_conversations(served):
    with waggle.Client(served.address) as client:
        chats = [client.chat(tokens=2)]
        chats[0].say("ROMEO:")
    assert chats[0].report["turns"][0]["prompt_tokens"] > 0
    with pytest.raises(waggle.WaggleError, match="over"):
        chats[0].say("ROMEO:")
    with pytest.raises(ZeroDivisionError):
        with waggle.Client(served.address) as client:
            client.chat(tokens=2)
            1 / 0


def test_a_text_comes_piece_by_piece(served):
    client = waggle.Client(served.address)
    whole = client.generate("ROMEO:", tokens=6)
    pieces = client.stream("ROMEO:", tokens=6)
    assert "".join(pieces) == whole["text"] and pieces.report["tokens"] == whole["tokens"]
    assert list(pieces) == []

    async def both():
        heard = client.stream("ROMEO:", tokens=6)
        text = "".join([piece async for piece in heard])
        return text, heard.report, await client.stream("ROMEO:", tokens=6)

    text, first, second = asyncio.run(both())
    assert text == whole["text"] and first["tokens"] == second["tokens"] == whole["tokens"]
    with pytest.raises(waggle.WaggleError, match="1000000005 positions"):
        list(client.stream("ROMEO:", tokens=10**9))
    with pytest.raises(TypeError):
        list(client.stream("ROMEO:", tokens="six"))


def test_a_text_that_nobody_wants_ends(served):
    pieces = waggle.Client(served.address).stream("ROMEO:", tokens=200)
    next(pieces)
    pieces.close()
    with pytest.raises(Exception, match="^$"):
        list(pieces)
    assert pieces.report is None


def test_tasks_of_the_command_line_are_studies():
    needles = {"lengths": [96], "depths": [0.5], "sequences": 1}
    found = waggle.evaluate(task="needle", model=MODEL, policies=["snapkv"], budgets=[0.5], **needles)
    assert [row["label"] for row in found["rows"]] == ["full", "snapkv"] and found["of_sequences"][0]["tags"]
    costs = waggle.evaluate(TEXT, ["h2o"], model=MODEL, budgets=[0.5], context=48, sequences=1, costs="lan", cores=16)
    assert {row["cost"]["cores"] for row in costs["rows"]} == {"16"}
    with pytest.raises(waggle.WaggleError, match="no functions"):
        waggle.evaluate(task="needle", policies=[lambda scores, keep: []])
    with pytest.raises(waggle.WaggleError, match="nothing"):
        waggle.evaluate(task="nothing")


def test_other_threads_run_meanwhile():
    ticks = []
    done = threading.Event()

    def tick():
        while not done.wait(0.01):
            ticks.append(time.monotonic())

    thread = threading.Thread(target=tick)
    thread.start()
    begin = time.monotonic()
    waggle.demo(TEXT[:40], model=MODEL, tokens=2)
    seconds = time.monotonic() - begin
    done.set()
    thread.join()
    # A machine with two cores is busy: a tick in a tenth of a second is enough.
    assert len(ticks) > 10 * seconds * 0.5


def test_reports_become_data_frames():
    pandas = pytest.importorskip("pandas")
    report = waggle.plan(preprocess=True)
    operations = report.to_pandas()
    assert isinstance(operations, pandas.DataFrame) and len(operations) == len(report["operations"])
    assert operations["bytes_client_to_server"].sum() + operations["bytes_server_to_client"].sum() == total(report)
    assert {"offline", "prefill", "decode"} <= set(report.to_pandas("phases")["phase"])
    with pytest.raises(ValueError):
        report.to_pandas("nothing")
    frame = study(["h2o", "snapkv"]).to_pandas()
    assert list(frame["label"]) == ["full", "h2o", "snapkv"] and (frame["perplexity"] > 1).all()


def test_the_command_line_comes_with_the_package(tmp_path):
    file = tmp_path / "policies.json"
    ran = subprocess.run([sys.executable, "-m", "waggle", "policies", f"--json={file}"], capture_output=True, text=True)
    assert ran.returncode == 0 and "streaming" in ran.stdout, ran.stderr
    assert json.loads(file.read_text())[0]["name"] == "full"
    failed = subprocess.run([sys.executable, "-m", "waggle", "plan", "--model", "none"], capture_output=True, text=True)
    assert failed.returncode == 1 and failed.stderr.startswith("error: ")


def test_tables_of_the_command_line_are_data(tmp_path: pathlib.Path) -> None:
    record = tmp_path / "sweep.json"
    rows = waggle.sweep(["shakespeare-gpt2"], contexts=[8, 16], policies=["full", "h2o:budget=0.5"], json=record, cores=2)
    assert [row["policy"] for row in rows] == ["full", "h2o:budget=0.5"] * 2
    assert {row["cores"] for row in rows} == {"2"} and rows[0]["total_bytes"] > rows[0]["online_bytes"] > 0
    assert list(rows.to_pandas()["prompt_tokens"]) == [8, 8, 16, 16]
    passes = waggle.sweep("bert-base", contexts=16, phases=["one", "two"], pass_=True)
    assert [row["work"] for row in passes] == ["a pass"] * 2
    tables = waggle.reproduce("bumblebee", 2)
    assert tables["figures"][0]["system"] == "BumbleBee" and tables["sources"][0]["cite"]
    figures = waggle.plot(record, out=tmp_path / "figures", metric="bytes-context")
    assert {figure.suffix for figure in figures} == {".svg", ".tex"} and all(figure.exists() for figure in figures)
    same = waggle.compare(record, record)
    assert {row["ratio_of_bytes"] for row in same["work"]} == {1.0}
    with pytest.raises(waggle.WaggleError, match="nowhere"):
        waggle.sweep(links="nowhere")

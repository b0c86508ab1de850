//! Conversations between two processes. What the parties compute in a conversation is held by the tests of `session`.

use std::io::{Read, Write};
use std::path::Path;
use std::process::{ChildStdin, Command, Stdio};
use std::time::Duration;

use crate::support::{Ended, Process, Server, bytes, copy_model, ids, read_json, succeed, text, until, waggle};
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(600);

/// Five turns of a play. The tokens are letters, so that lengths are seen.
const TURNS: [&str; 5] = ["ROMEO:", "What says my lady", "JULIET:", "Good night", "NURSE:"];

/// A chat of `server` with its report; standard input is what comes first.
fn chat(server: &Server, arguments: &str, input: &str) -> (Ended, Option<Value>) {
    let dir = tempfile::tempdir().unwrap();
    let report = dir.path().join("report.json");
    let mut command = command(server, &format!("{arguments} --json {}", report.display()), dir.path());
    let ended = Process::fed(&mut command, input.as_bytes()).end(LIMIT);
    (ended, report.is_file().then(|| read_json(&report)))
}

fn command(server: &Server, arguments: &str, dir: &Path) -> Command {
    let mut command = waggle(&format!("chat --connect {} {arguments}", server.address));
    command.current_dir(dir);
    command
}

/// A chat whose lines the test writes one by one.
fn start(server: &Server, arguments: &str, dir: &Path) -> (Process, ChildStdin) {
    let mut chat = Process::start(command(server, arguments, dir).stdin(Stdio::piped()));
    let input = chat.child.stdin.take().unwrap();
    (chat, input)
}

fn lines(turns: &[&str]) -> String {
    turns.iter().map(|turn| format!("{turn}\n")).collect()
}

/// The answers of a report as they are printed.
fn shown(report: &Value) -> String {
    let answers = report["turns"].as_array().unwrap().iter().map(|turn| turn["text"].as_str().unwrap());
    answers.map(|text| format!("{}\n", text.strip_suffix('\n').unwrap_or(text))).collect()
}

#[test]
fn five_turns_are_those_of_the_clear_model() {
    let model = "shakespeare-llama";
    let server = Server::start(&format!("--model {model}"));
    for preprocess in [false, true] {
        let arguments = format!("--tokens 8 --turn-tokens 24 --check {model} --preprocess {preprocess}");
        let (output, report) = chat(&server, &arguments, &lines(&TURNS));
        assert_eq!(output.code, Some(0), "{}", output.errors);
        let report = report.unwrap();
        let turns = report["turns"].as_array().unwrap();
        assert_eq!((turns.len(), &report["token_agreement"]), (5, &1.0.into()));
        assert!(turns.iter().all(|turn| turn["conversation"] == 0), "{report}");
        // Standard output has the answers and nothing else.
        assert_eq!(output.text, shown(&report));
        assert!(!preprocess || bytes(&turns[4]["phases"]["offline"]) > 0);
    }
}

/// The cost of turn five beyond the cached length does not depend on how long the first turn was.
#[test]
fn the_last_turn_does_not_read_the_first_one_again() {
    let server = Server::start("--model shakespeare-llama");
    let last = |first: &str| {
        let turns = [first, "b", "c", "d", "e"];
        let (output, report) = chat(&server, "--tokens 2 --turn-tokens 110 --no-stop-at-eos", &lines(&turns));
        assert_eq!(output.code, Some(0), "{}", output.errors);
        report.unwrap()["turns"][4].clone()
    };
    let (short, long) = (last("a"), last(&"Now is the winter of our discontent ".repeat(3)));
    assert_eq!(short["prompt_tokens"], long["prompt_tokens"]);
    let [short, long] = [&short, &long].map(|turn| {
        ["setup", "offline", "prefill", "decode"].map(|phase| bytes(&turn["phases"][phase])).into_iter().sum::<u64>()
    });
    // A hundred more cached tokens: the attention of three tokens to them, and not a hundred tokens' passes.
    assert!(long < 2 * short, "{short} and {long} bytes");
}

#[test]
fn commands_are_carried_out() {
    let server = Server::start("--model shakespeare-gpt2");
    let dir = tempfile::tempdir().unwrap();
    let [readable, kept] = ["saved.txt", "kept.jsonl"].map(|name| dir.path().join(name));
    let input = format!(
        "ROMEO:\n/cost\n/save {}\n/reset\n/help\n/nonsense\n/save\n//slash\nROMEO:\n/quit\nnever read\n",
        readable.display()
    );
    let (output, report) = chat(&server, &format!("--tokens 6 --transcript {}", kept.display()), &input);
    let notes = output.errors;
    assert_eq!(output.code, Some(0), "{notes}");
    for words in
        ["last turn: ", "opening and a turn: ", "another conversation", "/quit", "/nonsense", "name of a file"]
    {
        assert!(notes.contains(words), "{words}: {notes}");
    }
    let report = report.unwrap();
    let turns = report["turns"].as_array().unwrap();
    let conversations: Vec<u64> = turns.iter().map(|turn| turn["conversation"].as_u64().unwrap()).collect();
    assert_eq!(conversations, [0, 1, 1]);
    let saved = std::fs::read_to_string(readable).unwrap();
    assert_eq!(saved, format!("> ROMEO:\n\n{}\n\n", turns[0]["text"].as_str().unwrap().trim_end_matches('\n')));
    let kept = std::fs::read_to_string(kept).unwrap();
    let kept: Vec<Value> =
        kept.lines().filter(|line| !line.is_empty()).map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(kept.len(), 6);
    assert_eq!((&kept[2]["role"], &kept[2]["text"]), (&"user".into(), &"/slash".into()));
    assert_eq!(kept[1]["text"], turns[0]["text"]);
}

#[test]
fn a_full_conversation_offers_another() {
    for (serve, arguments, length, full, taken) in [
        ("", "--tokens 20 --turn-tokens 62", 60, "of 256 positions", 4),
        ("--max-prompt 31 --max-tokens 9", "--tokens 4 --turn-tokens 30", 25, "has taken 29 of 40 positions", 2),
    ] {
        let server = Server::start(&format!("--model shakespeare-gpt2 {serve}"));
        let long = "a".repeat(length);
        let input = lines(&[&long, &long, &long, &long, "/reset", &long]);
        let (output, report) = chat(&server, &format!("{arguments} --no-stop-at-eos"), &input);
        let notes = output.errors;
        assert!(output.code == Some(0) && notes.contains(full) && notes.contains("/reset"), "{notes}");
        assert_eq!(report.unwrap()["turns"].as_array().unwrap().len(), taken);
        // One that is too long for a turn.
        let (output, report) = chat(&server, "--tokens 2 --turn-tokens 9", &lines(&["a long turn indeed", "short"]));
        assert!(output.errors.contains("--turn-tokens"), "{}", output.errors);
        assert_eq!(report.unwrap()["turns"].as_array().unwrap().len(), 1);
    }
    let server = Server::start("--model shakespeare-gpt2 --no-chat");
    let (output, _) = chat(&server, "--tokens 4", "a\n");
    let errors = output.errors;
    assert_eq!(output.code, Some(1), "{errors}");
    assert!(errors.contains("this server allows no conversations"), "{errors}");
}

#[test]
fn a_server_that_dies_is_noticed_and_the_transcript_kept() {
    // In the middle of an answer, and while nobody talks.
    for (arguments, over) in [("--tokens 100 --timeout 60", false), ("--tokens 2", true)] {
        let server = Server::start("--model shakespeare-llama");
        let dir = tempfile::tempdir().unwrap();
        let (mut chat, mut input) = start(&server, &format!("{arguments} --no-stop-at-eos"), dir.path());
        input.write_all(b"ROMEO:\n").unwrap();
        let mut answer = chat.child.stdout.take().unwrap();
        let mut letter = [0];
        answer.read_exact(&mut letter).unwrap();
        while over && letter != *b"\n" {
            answer.read_exact(&mut letter).unwrap();
        }
        drop(server);
        let Ended { code, errors, .. } = chat.end(LIMIT);
        drop((input, answer));
        assert_eq!(code, Some(1));
        let told: Vec<&str> = errors.lines().filter(|line| line.starts_with("error: ")).collect();
        assert_eq!(told.len(), 1, "{errors}");
        assert!(told[0].contains("the conversation so far is in waggle-chat-"), "{errors}");
        let first = &kept(dir.path())[0];
        assert_eq!((&first["role"], &first["text"]), (&"user".into(), &"ROMEO:".into()));
    }
}

/// The conversation in the only file of `dir`.
fn kept(dir: &Path) -> Vec<Value> {
    let file = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).next().unwrap();
    let text = std::fs::read_to_string(file).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// While the user types, the next turn is prepared. A server serves a generation besides.
#[test]
fn correlations_are_made_while_nobody_talks() {
    let server = Server::start("--model shakespeare-llama --sessions 2");
    let dir = tempfile::tempdir().unwrap();
    let report = dir.path().join("report.json");
    let arguments = format!("--preprocess --tokens 4 --turn-tokens 12 --no-stop-at-eos --json {}", report.display());
    let (chat, mut input) = start(&server, &arguments, dir.path());
    assert!(!succeed(&mut server.client("--prompt ROMEO: --tokens 2")).is_empty());
    for (i, turn) in ["ROMEO:", "JULIET:"].into_iter().enumerate() {
        until(|| (chat.log().matches("prepared: 16 of 16 tokens").count() > i).then_some(()));
        input.write_all(format!("{turn}\n").as_bytes()).unwrap();
    }
    drop(input);
    let output = chat.end(LIMIT);
    assert_eq!(output.code, Some(0), "{}", output.errors);
    for turn in read_json(&report)["turns"].as_array().unwrap() {
        assert!(bytes(&turn["before"]["offline"]) > bytes(&turn["phases"]["offline"]), "{turn}");
    }
}

/// A model directory with this chat template.
fn templated(template: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    copy_model("shakespeare-llama", dir.path());
    std::fs::write(dir.path().join("chat_template.jinja"), template).unwrap();
    dir
}

/// A chat template in the manner of ChatML, over the letters of the bundled tokenizer.
#[test]
fn a_template_of_the_server_writes_the_conversation() {
    let template = "{% for m in messages %}{{ m.role | upper }}:\n{{ m.content }}\n\n{% endfor %}\
        {% if add_generation_prompt %}ASSISTANT:\n{% endif %}";
    let dir = templated(template);
    let server = Server::start(&format!("--model {} --skip-range-check", dir.path().display()));
    let arguments = format!("--tokens 5 --system Speak --check {}", dir.path().display());
    let (output, report) = chat(&server, &arguments, &lines(&["Who is there?", "Nay"]));
    assert_eq!(output.code, Some(0), "{}", output.errors);
    let report = report.unwrap();
    assert_eq!(report["token_agreement"], 1.0);
    let read = |i: usize| report["turns"][i]["prompt_tokens"].as_u64().unwrap() as usize;
    assert_eq!(read(0), "SYSTEM:\nSpeak\n\nUSER:\nWho is there?\n\nASSISTANT:\n".len());
    // After the answer: the end of its message and the next one. Its last letter was not read, unless the model
    // ended it with the line end that the template writes, too.
    let suffix = "\n\nUSER:\nNay\n\nASSISTANT:\n".len();
    assert!([suffix, suffix + 1].contains(&read(1)), "{}", read(1));
    assert!(!output.errors.contains("from its beginning"), "{}", output.errors);
}

/// A blank ends an answer; what the model says behind it is neither seen nor remembered.
#[test]
fn an_answer_runs_on_to_a_bucket_that_is_all_the_server_learns() {
    let dir = tempfile::tempdir().unwrap();
    copy_model("shakespeare-llama", dir.path());
    let config = dir.path().join("config.json");
    let ends = std::fs::read_to_string(&config).unwrap().replace("\"eos_token_id\": null", "\"eos_token_id\": 1");
    std::fs::write(config, ends).unwrap();
    let model = dir.path().display();
    let server = Server::start(&format!("--model {model} --skip-range-check"));
    let said = ["ROMEO:", "My lord", "What is"];
    let talk = |more: &str| {
        let (output, report) = chat(&server, &format!("--tokens 40 --check {model} {more}"), &lines(&said));
        assert_eq!(output.code, Some(0), "{}", output.errors);
        (output.text, report.unwrap())
    };
    let (printed, report) = talk("");
    assert_eq!((&report["token_agreement"], &report["options"]["pad_answer"]), (&1.0.into(), &true.into()));
    assert_eq!(printed, shown(&report));
    let lengths = |report: &Value| -> Vec<(usize, usize)> {
        let of = |turn: &Value| {
            let tokens = ids(&turn["tokens"]);
            let end = tokens.iter().position(|token| *token == 1);
            assert!(end.is_none_or(|end| end + 1 == tokens.len()), "{tokens:?}");
            (tokens.len(), 1 + turn["phases"]["decode"]["per_token"].as_array().unwrap().len())
        };
        report["turns"].as_array().unwrap().iter().map(of).collect()
    };
    let padded = lengths(&report);
    assert!(padded.iter().all(|(tokens, told)| *told == waggle_model::bucket(*tokens).min(40)), "{padded:?}");
    assert!(padded.iter().any(|(tokens, told)| tokens < told), "{padded:?}");
    // The turns read as many tokens as without padding, and the first answer is the same.
    let (_, plain) = talk("--no-pad-answer");
    assert!(lengths(&plain).iter().all(|(tokens, told)| tokens == told));
    assert_eq!(plain["turns"][0]["text"], report["turns"][0]["text"]);
    assert_eq!(plain["turns"][1]["prompt_tokens"], report["turns"][1]["prompt_tokens"]);
    drop(server);
    // The text that a template has read again contains the lengths of answers.
    std::fs::write(dir.path().join("chat_template.jinja"), "{{ messages | length }}{{ messages[-1].content }}")
        .unwrap();
    let server = Server::start(&format!("--model {model} --skip-range-check"));
    for (more, turns) in [("", 1), ("--no-pad-answer", 2)] {
        let (output, report) = chat(&server, &format!("--tokens 17 {more}"), &lines(&said[..2]));
        assert_eq!(report.unwrap()["turns"].as_array().unwrap().len(), turns, "{}", output.errors);
        assert_eq!(output.errors.contains("would show how long the answers were"), turns == 1);
    }
    drop(server);
    let policy = "--policy streaming:budget=32,block=8";
    let server = Server::start(&format!("--model {model} --skip-range-check {policy}"));
    let (output, _) = chat(&server, &format!("{policy} --pad-answer"), "ROMEO:\n");
    assert_eq!(output.code, Some(1));
    assert!(output.errors.contains("padding needs cache policy `full`"), "{}", output.errors);
    let (output, report) = chat(&server, &format!("{policy} --tokens 4"), "ROMEO:\n");
    assert_eq!(output.code, Some(0), "{}", output.errors);
    assert_eq!(report.unwrap()["options"]["pad_answer"], false);
}

/// Signs of life come while nobody talks and while all lines are refused.
#[test]
fn a_client_that_thinks_is_not_given_up() {
    let server = Server::start("--model shakespeare-gpt2 --timeout 60 --log debug");
    let dir = tempfile::tempdir().unwrap();
    let (chat, mut input) = start(&server, "--tokens 2 --turn-tokens 9", dir.path());
    let signs = || server.log().matches("the client is there").count();
    until(|| (signs() >= 1).then_some(()));
    while signs() < 3 {
        input.write_all(b"a turn that is too long\n").unwrap();
    }
    input.write_all(b"ROMEO:\n/quit\n").unwrap();
    drop(input);
    let output = chat.end(LIMIT);
    assert_eq!(output.code, Some(0), "{}\n{}", server.log(), output.errors);
    assert!(!output.text.is_empty());
}

#[test]
#[cfg(unix)]
fn a_server_that_ends_waits_for_nobody_who_says_nothing() {
    let server = Server::start("--model shakespeare-gpt2");
    let dir = tempfile::tempdir().unwrap();
    let (chat, mut input, answers) = answering(&server, "--tokens 8 --no-stop-at-eos", dir.path());
    server.signal("TERM");
    let Ended { code, errors: said, .. } = server.end(LIMIT);
    assert!(code == Some(0) && said.contains("this server is ending"), "{code:?} {said}");
    let _ = input.write_all(b"JULIET:\n");
    drop(input);
    let output = chat.end(LIMIT);
    assert_eq!(output.code, Some(1), "{}", output.errors);
    assert!(answers.join().unwrap().len() > 4, "the answer that ran is whole");
}

#[test]
fn a_client_hears_that_its_time_is_up() {
    let server = Server::start("--model shakespeare-gpt2 --session-limit 60");
    let dir = tempfile::tempdir().unwrap();
    let (chat, _input) = start(&server, "--tokens 2", dir.path());
    let Ended { code, errors, .. } = chat.end(LIMIT);
    assert_eq!(code, Some(1), "{errors}");
    assert!(errors.contains("the server ends a session after 60 s"), "{errors}");
}

/// One bad line is refused, and a conversation of nothing else is a failure.
#[test]
fn refused_turns_leave_the_conversation_and_a_code() {
    let server = Server::start("--model shakespeare-gpt2");
    let dir = tempfile::tempdir().unwrap();
    let talk = |bytes: &[u8], arguments: &[&str]| {
        let mut command = command(&server, "--tokens 2", dir.path());
        let Ended { code, errors, .. } = Process::fed(command.args(arguments), bytes).end(LIMIT);
        (code, errors)
    };
    let bad = b"caf\xe9\n";
    let (code, notes) = talk(&[b"ROMEO:\n", &bad[..], b"JULIET:\n"].concat(), &[]);
    assert!(code == Some(0) && notes.contains("refused: the line is not UTF-8"), "{code:?} {notes}");
    let turns = dir.path().join("turns");
    std::fs::write(&turns, bad).unwrap();
    for (bytes, arguments) in [(&bad[..], &[][..]), (b"", &["--turns", turns.to_str().unwrap()])] {
        let (code, notes) = talk(bytes, arguments);
        assert!(code == Some(1) && notes.contains("error: no turn was taken"), "{code:?} {notes}");
    }
    // The text before the first turn is too long, and is named.
    let (code, notes) = talk(b"ROMEO:\n", &["--turn-tokens", "20", "--system", "Speak in verse, or be silent"]);
    assert!(code == Some(1) && notes.contains("the system text, which stands before it"), "{code:?} {notes}");
    assert!(notes.contains("has 28 tokens"), "{notes}");
    // A file that is there stays as it is.
    std::fs::write(dir.path().join("mine.txt"), "mine").unwrap();
    let (code, notes) = talk(b"ROMEO:\n/save mine.txt\n/save new.txt\n", &[]);
    assert!(
        code == Some(0) && notes.contains("not saved: mine.txt") && notes.contains("saved in new.txt"),
        "{notes}"
    );
    assert_eq!(std::fs::read_to_string(dir.path().join("mine.txt")).unwrap(), "mine");
    drop(server);
    let model = templated("{{ raise_exception('no') }}");
    let server = Server::start(&format!("--model {} --skip-range-check", model.path().display()));
    let (output, _) = chat(&server, "--tokens 2", &lines(&TURNS));
    let notes = output.errors;
    assert_eq!(output.code, Some(1), "{notes}");
    assert!(notes.contains("no turn was taken; refused: 5"), "{notes}");
}

/// A chat in the middle of its first answer, and a thread that reads its answers.
#[cfg(unix)]
fn answering(server: &Server, arguments: &str, dir: &Path) -> (Process, ChildStdin, std::thread::JoinHandle<String>) {
    let (mut chat, mut input) = start(server, arguments, dir);
    input.write_all(b"ROMEO:\n").unwrap();
    let mut answers = chat.child.stdout.take().unwrap();
    let mut first = [0];
    answers.read_exact(&mut first).unwrap();
    let rest = std::thread::spawn(move || {
        let mut all = first.to_vec();
        answers.read_to_end(&mut all).unwrap();
        text(&all)
    });
    (chat, input, rest)
}

#[test]
#[cfg(unix)]
fn an_interrupt_stops_the_answer_and_keeps_the_talk() {
    let server = Server::start("--model shakespeare-llama");
    let dir = tempfile::tempdir().unwrap();
    // The server learns the end of an answer, or it does not: then the rest comes unseen.
    for (i, (arguments, tokens)) in
        [("--tokens 300", None), ("--tokens 100 --no-stop-at-eos", Some(100))].into_iter().enumerate()
    {
        let report = dir.path().join(format!("{i}.json"));
        let arguments = format!("{arguments} --json {}", report.display());
        let (chat, mut input, answers) = answering(&server, &arguments, dir.path());
        chat.signal("INT");
        chat.wait_for("the answer stops");
        input.write_all(b"/cost\n/quit\n").unwrap();
        let Ended { code, errors: notes, .. } = chat.end(LIMIT);
        let answers = answers.join().unwrap();
        assert_eq!(code, Some(0), "{notes}");
        assert!(notes.contains("opening and a turn: "), "{notes}");
        let report = read_json(&report);
        let (got, said) = (ids(&report["turns"][0]["tokens"]).len(), report["turns"][0]["text"].as_str().unwrap());
        match tokens {
            None => assert!((1..300).contains(&got), "{got} tokens"),
            Some(tokens) => assert!(got == tokens && answers.len() < said.len(), "{got} tokens: {answers}"),
        }
        assert!(said.starts_with(answers.trim_end_matches('\n')), "{said:?} and {answers:?}");
    }
}

#[test]
#[cfg(unix)]
fn a_second_interrupt_ends_the_session_and_keeps_what_was_said() {
    let server = Server::start("--model shakespeare-llama");
    let dir = tempfile::tempdir().unwrap();
    let (chat, _input, answers) = answering(&server, "--tokens 300 --no-stop-at-eos", dir.path());
    chat.signal("INT");
    chat.wait_for("the answer stops");
    chat.signal("INT");
    let Ended { code, errors: notes, .. } = chat.end(LIMIT);
    assert_eq!(code, Some(130), "{notes}");
    assert!(notes.contains("error: interrupted; the conversation so far is in waggle-chat-"), "{notes}");
    let kept = kept(dir.path());
    assert_eq!((&kept[0]["role"], &kept[0]["text"]), (&"user".into(), &"ROMEO:".into()));
    assert!(kept[1]["text"].as_str().unwrap().starts_with(answers.join().unwrap().trim_end_matches('\n')));
}

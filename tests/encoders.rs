//! Two processes classify a text as the plaintext encoder does.

use std::path::Path;

use crate::support::{Server, fail, fails, json, succeed, waggle};

const BERT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/model/tests/data/encoders/bert");
const TEXT: &str = "Hello worlds, the film was not very good!";

/// `line` with the text, which has spaces.
fn on_text(mut command: std::process::Command, option: &str) -> std::process::Command {
    command.args([option, TEXT]);
    command
}

#[test]
fn a_server_gives_the_class_of_a_text() {
    let label = succeed(&mut on_text(waggle(&format!("float --model {BERT} --tokens 1")), "--prompt"));
    assert!(["no\n", "perhaps\n", "yes\n"].contains(&&*label), "{label}");
    let demo = json(&mut on_text(waggle(&format!("demo --model {BERT} --check")), "--prompt"));
    assert_eq!(demo["token_agreement"], 1.0);
    assert!(demo["max_abs_logit_error"].as_f64().unwrap() < 0.01, "{demo}");
    let shy = Server::start(&format!("--model {BERT} --reveal token"));
    let server = Server::start(&format!("--model {BERT}"));
    for (server, terms) in [(&server, ""), (&server, "--preprocess"), (&shy, "--reveal token")] {
        let mut client = on_text(waggle(&format!("classify --connect {} {terms}", server.address)), "--text");
        assert_eq!(succeed(&mut client), label, "{terms}");
    }
    // A padded text has the same class, and the server sees the padded length alone.
    let line = format!("classify --connect {} --pad 7,24 --preprocess", server.address);
    let mut padded = on_text(waggle(&line), "--text");
    assert_eq!(json(&mut padded)["options"]["padded_prompt"], 24);
    let padded = json(&mut on_text(waggle(&format!("demo --model {BERT} --check --pad-prompt 24")), "--prompt"));
    assert_eq!(padded["token_agreement"], 1.0);
    assert!(padded["max_abs_logit_error"].as_f64().unwrap() < 0.01, "{padded}");
    // A pair is read as one, by the server's tokenizer in a process of its own; decoders have no use for one.
    let pair = |line: &str| {
        let mut client = on_text(waggle(&format!("classify --connect {line}")), "--text");
        client.args(["--pair", "good, hello!"]);
        client
    };
    let report = json(&mut pair(&server.address));
    assert_eq!(report["prompt_tokens"], 18);
    let decoder = Server::start("--model stories260k");
    fails(&mut pair(&decoder.address), 1, ["two texts need an encoder"]);
    // One text has a form for programs as a file of them has.
    let line = format!("classify --connect {} --text-ids 2,5,3 --format json", server.address);
    let one: serde_json::Value = serde_json::from_str(&succeed(&mut waggle(&line))).unwrap();
    assert!(one[0]["line"] == 1 && one[0]["class"].is_string(), "{one}");
    // The next word of a text is no class.
    let mut client = on_text(waggle(&format!("classify --connect {}", decoder.address)), "--text");
    fails(&mut client, 1, ["gives no class"]);
    let ids = demo["prompt_tokens"].as_u64().unwrap();
    assert_eq!(ids, 13, "pieces, and the tokens around them");
    fails(&mut waggle(&format!("classify --connect {} --text-ids 1,2,900", server.address)), 1, ["900"]);
    fails(&mut server.client("--prompt-ids 2,5,3 --tokens 2"), 1, ["more than one token", "encoder"]);
    let mut long = waggle(&format!("classify --connect {} --text-ids 2,5,3 --pad 99999999999", server.address));
    fails(&mut long, 1, ["99999999999 positions would go through a model that has"]);
}

/// Classes that are found each by itself are all printed, with sigmoids.
#[test]
fn a_server_gives_all_classes_that_are_found_by_themselves() {
    let dir = tempfile::tempdir().unwrap();
    for file in ["model.safetensors", "tokenizer.json"] {
        std::fs::copy(Path::new(BERT).join(file), dir.path().join(file)).unwrap();
    }
    let config = std::fs::read_to_string(Path::new(BERT).join("config.json")).unwrap();
    let config = config.replacen('{', "{\"problem_type\": \"multi_label_classification\",", 1);
    std::fs::write(dir.path().join("config.json"), config).unwrap();
    let model = dir.path().display();
    let server = Server::start(&format!("--model {model}"));
    let printed = succeed(&mut on_text(waggle(&format!("classify --connect {}", server.address)), "--text"));
    let read = |line: &str| line.split_once(' ').map(|(name, p)| (name.to_owned(), p.parse::<f64>().unwrap()));
    let found: Vec<(String, f64)> = printed.lines().map(|line| read(line).unwrap()).collect();
    let label = succeed(&mut on_text(waggle(&format!("float --model {model} --tokens 1")), "--prompt"));
    assert_eq!((found.len(), &found[0].0), (3, &label.trim().to_owned()), "{printed}");
    assert!(found.is_sorted_by(|a, b| a.1 >= b.1) && (found.iter().map(|of| of.1).sum::<f64>() - 1.0).abs() > 0.01);
    let data = dir.path().join("lines.tsv");
    std::fs::write(&data, "sentence\tlabel\nhello\tno\n").unwrap();
    let line = format!("eval --task glue --model {model} --data {}", data.display());
    fails(&mut waggle(&line), 1, ["one class of several", "multi_label_classification"]);
}

/// The bytes of a real session are those of its plan, in one phase and in two.
#[test]
fn plans_of_encoders_equal_their_sessions() {
    let (text, image) = ("--prompt-ids 4,8,15,16,23,42".to_owned(), format!("--image {VIT}/image.png"));
    let masked = "--prompt-ids 2,15,4,16,23,3".to_owned();
    for (encoder, input, length) in [
        ("bert", &text, 6),
        ("roberta", &text, 6),
        ("distilbert", &text, 6),
        ("bert-masked", &masked, 6),
        ("vit", &image, 17),
    ] {
        let model = format!("{}/model/tests/data/encoders/{encoder}", env!("CARGO_MANIFEST_DIR"));
        let mut cases = vec![("", "", "", length), ("--preprocess", "", "", length)];
        if encoder != "vit" {
            cases.push(("--preprocess", "--pad-prompt 9", "--pad-prompt", 9));
        }
        for (phases, pad, padded, length) in cases {
            let terms = format!("--model {model} --tokens 1 --link lan --cores 2 {phases}");
            let run = json(&mut waggle(&format!("demo {input} {terms} {pad}")));
            let plan = json(&mut waggle(&format!("plan --prompt-len {length} {terms} {padded}")));
            for phase in ["offline", "prefill"] {
                for number in ["bytes_client_to_server", "bytes_server_to_client", "flows"] {
                    let [run, plan] = [&run, &plan].map(|report| &report["phases"][phase][number]);
                    assert_eq!(run, plan, "{encoder} {phases}, {phase}: {number}");
                }
            }
        }
    }
}

/// The word of a mask, whatever the phases, the padding and what is opened.
#[test]
fn a_server_gives_the_word_of_a_mask() {
    const MASKED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/model/tests/data/encoders/bert-masked");
    let texts = |line: &str, option: &str, text: &str| {
        let mut command = waggle(line);
        command.args([option, text]);
        command
    };
    let text = "the [MASK] was not very good!";
    let word = succeed(&mut texts(&format!("float --model {MASKED} --tokens 1"), "--prompt", text));
    let demo = format!("demo --model {MASKED} --check --preprocess --pad-prompt 24");
    let demo = json(&mut texts(&demo, "--prompt", text));
    assert_eq!((&demo["token_agreement"], &demo["options"]["padded_prompt"]), (&1.0.into(), &24.into()));
    let shy = Server::start(&format!("--model {MASKED} --reveal token"));
    let server = Server::start(&format!("--model {MASKED}"));
    for (server, terms) in [(&server, ""), (&server, "--preprocess"), (&server, "--pad 24"), (&shy, "--reveal token")]
    {
        let line = format!("classify --connect {} {terms}", server.address);
        assert_eq!(succeed(&mut texts(&line, "--text", text)), word, "{terms}");
    }
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("lines.jsonl");
    std::fs::write(&file, format!("{{\"text\": \"{text}\"}}\n").repeat(2)).unwrap();
    let line = format!("classify --connect {} --format csv --columns line,class", server.address);
    let table = succeed(&mut texts(&line, "--file", &file.display().to_string()));
    assert_eq!(table, format!("line,class\n1,{word}2,{word}"));
    for (text, count) in [("the film", 0), ("[MASK] [MASK] film", 2)] {
        let line = format!("classify --connect {}", server.address);
        let errors = fail(&mut texts(&line, "--text", text), 1);
        let why = format!("the word in the place of one [MASK]; the text has {count}");
        assert!(errors.contains(&why) && errors.trim_end().lines().count() == 1, "{errors}");
    }
}

/// Lines of a file go through the model side by side; each has the class that it has alone.
#[test]
fn a_file_of_texts_is_classified_in_batches() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        std::fs::write(dir.path().join(name), text).unwrap();
        dir.path().join(name).display().to_string()
    };
    let texts = ["Hello worlds!", "The film was not very good.", "good"];
    let lines: Vec<String> = texts.iter().map(|text| format!("{{\"text\": \"{text}\"}}\n")).collect();
    let file = lines.concat() + "\n{\"text\": \"good\", \"pair\": \"hello\"}\n";
    let file = write("lines.jsonl", &format!("\u{feff}{file}"));
    let server = Server::start(&format!("--model {BERT}"));
    let classify = |options: &str| waggle(&format!("classify --connect {} {options}", server.address));
    let mut alone = texts.map(|text| succeed(classify("").args(["--text", text])).trim().to_owned()).to_vec();
    alone.push(succeed(&mut classify("--text good --pair hello")).trim().to_owned());
    for options in ["", "--batch 3", "--preprocess --pad"] {
        let table = succeed(&mut classify(&format!("--file {file} --format csv {options}")));
        let rows: Vec<Vec<&str>> = table.lines().skip(1).map(|row| row.split(',').collect()).collect();
        let expected: Vec<(String, &String)> =
            ["1", "2", "3", "5"].map(String::from).into_iter().zip(&alone).collect();
        let got: Vec<(String, &str)> = rows.iter().map(|row| (row[0].to_owned(), row[1])).collect();
        assert!(
            got.iter().map(|(line, class)| (line, *class)).eq(expected.iter().map(|(l, c)| (l, &***c))),
            "{table}"
        );
    }
    // The plan of four texts is the session's, and a pool for four texts serves it.
    let run = json(&mut classify(&format!("--file {file} --pad 16 --preprocess --cores 2 --plan-for lan")));
    assert_eq!((&run["options"]["texts"], &run["prompt_tokens"]), (&4.into(), &16.into()));
    let pools = Server::start(&format!("--model {BERT} --pools {}", dir.path().join("server").display()));
    let pool = dir.path().join("pool").display().to_string();
    let fill = |texts: usize| {
        let line = format!(
            "preprocess --connect {} --pool {pool} --prompt-len 16 --tokens 1 --texts {texts}",
            pools.address
        );
        succeed(&mut waggle(&line))
    };
    fill(4);
    let spend = format!("classify --connect {} --pool {pool} --file {file} --pad 16 --format csv", pools.address);
    let table = succeed(&mut waggle(&spend));
    assert_eq!(table.lines().skip(1).map(|row| row.split(',').nth(1).unwrap()).collect::<Vec<_>>(), alone);
    fill(3);
    fails(&mut waggle(&spend), 1, ["texts"]);
    // What is no line of inputs, in one line.
    for (text, why) in [
        ("{\"text\": \"good\"}\n{\"texts\": 1}\n", "line 2: unknown field `texts`"),
        ("{\"pair\": \"good\"}\n", "line 1: give `text`"),
        ("good\n", "line 1: "),
        ("\n", "no tokens"),
    ] {
        let errors = fail(&mut classify(&format!("--file {}", write("bad.jsonl", text))), 1);
        assert!(errors.contains(why) && errors.trim_end().lines().count() == 1, "{errors}");
    }
    fails(&mut classify(&format!("--file {file} --batch 2 --json x.json")), 1, ["--json", "2"]);
    // All lines are looked at before a session goes on to its end and says what it took.
    let ids = "{\"ids\": [2, 5, 3]}\n\n";
    for (last, why) in [
        ("{\"ids\": [2, 900]}", "line 9: token id 900 is outside"),
        (&format!("{{\"ids\": [{}2]}}", "2,".repeat(600)), "line 9: 601 positions would go through a model"),
        ("{\"image\": \"none.png\"}", "line 9: none.png"),
    ] {
        let file = write("bad.jsonl", &(ids.repeat(4) + last));
        let errors = fail(&mut classify(&format!("--file {file} --batch 2")), 1);
        assert!(errors.contains(why) && errors.trim_end().lines().count() == 1, "{errors}");
    }
    // Nobody is there whom a bad column could be asked of.
    fails(&mut waggle(&format!("classify --connect 127.0.0.1:1 --file {file} --columns nope")), 1, ["nope"]);
}

#[test]
fn encoders_refuse_what_only_decoders_do() {
    let out = tempfile::tempdir().unwrap();
    for (command, why) in [
        (format!("demo --model {BERT} --prompt-ids 2,5,3 --tokens 3"), "more than one token"),
        (format!("demo --model {BERT} --prompt-ids 2,5,3 --tokens 1 --policy streaming"), "a cache policy"),
        (format!("demo --model {BERT} --prompt-ids 2,5,3 --tokens 1 --draft lookup"), "a draft"),
        (format!("demo --model {VIT} --image {VIT}/image.png --pad-prompt 32"), "a padded image"),
        (format!("eval --model {BERT} --text tinystories.json"), "more than one token"),
        (format!("quantize --model {BERT} --out {}", out.path().join("int8").display()), "matrices of 8 bits"),
    ] {
        fails(&mut waggle(&command), 1, [why, "encoder"]);
    }
}

const VIT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/model/tests/data/encoders/vit");

/// A client decodes and normalises its image; the server's `preprocessor_config.json` says how.
#[test]
fn a_server_gives_the_class_of_an_image() {
    let image = format!("--image {VIT}/image.png");
    let label = succeed(&mut waggle(&format!("float --model {VIT} --tokens 1 {image}")));
    assert_eq!(label, "yes\n");
    let demo = json(&mut waggle(&format!("demo --model {VIT} --check {image}")));
    assert_eq!((&demo["token_agreement"], &demo["prompt_tokens"]), (&1.0.into(), &17.into()));
    assert!(demo["max_abs_logit_error"].as_f64().unwrap() < 0.01, "{demo}");
    let server = Server::start(&format!("--model {VIT}"));
    let classify = |terms: &str| waggle(&format!("classify --connect {} {terms}", server.address));
    for terms in ["", "--preprocess", &format!("--preprocessor {VIT}/preprocessor_config.json")] {
        assert_eq!(succeed(&mut classify(&format!("{image} {terms}"))), label, "{terms}");
    }
    // What is no image of the model's, in one line.
    let dir = tempfile::tempdir().unwrap();
    let png = std::fs::read(format!("{VIT}/image.png")).unwrap();
    let file = |name: &str, bytes: &[u8]| {
        std::fs::write(dir.path().join(name), bytes).unwrap();
        format!("--image {}", dir.path().join(name).display())
    };
    for (input, why) in [
        (file("text", b"Hello"), "neither a PNG nor a JPEG"),
        (file("short.png", &png[..png.len() / 2]), "short.png: "),
        ("--text-ids 1,2,3".to_owned(), "the model reads images, and no texts"),
        (format!("{image} --preprocessor {VIT}/config.json"), "the model reads 32 x 32"),
    ] {
        let errors = fail(&mut classify(&input), 1);
        assert!(errors.contains(why) && errors.trim_end().lines().count() == 1, "{errors}");
    }
    fails(&mut waggle(&format!("demo --model {BERT} {image}")), 1, ["the model reads texts, and no images"]);
    let texts = Server::start(&format!("--model {BERT}"));
    let mut client = waggle(&format!("classify --connect {} {image}", texts.address));
    fails(&mut client, 1, ["the model reads texts, and no images"]);
}

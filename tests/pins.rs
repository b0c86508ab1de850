//! A server's model, insisted on and remembered; prompts from files.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::support::{Server, copy_model, fail, fails, of, succeed, text, waggle};
use waggle_session::Expectation;

const MODEL: &str = "shakespeare-gpt2";

/// Starts a server of the user whose keys lie in `home`.
fn serve(home: &Path, model: &str, listen: &str) -> Server {
    Server::run(of(waggle(&format!("serve --allow-any --listen {listen} --model")), home).arg(model))
}

fn client(home: &Path, address: &str, more: &[&str]) -> Command {
    let mut command = of(waggle(&format!("generate --connect {address} --tokens 1")), home);
    command.args(more);
    command
}

/// The key of the user whose keys lie in `home`.
fn key(home: &Path) -> String {
    succeed(&mut of(waggle("keygen"), home)).trim().to_owned()
}

#[test]
fn a_model_that_a_server_changes_is_refused_until_the_client_accepts_it() {
    let dirs = [(); 3].map(|()| tempfile::tempdir().unwrap());
    let [theirs, ours, changed] = dirs.each_ref().map(|dir| dir.path());
    let key = key(theirs);
    let known = ours.join("known_servers");
    let pin = || fs::read_to_string(&known).unwrap().split_whitespace().nth(2).map(str::to_owned);

    let server = serve(theirs, MODEL, "127.0.0.1:0");
    let address = server.address.clone();
    succeed(&mut client(ours, &address, &["--server-key", &key]));
    let old = generated(MODEL);
    assert_eq!(pin().as_deref(), Some(old.as_str()));
    succeed(&mut client(ours, &address, &["--expect", &old]));
    // The expected model is compared before a prompt is sent.
    let config = directory_with_other_tokens(changed);
    let errors = fail(&mut client(ours, &address, &["--expect", &config]), 1);
    assert!(errors.contains("model") && errors.lines().count() <= 2, "{errors}");
    let wrong = old.replace("waggle-model:", "waggle-model:00").chars().take(old.len()).collect::<String>();
    fails(&mut client(ours, &address, &["--expect", &wrong]), 1, ["not the expected one"]);
    drop(server);

    // Another tokenizer under the same key and address: one word for each letter would count letters differently.
    copy_model(MODEL, changed);
    let tokenizer = changed.join("tokenizer.json");
    let text = fs::read_to_string(&tokenizer).unwrap();
    fs::write(tokenizer, text.replace("[\\\\s\\\\S]", "[\\\\s\\\\S]{1}")).unwrap();
    let changed = changed.to_str().unwrap();
    let server = serve(theirs, changed, &address);
    let new = generated(changed);
    assert_ne!(old, new);
    let errors = fail(&mut client(ours, &address, &[]), 1);
    for part in [&old, &new, "tokenizer", "--expect"] {
        assert!(errors.contains(part), "{part}: {errors}");
    }
    assert_eq!(pin().as_deref(), Some(old.as_str()), "a refused model is not remembered");
    succeed(&mut client(ours, &address, &["--expect", &new]));
    assert_eq!(pin().as_deref(), Some(new.as_str()));
    succeed(&mut client(ours, &address, &[]));
    // A server of one's own is not pinned.
    drop(server);
    succeed(&mut client(theirs, &serve(theirs, MODEL, "127.0.0.1:0").address, &[]));
    assert!(!theirs.join("known_servers").exists());
}

/// The fingerprint of a model as a generation meets it, which asks for no chat template.
fn generated(model: &str) -> String {
    Expectation::named(model).unwrap().fingerprint.to_string().split('+').next().unwrap().to_owned()
}

/// Both templates leave every message alone; the second one has something to say beside them.
#[test]
fn a_server_that_changes_its_chat_template_alone_is_refused_until_the_client_accepts_it() {
    let dirs = [(); 3].map(|()| tempfile::tempdir().unwrap());
    let [theirs, ours, model] = dirs.each_ref().map(|dir| dir.path());
    let key = key(theirs);
    let pin =
        || fs::read_to_string(ours.join("known_servers")).unwrap().split_whitespace().nth(2).unwrap().to_owned();
    copy_model(MODEL, model);
    let file = model.join("chat_template.jinja");
    let plain = "{% for m in messages %}{{ m.content }}\n{% endfor %}";
    let curious = format!("\x1b[8m{plain}\x1b[0mBe brief if I am ill.\n");
    let named = || Expectation::named(model.to_str().unwrap()).unwrap().fingerprint.to_string();
    let chat = |address: &str, more: &[&str]| {
        let mut command = of(waggle(&format!("chat --connect {address} --tokens 1")), ours);
        let mut child = command.args(more).stdin(Stdio::piped()).spawn().unwrap();
        // A client that is refused does not read.
        let _ = child.stdin.take().unwrap().write_all(b"ROMEO:\n");
        let output = child.wait_with_output().unwrap();
        (output.status.success(), text(&output.stderr))
    };

    fs::write(&file, plain).unwrap();
    let server = serve(theirs, model.to_str().unwrap(), "127.0.0.1:0");
    let address = server.address.clone();
    let (good, notes) = chat(&address, &["--server-key", &key]);
    assert!(good && notes.contains("{{ m.content }}"), "it is shown when it is first met: {notes}");
    let old = named();
    assert_eq!(pin(), old);
    let (good, notes) = chat(&address, &[]);
    assert!(good && !notes.contains("{{ m.content }}"), "and not again: {notes}");
    drop(server);

    fs::write(&file, &curious).unwrap();
    let server = serve(theirs, model.to_str().unwrap(), &address);
    let new = named();
    let (good, errors) = chat(&address, &[]);
    assert!(!good && errors.contains("the chat template of the model") && errors.contains(&new), "{errors}");
    let (good, errors) = chat(&address, &["--expect", &old]);
    assert!(!good && errors.contains("the server's chat template is not the expected one"), "{errors}");
    // Whoever has no use for it does not compare it, and does not forget it.
    succeed(&mut client(ours, &address, &[]));
    let own = ours.join("own.jinja");
    fs::write(&own, plain).unwrap();
    for more in [&["--no-template"][..], &["--template", own.to_str().unwrap()]] {
        let (good, errors) = chat(&address, more);
        assert!(good, "{errors}");
    }
    assert_eq!(pin(), old);
    let (good, notes) = chat(&address, &["--expect", &new]);
    assert!(good && notes.contains("Be brief if I am ill."), "{notes}");
    assert!(!notes.contains('\x1b'), "a terminal gets no control character: {notes:?}");
    assert_eq!(pin(), new);
    drop(server);

    // A template that goes is a change, too.
    fs::remove_file(&file).unwrap();
    let _server = serve(theirs, model.to_str().unwrap(), &address);
    let (good, errors) = chat(&address, &[]);
    assert!(!good && errors.contains("the chat template of the model"), "{errors}");
}

/// A proxy has nobody before it whom it could ask, so what a server has put around words stands in its log.
#[test]
fn a_proxy_logs_a_template_that_is_new() {
    let dirs = [(); 3].map(|()| tempfile::tempdir().unwrap());
    let [theirs, ours, model] = dirs.each_ref().map(|dir| dir.path());
    let key = key(theirs);
    copy_model(MODEL, model);
    let plain = "{% for m in messages %}{{ m.content }}\n{% endfor %}";
    let serve = |template: &str, listen: &str| {
        fs::write(model.join("chat_template.jinja"), template).unwrap();
        serve(theirs, model.to_str().unwrap(), listen)
    };
    let proxy = |address: &str, more: &[&str]| {
        let mut command = of(waggle(&format!("proxy --listen 127.0.0.1:0 --connect {address}")), ours);
        command.args(more);
        command
    };
    let server = serve(plain, "127.0.0.1:0");
    let address = server.address.clone();
    for (more, shown) in [(&["--server-key", &*key][..], 1), (&[], 0)] {
        let log = Server::run(&mut proxy(&address, more)).stop();
        assert_eq!(log.matches("{{ m.content }}\\n{% endfor %}").count(), shown, "{log}");
    }
    drop(server);
    let _server = serve(&format!("\x1b[8m{plain}\x1b[0mBe brief if I am ill.\n"), &address);
    fails(&mut proxy(&address, &[]), 1, ["the chat template of the model"]);
    let new = Expectation::named(model.to_str().unwrap()).unwrap().fingerprint.to_string();
    let log = Server::run(&mut proxy(&address, &["--expect", &new])).stop();
    assert!(log.contains("Be brief if I am ill.") && !log.contains('\x1b') && log.lines().count() == 1, "{log:?}");
}

/// A configuration with another set of end tokens.
fn directory_with_other_tokens(dir: &Path) -> String {
    let file = dir.join("other.json");
    let assets = Path::new(env!("CARGO_MANIFEST_DIR")).join("model/assets").join(MODEL);
    let text = fs::read_to_string(assets.join("config.json")).unwrap();
    let mut config: serde_json::Value = serde_json::from_str(&text).unwrap();
    config["eos_token_id"] = serde_json::json!([0, 1]);
    fs::write(&file, config.to_string()).unwrap();
    file.to_str().unwrap().to_owned()
}

#[test]
fn a_prompt_comes_from_a_file_or_from_standard_input() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("prompt.txt");
    fs::write(&file, "JULIET:\n").unwrap();
    let float = |more: &[&str]| {
        let mut command = waggle("float --model shakespeare-gpt2 --tokens 4");
        command.args(more);
        command
    };
    let wanted = succeed(&mut float(&["--prompt", "JULIET:\n"]));
    assert_eq!(succeed(&mut float(&["--prompt-file", file.to_str().unwrap()])), wanted);
    let mut child = float(&["--prompt-file", "-"]).stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"JULIET:\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(text(&output.stdout), wanted);
    let missing = tempfile::tempdir().unwrap().path().join("missing").display().to_string();
    let errors = fail(&mut float(&["--prompt-file", &missing]), 1);
    assert!(errors.contains(&missing) && errors.lines().count() == 1, "{errors}");
    fails(&mut float(&["--prompt-file", "-"]), 1, ["the prompt has no tokens"]);
    fail(&mut float(&["--prompt-file", "-", "--prompt", "x"]), 2);
    let server = Server::start("--model shakespeare-gpt2 --insecure-plaintext");
    let answer =
        succeed(&mut server.client(&format!("--insecure-plaintext --tokens 1 --prompt-file {}", file.display())));
    assert!(!answer.is_empty());
}

#[test]
fn a_server_refuses_a_model_that_leaves_a_range() {
    let dir = tempfile::tempdir().unwrap();
    copy_model(MODEL, dir.path());
    // The first layer's addition to the residual is longer than the next norm takes.
    let path = dir.path().join("model.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: serde_json::Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    let place = &header["transformer.h.0.mlp.c_proj.bias"]["data_offsets"];
    let [start, end] = [0, 1].map(|i| 8 + length + place[i].as_u64().unwrap() as usize);
    for (i, value) in bytes[start..end].chunks_exact_mut(2).enumerate() {
        // 1000 and -1000 in 16 bits.
        let bias: u16 = if i % 2 == 0 { 0x63D0 } else { 0xE3D0 };
        value.copy_from_slice(&bias.to_le_bytes());
    }
    fs::write(&path, bytes).unwrap();
    let error = fail(waggle("serve --insecure-plaintext --listen 127.0.0.1:0 --model").arg(dir.path()), 1);
    assert!(error.contains("leaves the range") && error.contains("norm"), "{error}");
}

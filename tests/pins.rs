//! A model or a template that a server changes is refused until the user accepts it.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::support::{Ended, LIMIT, Process, Server, copy_model, fail, fails, key, of, succeed, waggle};
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
        let Ended { code, errors, .. } = Process::fed(command.args(more), b"ROMEO:\n").end(LIMIT);
        (code == Some(0), errors)
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

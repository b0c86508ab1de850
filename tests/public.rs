//! Public text before private words, between processes: a server's offer, a conversation's beginning, and what is
//! refused.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;

use crate::support::{Process, Server, copy_model, fails, key, of, read_json, succeed, waggle};

const MODEL: &str = "shakespeare-llama";
const LIMIT: Duration = Duration::from_secs(600);

fn write(dir: &Path, name: &str, text: &str) -> PathBuf {
    let file = dir.join(name);
    std::fs::write(&file, text).unwrap();
    file
}

/// A client takes what the server offers once it has shown it, and does without if it is told so.
#[test]
fn a_server_offers_public_text() {
    let dir = tempfile::tempdir().unwrap();
    let [offer, own] = [("offer", "ROMEO:\nI will "), ("own", "JULIET:\nI will ")]
        .map(|(name, text)| write(dir.path(), name, text).display().to_string());
    let server = Server::start(&format!("--model {MODEL} --public-prefix {offer} --max-public 20"));
    let report = dir.path().join("report.json");
    let run = |more: &str| {
        let line = format!("--tokens 2 --prompt not {more} --json {}", report.display());
        let ended = Process::start(&mut server.client(&line)).end(LIMIT);
        assert_eq!(ended.code, Some(0), "{}", ended.errors);
        (ended.errors, read_json(&report)["options"].clone())
    };
    let (notes, options) = run("");
    let digest = options["public_digest"].as_str().unwrap().to_owned();
    assert!(options["public_tokens"].as_u64().is_some_and(|count| count > 10), "{options}");
    for part in ["public text", &digest, "under `full`", "ROMEO:\\nI will", "--no-public-prefix"] {
        assert!(notes.contains(part), "{part}: {notes}");
    }
    let (notes, options) = run("--no-public-prefix");
    assert!(options["public_tokens"].is_null() && !notes.contains("public"), "{options} {notes}");
    let (notes, options) = run(&format!("--public-prefix {own}"));
    assert!(options["public_digest"] != *digest && !notes.contains("public"), "{options} {notes}");
    // The offer stands before conversations as well.
    let line = format!("chat --connect {} --tokens 2 --json {} --check {MODEL}", server.address, report.display());
    let ended = Process::fed(&mut waggle(&line), b"not\n/cost\n").end(LIMIT);
    assert!(ended.code == Some(0) && ended.errors.matches(&digest).count() == 2, "{}", ended.errors);
    let talked = read_json(&report);
    assert_eq!((&talked["options"]["public_digest"], &talked["token_agreement"]), (&digest.into(), &1.0.into()));
}

/// An offer is pinned as a chat template is.
#[test]
fn an_offer_that_a_server_changes_is_refused_until_the_client_accepts_it() {
    let dirs = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let [theirs, ours] = dirs.each_ref().map(|dir| dir.path());
    let key = key(theirs);
    let serve = |text: &str, listen: &str| {
        let file = write(theirs, "offer", text);
        let line = format!("serve --allow-any --listen {listen} --model {MODEL} --public-prefix");
        Server::run(of(waggle(&line), theirs).arg(file))
    };
    let server = serve("ROMEO:\n", "127.0.0.1:0");
    let address = server.address.clone();
    let client = |more: &str| of(waggle(&format!("generate --connect {address} --tokens 1 {more}")), ours);
    succeed(&mut client(&format!("--server-key {key}")));
    let pin = || {
        let known = std::fs::read_to_string(ours.join("known_servers")).unwrap();
        known.split_whitespace().nth(2).unwrap().to_owned()
    };
    let old = pin();
    drop(server);
    let _server = serve("JULIET:\n", &address);
    fails(&mut client(""), 1, ["the offer of public text of the model", &old, "--expect"]);
    fails(&mut client(&format!("--expect {old}")), 1, ["the server's offer of public text is not the expected one"]);
    // Whoever has no use for it does not compare it, and does not forget it.
    succeed(&mut client("--no-public-prefix"));
    assert_eq!(pin(), old);
    let met = {
        let errors = crate::support::fail(&mut client(""), 1);
        errors.split_whitespace().rfind(|word| word.starts_with("waggle-model:")).unwrap().to_owned()
    };
    succeed(&mut client(&format!("--expect {met}")));
    assert_eq!(pin(), met);
}

/// Turns behind a public system message, before and after `/reset`, under policies that keep all and that evict, for
/// a template's text and for raw words. What the server sees of turns is what is private.
#[test]
fn a_conversation_begins_in_public() {
    let dir = tempfile::tempdir().unwrap();
    let templated = dir.path().join("templated");
    std::fs::create_dir(&templated).unwrap();
    copy_model(MODEL, &templated);
    let template = "{% for m in messages %}{{ m.role | upper }}:\n{{ m.content }}\n\n{% endfor %}\
                    {% if add_generation_prompt %}ASSISTANT:\n{% endif %}";
    write(&templated, "chat_template.jinja", template);
    let report = dir.path().join("report.json");
    let talk = |server: &Server, arguments: &str| -> (Value, String) {
        let line = format!("chat --connect {} --tokens 3 --json {} {arguments}", server.address, report.display());
        let mut command = waggle(&line);
        let ended = Process::fed(command.args(["--system", "A play of two houses."]), b"O\nNo\n/reset\nO\n/cost\n");
        let ended = ended.end(LIMIT);
        assert_eq!(ended.code, Some(0), "{}", ended.errors);
        (read_json(&report), ended.errors)
    };
    let model = templated.to_str().unwrap();
    let policies = "--policies full;h2o:budget=16";
    for (model, policy) in [(MODEL, "full"), (MODEL, "h2o:budget=16"), (model, "full")] {
        let server = Server::start(&format!("--model {model} {policies}"));
        let arguments = format!("--public-system --check {model} --policy {policy} --plan-for lan --cores 2");
        let (first, notes) = talk(&server, &arguments);
        let turns = first["turns"].as_array().unwrap();
        assert_eq!((&first["token_agreement"], turns.len()), (&1.0.into(), 3), "{policy}: {notes}");
        assert_eq!(turns[0]["tokens"], turns[2]["tokens"]);
        assert_eq!(turns[0]["prompt_tokens"], turns[2]["prompt_tokens"]);
        let public = first["options"]["public_tokens"].as_u64().unwrap();
        let digest = first["options"]["public_digest"].as_str().unwrap();
        assert!(notes.contains(&format!("public: {public} tokens, {digest}, under `full`")), "{notes}");
        if policy != "full" {
            continue;
        }
        // All of it in private: the same answers for the letters of the system message more.
        let (private, notes) = talk(&server, "");
        assert!(private["options"]["public_tokens"].is_null() && !notes.contains("public: "));
        let read = |report: &Value| report["turns"][0]["prompt_tokens"].as_u64().unwrap();
        assert_eq!(read(&private), read(&first) + public);
        assert_eq!(private["turns"][0]["tokens"], turns[0]["tokens"]);
        // Another session pays for its own words alone, as the first one did.
        let again = talk(&server, &arguments).0;
        let cost = |report: &Value| {
            ["setup", "offline", "prefill"].map(|phase| crate::support::bytes(&report["phases"][phase]))
        };
        assert_eq!((cost(&again), &again["options"]["public_digest"]), (cost(&first), &digest.into()));
    }
    let server = Server::start(&format!("--model {MODEL}"));
    let nothing = format!("chat --connect {} --public-system", server.address);
    fails(&mut waggle(&nothing), 1, ["nothing stands before the first words"]);
}

/// What no public text can be is refused in one line.
#[test]
fn what_is_no_public_text_is_refused_in_a_line() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| write(dir.path(), name, text).display().to_string();
    let long = file("long.json", &format!("{:?}", vec![1; 300]));
    let foreign = file("foreign.json", "[1, 2000]");
    let [short, other] = [file("short.json", "[1, 2, 3]"), file("other.json", "[1, 2, 4]")];
    for (prefix, more, words) in [
        (&long, "", "positions would go through a model"),
        (&foreign, "", "2000"),
        (&short, "--max-public 2", "public tokens"),
        (&short, "--prefix-policy nonsense", "nonsense"),
    ] {
        let line = format!("serve --model shakespeare-gpt2 --listen 127.0.0.1:0 --public-prefix {prefix} {more}");
        let code = if more.contains("nonsense") { 2 } else { 1 };
        fails(&mut waggle(&line), code, [words]);
    }
    let pools = dir.path().join("pools").display().to_string();
    let server = Server::start(&format!("--model shakespeare-gpt2 --pools {pools}"));
    let client =
        |command: &str, more: &str| waggle(&format!("{command} --connect {} --tokens 1 {more}", server.address));
    for (prefix, words) in [(&long, "positions would go through a model"), (&foreign, "2000")] {
        let errors =
            crate::support::fail(&mut client("generate", &format!("--prompt O --public-prefix {prefix}")), 1);
        assert!(errors.contains(words) && errors.lines().count() == 1, "{errors}");
    }
    // A pool belongs to the public text for which it was filled.
    let pool = dir.path().join("client.pool").display().to_string();
    succeed(&mut client("preprocess", &format!("--prompt-len 2 --pool {pool} --public-prefix {short}")));
    let spend = |more: &str| client("generate", &format!("--prompt-ids 5,6 --pool {pool} {more}"));
    for more in [String::new(), format!("--public-prefix {other}")] {
        fails(&mut spend(&more), 1, ["prefix"]);
    }
    succeed(&mut spend(&format!("--public-prefix {short}")));
}

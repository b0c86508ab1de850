//! `waggle fit`: what it writes serves the policies, and what does not fit is refused by name.

use crate::support::{copy_model, fail, fails, json, play, succeed, waggle};

#[test]
fn columns_are_fitted_once_and_then_serve_a_policy() {
    let dir = tempfile::tempdir().unwrap();
    let (model, text) = (dir.path().join("model"), play(dir.path(), 6));
    copy_model("shakespeare-gpt2", &model);
    let model = model.display();
    let float = || waggle(&format!("float --model {model} --prompt-ids 5,6,7,8,9,10,11 --tokens 4 --policy kvzap"));
    fails(&mut float(), 1, ["kvzap.safetensors", "waggle fit kvzap"]);

    let shown = succeed(&mut waggle(&format!("fit kvzap --model {model} --text {text} --context 32 --after 4")));
    assert!(shown.contains("layer 3: correlation") && shown.contains("kvzap.safetensors: learned from"), "{shown}");
    assert!(!succeed(&mut float()).is_empty());

    // Both parties in one process agree with the plaintext engine under the same policy.
    let demo = format!(
        "demo --model {model} --link memory --prompt-ids 5,6,7,8,9,10,11 --tokens 2 --check --policy kvzap:budget=6"
    );
    let report = json(&mut waggle(&demo));
    assert_eq!(report["token_agreement"], 1.0, "{report}");

    // The other scores are columns of other files, which each serve their own policy alone.
    for head in ["qfilters", "keydiff"] {
        let float = || {
            waggle(&format!("float --model {model} --prompt-ids 5,6,7,8,9,10,11 --tokens 4 --policy {head}:budget=6"))
        };
        let (file, line) = (format!("{head}.safetensors"), format!("waggle fit {head}"));
        fails(&mut float(), 1, [file.as_str(), line.as_str()]);
        let shown = succeed(&mut waggle(&format!("fit {head} --model {model} --text {text} --context 32")));
        assert!(shown.contains("layer 3: correlation"), "{shown}");
        assert!(!succeed(&mut float()).is_empty());
    }

    // Too little text, and a distance that leaves nothing to learn from.
    let error = fail(&mut waggle(&format!("fit kvzap --model {model} --text {text} --context 200")), 1);
    assert!(error.contains("a fit needs 5 sequences of 200 tokens"), "{error}");
    let error = fail(&mut waggle(&format!("fit kvzap --model {model} --text {text} --context 32 --after 24")), 1);
    assert!(error.contains("no token has queries 24 tokens"), "{error}");
}

#[test]
fn the_layers_of_squeeze_are_printed_as_an_option_that_the_policy_takes() {
    let dir = tempfile::tempdir().unwrap();
    let (model, text) = (dir.path().join("model"), play(dir.path(), 6));
    copy_model("shakespeare-gpt2", &model);
    let model = model.display();
    let shown = succeed(&mut waggle(&format!("fit squeeze --model {model} --text {text} --context 64")));
    assert_eq!(shown.matches(" of hidden states before and after attention").count(), 4, "{shown}");
    let policy = shown.lines().last().unwrap();
    assert!(policy.starts_with("squeeze:layers="), "{shown}");
    let float =
        |policy: &str| waggle(&format!("float --model {model} --prompt-ids 5,6,7,8,9 --tokens 3 --policy {policy}"));
    assert!(!succeed(&mut float(policy)).is_empty());
    fails(&mut float("squeeze:layers=4"), 1, ["layers names layer 4, the model has 4"]);
}

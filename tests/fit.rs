//! `waggle fit`: what it writes serves the policies, and what does not fit is refused by name.

use std::path::{Path, PathBuf};

use crate::support::{fail, succeed, waggle};

/// Words of the bundled models' characters.
const TEXT: &str = "ROMEO:\nWhat say you to the king? My lord, I come to speak of love and of the night.\n\
                    JULIET:\nThe clock struck nine when I did send the nurse; in half an hour she promised to return.\n";

/// A copy of a bundled model without learned columns, and a text.
fn copy(dir: &Path) -> (PathBuf, PathBuf) {
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("model/assets/shakespeare-gpt2");
    let model = dir.join("model");
    std::fs::create_dir(&model).unwrap();
    for file in ["config.json", "model.safetensors", "tokenizer.json"] {
        std::fs::copy(from.join(file), model.join(file)).unwrap();
    }
    let text = dir.join("text.txt");
    std::fs::write(&text, TEXT.repeat(3)).unwrap();
    (model, text)
}

#[test]
fn columns_are_fitted_once_and_then_serve_a_policy() {
    let dir = tempfile::tempdir().unwrap();
    let (model, text) = copy(dir.path());
    let (model, text) = (model.display(), text.display());
    let float = || waggle(&format!("float --model {model} --prompt-ids 5,6,7,8,9,10,11 --tokens 4 --policy kvzap"));
    let message = fail(&mut float(), 1);
    assert!(message.contains("kvzap.safetensors") && message.contains("waggle fit kvzap"), "{message}");

    let shown = succeed(&mut waggle(&format!("fit kvzap --model {model} --text {text} --context 32 --after 4")));
    assert!(shown.contains("layer 3: correlation") && shown.contains("kvzap.safetensors: learned from"), "{shown}");
    assert!(!succeed(&mut float()).is_empty());

    // Both parties in one process agree with the plaintext engine under the same policy.
    let demo = format!(
        "demo --model {model} --link memory --prompt-ids 5,6,7,8,9,10,11 --tokens 2 --check --policy kvzap:budget=6"
    );
    let report = crate::support::json(&mut waggle(&demo));
    assert_eq!(report["token_agreement"], 1.0, "{report}");

    // Too little text, and a distance that leaves nothing to learn from.
    let short = fail(&mut waggle(&format!("fit kvzap --model {model} --text {text} --context 200")), 1);
    assert!(short.contains("a fit needs 5 sequences of 200 tokens"), "{short}");
    let far = fail(&mut waggle(&format!("fit kvzap --model {model} --text {text} --context 32 --after 24")), 1);
    assert!(far.contains("no token has queries 24 tokens"), "{far}");
}

#[test]
fn the_layers_of_squeeze_are_printed_as_an_option_that_the_policy_takes() {
    let dir = tempfile::tempdir().unwrap();
    let (model, text) = copy(dir.path());
    let (model, text) = (model.display(), text.display());
    let shown = succeed(&mut waggle(&format!("fit squeeze --model {model} --text {text} --context 64")));
    assert_eq!(shown.matches(" of hidden states before and after attention").count(), 4, "{shown}");
    let policy = shown.lines().last().unwrap();
    assert!(policy.starts_with("squeeze:layers="), "{shown}");
    let float =
        |policy: &str| waggle(&format!("float --model {model} --prompt-ids 5,6,7,8,9 --tokens 3 --policy {policy}"));
    assert!(!succeed(&mut float(policy)).is_empty());
    let message = fail(&mut float("squeeze:layers=4"), 1);
    assert!(message.contains("layers names layer 4, the model has 4"), "{message}");
}

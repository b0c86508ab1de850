//! Generations whose cache is pruned: two parties write what fixed point writes, and a plan says what they send.
//!
//! The long texts take a minute or more each: `cargo test --release -p waggle-session --test all pruned:: --
//! --ignored`.

use waggle_model::{GenerateOptions, ModelFiles, bundled};
use waggle_tokenizer::Tokenizer;

use crate::parties;

/// Largest difference of a logit between two parties and fixed point, in units of 2^-18. Without pruning it stays
/// below 2048. But if the scores of two tokens or clusters differ by less than their rounding, the engines may keep
/// different ones, and the logits differ more.
const MAX_SECURE_ULPS: f32 = 65536.0;

/// [`parties::agree`] on `tokens` tokens after `ids` with every policy.
fn agree(files: ModelFiles, ids: &[u32], tokens: usize, policies: &[&str]) {
    for policy in policies {
        let options = GenerateOptions { tokens, policy: policy.parse().expect("a policy"), ..crate::support::fine() };
        let context = format!("{}, {} tokens, {policy}", files.name, ids.len());
        parties::agree(&context, &files, ids, &options, MAX_SECURE_ULPS);
    }
}

/// The first `count` tokens of a text that the model knows.
fn prompt(files: &ModelFiles, text: &str, count: usize) -> Vec<u32> {
    let tokenizer = Tokenizer::from_bytes(files.tokenizer.as_deref().expect("a tokenizer")).expect("a tokenizer");
    let mut ids = tokenizer.encode(text).expect("text");
    assert!(ids.len() >= count, "{} tokens of {count}", ids.len());
    ids.truncate(count);
    ids
}

/// Every query sees its head's sink, whatever is pruned: with chosen tokens, with gathered scores, with noisy scores
/// and with what each part of the heads holds.
#[test]
fn sinks_stay_in_the_softmax_of_pruned_texts() {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../../model/tests/data/families/granite-sinks");
    let ids: Vec<u32> = (0..24).map(|i| (i * i + 3) % 72).collect();
    for policy in
        ["mpcache:clusters=4/2", "mpcache:gather=scores,static=1", "keyformer:budget=10", "razor:heads=1,budget=10"]
    {
        agree(ModelFiles::open(dir.as_ref()).unwrap(), &ids, 4, &[policy]);
    }
}

/// The beginning of a play, long enough for all prompts below, in the alphabet of the bundled models.
fn play() -> String {
    "ROMEO:\nBut soft, what light through yonder window breaks?\nIt is the east, and Juliet is the sun.\nArise, fair \
     sun, and kill the envious moon,\nWho is already sick and pale with grief,\nThat thou her maid art far more fair \
     than she.\n\nJULIET:\nO Romeo, Romeo, wherefore art thou Romeo?\nDeny thy father and refuse thy name.\n"
        .to_owned()
}

#[test]
fn short_texts_close_clusters_while_they_grow() {
    // With 27 or 28 tokens two clusters are level in `mpcache`, so that rounding would choose between them.
    let files = bundled("shakespeare-gpt2").expect("bundled");
    let ids = prompt(&files, &play(), 26);
    agree(files, &ids, 6, &["mpcache", "mpcache-scores:budget=0.3,static=0.6"]);
    let files = bundled("shakespeare-gpt2").expect("bundled");
    let ids = prompt(&files, &play(), 27);
    let policies = [
        "snapkv:budget=20,block=4,window=4,prefill=8",
        "knorm:budget=20,block=4,recent=4",
        "kvzap:budget=20,block=4,recent=4",
        "squeeze:budget=20,block=4,window=4,layers=1",
        "keydiff:budget=20,block=4,recent=4,guard=0.2",
        "keyformer:budget=20,block=4,recent=4,rise=4",
    ];
    agree(files, &ids, 6, &policies);
    let files = bundled("shakespeare-llama").expect("bundled");
    let ids = prompt(&files, &play(), 22);
    agree(files, &ids, 6, &["mpcache:select=per-kv,gather=scores,clusters=4/2", "quest:clusters=4"]);
}

/// Every policy, and every strategy of `mpcache`.
const ALL: &[&str] = &[
    "mpcache",
    "mpcache-scores",
    "mpcache-scores:static=0.5",
    "mpcache:topk=shuffle-reveal",
    "mpcache:topk=sort,gather=scores",
    "mpcache:similarity=box,budget=0.01",
    "mpcache:similarity=cuboid-mean,clusters=32/16",
    "mpcache:similarity=centroid,gather=scores,select=per-kv",
    "streaming",
    "random",
    "h2o:topk=shuffle-reveal",
    // Not shuffled: most votes of one query round to zero, and of equal votes the first in the store is dropped,
    // which is a random one in a shuffled store.
    "tova",
    "snapkv:topk=shuffle-reveal",
    "streaming:budget=96,prefill=64",
    "h2o:budget=96,topk=shuffle-reveal",
    "snapkv:budget=96,block=4,prefill=64,topk=shuffle-reveal",
    "pyramid:budget=96,block=4,topk=shuffle-reveal",
    "infllm",
    "longcache:topk=shuffle-reveal",
    "quest",
    "arkvale",
];

/// One policy of each kind.
const SOME: &[&str] = &[
    "mpcache",
    "mpcache-scores",
    "mpcache-scores:static=0.5",
    "mpcache:topk=sort,gather=scores,select=per-kv",
    "h2o:topk=shuffle-reveal",
    "quest:budget=0.01",
];

#[test]
#[ignore = "minutes: run it by name"]
fn long_prompts_of_bundled_models() {
    // The context of GPT-2 is 256 tokens.
    for (name, count) in [("shakespeare-llama", 259), ("shakespeare-gpt2", 243)] {
        let files = bundled(name).expect("bundled");
        let ids = prompt(&files, &play(), count);
        agree(files, &ids, 8, SOME);
    }
}

#[test]
#[ignore = "minutes: run it by name"]
fn long_prompts_of_stories260k() {
    let files = bundled("stories260k").expect("bundled");
    let stories: Vec<String> =
        serde_json::from_slice(waggle_model::bundled_text("tinystories.json").expect("bundled")).expect("stories");
    let story = stories.iter().find(|story| story.len() > 900).expect("a long story");
    let ids = prompt(&files, story, 261);
    agree(files, &ids, 8, ALL);
}

//! The options of every policy.

use super::*;
use crate::PolicySpec;

/// The settings of the policy `text`, as a text, or the message with which the policy is refused.
fn shown(text: &str) -> String {
    match text.parse::<PolicySpec>() {
        Ok(spec) => spec.settings().iter().map(|s| format!("{}={}", s.key, s.value)).collect::<Vec<_>>().join(" "),
        Err(error) => error.to_string(),
    }
}

#[test]
fn options_and_settings() {
    for (text, settings) in [
        ("full", ""),
        ("streaming", "budget=0.25 block=1 prefill=off guard=0 sinks=4"),
        ("streaming:budget=0.5,sinks=0", "budget=0.5 block=1 prefill=off guard=0 sinks=0"),
        ("streaming:budget=128", "budget=128 block=32 prefill=off guard=0 sinks=4"),
        ("streaming:budget=100,block=8,prefill=64", "budget=100 block=8 prefill=64 guard=0 sinks=4"),
        ("duo:heads=1.0c", "heads=1.c budget=0.25 block=1 prefill=off guard=0 sinks=4"),
        ("razor:heads=3,budget=128,sinks=2,prefill=64", "heads=3 budget=128 block=32 prefill=64 guard=0 sinks=2"),
        ("fastgen", "budget=0.25 recovery=0.95 guard=0 sinks=4"),
        ("fastgen:budget=0.5,recovery=0.9,sinks=1", "budget=0.5 recovery=0.9 guard=0 sinks=1"),
        ("h2o", "budget=0.25 block=1 guard=0 topk=rank"),
        ("tova:budget=0.1,topk=sort", "budget=0.1 block=1 guard=0 topk=sort"),
        ("scissorhands:guard=0.1", "budget=0.25 block=1 guard=0.1 window=128 topk=rank"),
        ("alisa", "budget=0.25 block=1 guard=0 window=protected topk=rank"),
        ("qfilters:guard=0.25", "budget=0.25 prefill=off guard=0.25 recent=32 topk=rank"),
        ("h2o:budget=64,block=8", "budget=64 block=8 guard=0 topk=rank"),
        ("snapkv", "budget=0.25 prefill=off guard=0 window=32 kernel=5 topk=rank"),
        (
            "snapkv:budget=0.5,kernel=7,topk=shuffle-reveal,window=8,prefill=64",
            "budget=0.5 prefill=64 guard=0 window=8 kernel=7 topk=shuffle-reveal",
        ),
        ("snapkv:budget=96,block=8", "budget=96 block=8 prefill=off guard=0 window=32 kernel=5 topk=rank"),
        ("pyramid", "budget=0.25 prefill=off guard=0 window=8 kernel=5 topk=rank beta=20"),
        ("squeeze", "budget=0.25 prefill=off guard=0 window=32 kernel=5 topk=rank layers=half part=0.35"),
        (
            "squeeze:budget=96,layers=7+3-5,part=0.5,window=8",
            "budget=96 block=24 prefill=off guard=0 window=8 kernel=5 topk=rank layers=3-5+7 part=0.5",
        ),
        ("mpcache-2pc", "budget=0.15 prefill=off guard=0 window=32 kernel=1 topk=shuffle-reveal"),
        ("knorm", "budget=0.25 prefill=off guard=0 recent=32 topk=rank"),
        (
            "kvzap:budget=128,block=16,prefill=64,recent=4,topk=sort",
            "budget=128 block=16 prefill=64 guard=0 recent=4 topk=sort",
        ),
        ("keyformer", "budget=0.25 prefill=off guard=0 recent=32 rise=256 seed=0 topk=rank"),
        (
            "keyformer:budget=128,block=16,prefill=64,recent=4,rise=64,seed=7,topk=sort",
            "budget=128 block=16 prefill=64 guard=0 recent=4 rise=64 seed=7 topk=sort",
        ),
        ("sirllm", "budget=0.25 guard=0 sinks=4 recent=32"),
        ("sirllm:budget=64,block=8,sinks=2,recent=9", "budget=64 block=8 guard=0 sinks=2 recent=9"),
        ("random", "budget=0.25 sinks=4 seed=0"),
        ("random:budget=1,sinks=2,seed=9", "budget=1 sinks=2 seed=9"),
        (
            "mpcache",
            "budget=0.25 clusters=8/4 sinks=4 similarity=linear alpha=0.6 topk=rank gather=one-hot \
                 select=per-head static=0.5 window=0.2, or 0.1 of long prompts guard=0 share=on dense=0",
        ),
        (
            "mpcache-scores",
            "budget=0.25 clusters=1 sinks=4 similarity=token topk=shuffle-reveal gather=scores select=per-layer \
                 static=1 share=off dense=0",
        ),
        (
            "infllm",
            "budget=0.25 clusters=16 sinks=16 similarity=representatives count=2 topk=rank gather=one-hot \
                 select=per-head static=1 share=off dense=0",
        ),
        (
            "longcache",
            "budget=0.25 clusters=1 sinks=4 similarity=token topk=rank gather=one-hot select=per-layer static=1 \
                 share=off dense=0",
        ),
        (
            "quest",
            "budget=0.25 clusters=16 sinks=16 similarity=box topk=rank gather=one-hot select=per-head static=1 \
                 share=off dense=0",
        ),
        (
            "arkvale",
            "budget=0.25 clusters=16 sinks=16 similarity=cuboid-mean topk=rank gather=one-hot select=per-head \
                 static=1 share=off dense=0",
        ),
        ("oracle", "budget=0.25 select=per-head"),
        ("oracle:budget=0.5,select=per-kv", "budget=0.5 select=per-kv"),
        (
            "mpcache:clusters=32/16,alpha=0.75,static=0.3,window=0.5,dense=2,share=off,gather=scores,topk=sort",
            "budget=0.25 clusters=32/16 sinks=16 similarity=linear alpha=0.75 topk=sort gather=scores \
                 select=per-head static=0.3 window=0.5 guard=0 share=off dense=2",
        ),
        // Settings that follow from the size of clusters.
        (
            "mpcache-scores:clusters=8",
            "budget=0.25 clusters=8 sinks=8 similarity=linear alpha=0.6 topk=shuffle-reveal gather=scores \
                 select=per-layer static=1 share=off dense=0",
        ),
        (
            "quest:clusters=1,sinks=2",
            "budget=0.25 clusters=1 sinks=2 similarity=token topk=rank gather=one-hot select=per-head static=1 \
                 share=off dense=0",
        ),
    ] {
        assert_eq!(shown(text), settings, "{text}");
    }
}

#[test]
fn values_are_checked_and_idle_options_are_refused() {
    let missing = "needs heads=...: the heads of each layer that keep every token";
    for (text, message) in [
        ("full:budget=0.5", "has no option `budget`; it takes none"),
        ("streaming:budget=0", ": budget=0: expected a share above 0, up to 1, or tokens from 2"),
        ("streaming:budget=100,block=51", ": block=51: expected at most half of the budget, 50"),
        ("streaming:prefill=0", ": prefill=0: expected a number of tokens, or off"),
        ("streaming:sinks=-1", ": sinks=-1: expected a number from 0"),
        ("duo", missing),
        ("razor:heads=1;2", ": heads=1;2: expected hexadecimal numbers of the layers, with dots between them"),
        ("fastgen:budget=64", ": budget=64: expected a share above 0, up to 1"),
        ("tova:topk=fast", ": topk=fast: expected one of rank, shuffle-reveal, sort"),
        ("pyramid:block=8", ": block has no effect with a budget that is a share of the prompt"),
        ("snapkv:kernel=4", ": kernel=4: expected an odd number below 1000"),
        ("snapkv:window=0", ": window=0: expected a number from 1"),
        ("squeeze:layers=5-3", ": layers=5-3: expected layers as in 3-5+7, or half"),
        ("kvzap:recent=0", ": recent=0: expected a number from 1"),
        ("keyformer:rise=0", ": rise=0: expected a number from 1"),
        ("sirllm:prefill=8", "has no option `prefill`; it takes: budget, block, guard, sinks, recent"),
        ("random:seed=one", ": seed=one: expected a number"),
        ("mpcache:budget=0", ": budget=0: expected a share above 0, up to 1"),
        ("mpcache:topk=fast", ": topk=fast: expected one of rank, shuffle-reveal, sort"),
        ("mpcache:clusters=8/3", ": clusters=8/3: expected TOKENS or COARSE/FINE with COARSE a multiple of FINE"),
        ("mpcache:gather=all", ": gather=all: expected one-hot or scores"),
        ("mpcache:select=x", ": select=x: expected one of per-head, per-kv, per-layer"),
        ("mpcache:share=yes", ": share=yes: expected on or off"),
        (
            "quest:similarity=near",
            ": similarity=near: expected one of linear, box, cuboid-mean, centroid, \
                 representatives, token",
        ),
        ("quest:alpha=0.5", ": alpha has no effect with similarity=box"),
        ("quest:count=3", ": count has no effect with similarity=box"),
        ("quest:window=0.5", ": window has no effect with static=1: nothing is evicted"),
        ("quest:guard=0.1", ": guard has no effect with static=1: nothing is evicted"),
        ("h2o:guard=0.5", ": guard=0.5: expected a share from 0, below 0.5"),
        ("alisa:window=0", ": window=0: expected a number of queries from 1, protected or all"),
        ("quest:similarity=token", ": similarity=token: expected another similarity: this one is for clusters=1"),
        ("oracle:topk=sort", "has no option `topk`; it takes: budget, select"),
    ] {
        let (name, _) = text.split_once(':').unwrap_or((text, ""));
        let space = if message.starts_with(':') { "" } else { " " };
        assert_eq!(shown(text), format!("cache policy `{name}`{space}{message}"), "{text}");
    }
}

#[test]
fn settings_for_another_model_are_refused() {
    let shape = HeadShape { heads: 4, kv_heads: 2, head_dim: 8 };
    for (text, layers, message) in [
        ("full", 3, None),
        ("squeeze", 1, None),
        ("squeeze:layers=1+4", 5, None),
        ("squeeze:layers=1+4", 4, Some("`squeeze`: layers names layer 4, the model has 4, numbered from 0")),
        ("duo:heads=3", 7, None),
        ("razor:heads=3.1", 2, None),
        ("razor:heads=4", 1, Some("`razor`: heads=4: expected heads below 2, as many as a layer of the model has")),
        (
            "duo:heads=3.1",
            3,
            Some("`duo`: heads=3.1: expected a number for each of the model's 3 layers, or one for all"),
        ),
    ] {
        let got = text.parse::<PolicySpec>().unwrap().check(layers, shape).err().map(|error| error.to_string());
        assert_eq!(got, message.map(|message| format!("cache policy {message}")), "{text}, {layers}");
    }
}

#[test]
fn the_readme_lists_every_policy_with_its_keys() {
    let readme = include_str!("../../README.md").split_whitespace().collect::<Vec<_>>().join(" ");
    let code = |words: &[&str]| words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(" ");
    let clusters = Clusters::POLICIES[0].keys;
    assert!(readme.contains(&format!("*clusters* stands for {}.", code(clusters))), "{}", code(clusters));
    for PolicyHelp { name, keys, .. } in BuiltIn::help() {
        let keys = match keys {
            [] => "none".to_owned(),
            keys if keys == clusters => "*clusters*".to_owned(),
            keys => code(keys),
        };
        assert!(readme.contains(&format!("| `{name}` | {keys} |")), "{name}: {keys}");
    }
}

//! The plan of a session equals its ledger to the byte.

use std::collections::BTreeMap;
use std::path::Path;

use crate::support::{LIMIT, Server, fail, fails, join, json, read_json, succeed, synthesise, waggle};
use serde_json::{Value, json as value};

/// Bytes each way and flows by phase and path, of what was sent at all.
fn operations(report: &Value) -> BTreeMap<(String, String), [u64; 3]> {
    costs(&report["operations"])
}

/// Bytes each way and flows of what was made ahead, by phase and kind of correlation.
fn kinds(report: &Value) -> BTreeMap<(String, String), [u64; 3]> {
    report.get("preparation_kinds").map(costs).unwrap_or_default()
}

fn costs(list: &Value) -> BTreeMap<(String, String), [u64; 3]> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let rows = list.as_array().unwrap().iter().map(|op| {
        let numbers = ["bytes_client_to_server", "bytes_server_to_client", "flows"].map(|k| op[k].as_u64().unwrap());
        ((text(&op["phase"]), text(&op["path"])), numbers)
    });
    rows.filter(|(_, numbers)| numbers.iter().any(|n| *n > 0)).collect()
}

/// Runs and plans the same session, over `lan` unless `arguments` say something else, for the same cores: both decide
/// what products pack.
fn compare(model: &str, prompt: &[u32], tokens: usize, arguments: &str) {
    let arguments = &if arguments.contains("--link") { arguments.into() } else { format!("{arguments} --link lan") };
    let arguments = &format!("{arguments} --cores 40");
    let (ids, count) = (join(prompt), prompt.len());
    let run = json(&mut waggle(&format!("demo --model {model} --prompt-ids {ids} --tokens {tokens} {arguments}")));
    let plan = json(&mut waggle(&format!("plan --model {model} --prompt-len {count} --tokens {tokens} {arguments}")));
    assert_eq!((&run["predicted"], &plan["predicted"]), (&Value::from(false), &Value::from(true)));
    for phase in ["setup", "offline", "prefill", "decode"] {
        for key in ["bytes_client_to_server", "bytes_server_to_client", "flows"] {
            assert_eq!(run["phases"][phase][key], plan["phases"][phase][key], "{model} {arguments}: {phase}.{key}");
        }
    }
    assert_eq!(operations(&run), operations(&plan), "{model} {arguments}");
    assert_eq!(kinds(&run), kinds(&plan), "{model} {arguments}");
    let flows = |report: &Value| -> Vec<u64> {
        let tokens = report["phases"]["decode"]["per_token"].as_array().unwrap();
        tokens.iter().map(|token| token["flows"].as_u64().unwrap()).collect()
    };
    assert_eq!(flows(&run), flows(&plan), "{model} {arguments}");
}

/// A public text before the prompt: the plaintext model reads both apart, too, and a plan has the bytes.
#[test]
fn public_text_before_a_prompt() {
    let dir = tempfile::tempdir().unwrap();
    let [ids, words] = ["public.json", "public.txt"].map(|name| dir.path().join(name).display().to_string());
    std::fs::write(&ids, "[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]").unwrap();
    std::fs::write(&words, "ROMEO:\nI will ").unwrap();
    for (arguments, policy) in [("--link lan", "full"), ("--link lan --preprocess", "snapkv:budget=0.5,window=3")] {
        let arguments = format!("--tokens 3 --cores 40 --prefix-policy {policy} {arguments}");
        let demo =
            format!("demo --model shakespeare-gpt2 --prompt-ids 5,6,7 --public-prefix {ids} --check {arguments}");
        let run = json(&mut waggle(&demo));
        let plan = format!("plan --model shakespeare-gpt2 --prompt-len 3 --public-len 11 {arguments}");
        let plan = json(&mut waggle(&plan));
        assert_eq!(operations(&run), operations(&plan), "{arguments}");
        assert_eq!((&run["options"]["public_tokens"], &plan["options"]["public_tokens"]), (&11.into(), &11.into()));
        // The plaintext model prunes the public text as the server does, and then reads all of it, so that pruning
        // shows.
        let error = run["max_abs_logit_error"].as_f64().unwrap();
        assert!(error < 0.02, "{arguments}: {error}");
        let whole = run["against_full_cache"]["max_abs_logit_error"].as_f64();
        assert_eq!(whole.is_some_and(|whole| whole > 0.02), policy != "full", "{arguments}: {whole:?}");
    }
    let demo = format!("demo --model shakespeare-gpt2 --link memory --tokens 4 --public-prefix {words} --check");
    let joined = json(waggle(&demo).args(["--prompt", "not "]));
    assert_eq!(joined["token_agreement"], 1.0);
    std::fs::write(&ids, "[1, -2]").unwrap();
    let demo = format!("demo --model shakespeare-gpt2 --prompt-ids 5 --tokens 1 --public-prefix {ids}");
    assert!(fail(&mut waggle(&demo), 1).contains("a list of token ids is expected"));
    std::fs::write(&ids, "[1, 2000]").unwrap();
    assert!(fail(&mut waggle(&demo), 1).contains("2000"));
    let padded = format!("demo --model shakespeare-gpt2 --prompt O --pad-prompt --tokens 1 --public-prefix {words}");
    assert!(fail(&mut waggle(&padded), 1).contains("takes no padding"));
}

/// In one phase a short row divides its terms: products of narrow words take half the ciphertext, and the keys that
/// pack them are sent for scores anyway.
#[test]
fn a_short_row_mixes_no_wide_words_in_one_phase() {
    let plan = json(&mut waggle("plan --model gpt2 --cached 128 --link lan --cores 2"));
    let values = operations(&plan).into_iter().filter(|((_, path), _)| path.ends_with("attention/values"));
    let bytes: u64 = values.map(|(_, [up, down, _])| up + down).sum();
    assert!((19_000_000..19_500_000).contains(&bytes), "{bytes} bytes");
}

#[test]
fn bundled_models() {
    for model in ["shakespeare-gpt2", "shakespeare-llama"] {
        compare(model, &[5, 6, 7], 3, "");
        compare(model, &[5], 2, "--reveal token --stop-at-eos --ot softspoken8");
        compare(model, &[5, 6, 7, 8], 4, "--preprocess");
    }
    // The scheme is public, and so is the ring that follows from it.
    let dir = tempfile::tempdir().unwrap();
    for model in ["shakespeare-gpt2", "shakespeare-llama"] {
        let out = dir.path().join(model).display().to_string();
        succeed(&mut waggle(&format!("quantize --model {model} --out {out}")));
        compare(&out, &[5, 6, 7], 3, "");
        compare(&out, &[5, 6, 7, 8], 4, "--preprocess");
        compare(&out, &[1; 14], 3, "--preprocess --policy kvzap:budget=8,block=4,prefill=8,topk=sort");
    }
    compare("shakespeare-gpt2", &[1; 40], 1, "--ot softspoken2 --link memory --logit-bits 3");
    // A prompt in chunks, the last of which is shorter.
    compare("shakespeare-llama", &[1, 2, 3, 4, 5, 6, 7, 8], 3, "--prefill-chunk 3");
    compare("shakespeare-gpt2", &[1, 2, 3, 4, 5, 6, 7, 8], 3, "--prefill-chunk 3 --preprocess");
    // Heads that hold different tokens, which they lose while text is generated. Three layers keep as many.
    compare("shakespeare-gpt2", &[1; 20], 6, "--preprocess --policy duo:heads=3.5.8.9,budget=12,block=2");
    compare("shakespeare-llama", &[1; 20], 6, "--policy razor:heads=1,budget=12,block=2");
    // Rows that no eviction takes, and sums that forget.
    compare("shakespeare-llama", &[1; 20], 6, "--preprocess --policy razor:heads=1,budget=12,block=2,guard=0.2");
    compare("shakespeare-gpt2", &[1; 20], 6, "--preprocess --policy alisa:budget=12,block=2,guard=0.2,topk=sort");
    compare("shakespeare-gpt2", &[1; 20], 6, "--policy snapkv:budget=12,prefill=8,window=3,guard=0.2,topk=sort");
    // A cache that is gathered from, and whose clusters close while tokens come in.
    compare("shakespeare-gpt2", &[1; 40], 4, "--preprocess --policy mpcache:budget=0.25,clusters=4/2,static=1");
    // A matrix with columns for learned scores, and a cut while text is generated.
    compare("shakespeare-gpt2", &[1; 14], 5, "--preprocess --policy kvzap:budget=16,block=4,prefill=8,topk=sort");
    compare("shakespeare-llama", &[1; 14], 5, "--policy kvzap:budget=16,block=4,topk=sort");
}

/// Purposes as papers print them: softmax, GELU, norms, products. Nothing that is made ahead is left without its
/// purpose, and both views of it add up to the phase.
#[test]
fn preparation_has_its_purpose() {
    let arguments = "--model gpt2 --prompt-len 16 --tokens 2 --link lan";
    let plan = json(&mut waggle(&format!("plan {arguments} --preprocess")));
    let offline = |costs: BTreeMap<(String, String), [u64; 3]>| -> BTreeMap<String, [u64; 3]> {
        let costs = costs.into_iter().filter(|((phase, _), _)| phase == "offline");
        costs.map(|((_, path), numbers)| (path, numbers)).collect()
    };
    let (purposes, kinds) = (offline(operations(&plan)), offline(kinds(&plan)));
    let sum = |costs: &BTreeMap<String, [u64; 3]>, of: &str| {
        let found = costs.iter().filter(|(path, _)| path.contains(of));
        found.fold([0; 3], |sum, (_, numbers)| [0, 1, 2].map(|i| sum[i] + numbers[i]))
    };
    let phase = &plan["phases"]["offline"];
    let all = ["bytes_client_to_server", "bytes_server_to_client", "flows"].map(|key| phase[key].as_u64().unwrap());
    assert_eq!(sum(&purposes, ""), all);
    assert_eq!(sum(&kinds, ""), all);
    assert_eq!(sum(&purposes, "preprocess"), [0; 3], "{purposes:#?}");
    let share = |of: &str| {
        let [up, down, _] = sum(&purposes, of);
        (up + down) as f64 / (all[0] + all[1]) as f64
    };
    let parts =
        ["/softmax", "/mlp/activation/gelu", "norm", "/attention/scores", "/attention/values", "/qkv", "/mlp/up"];
    for part in parts {
        assert!(share(part) > 0.005, "{part}: {} of {purposes:#?}", share(part));
    }
    // The layers are alike, and so is what they take; the last one of a prompt reads a single row.
    let [first, second] = [0, 1].map(|layer| sum(&purposes, &format!("layer {layer}/mlp/activation/gelu")));
    assert!(first[0].abs_diff(second[0]) <= 1 && first[1].abs_diff(second[1]) <= 1, "{first:?} and {second:?}");
    assert_eq!(kinds.keys().filter(|kind| *kind == "functions" || *kind == "linear").count(), 2, "{kinds:?}");

    let tables = |rows: &str| succeed(&mut waggle(&format!("plan {arguments} --preprocess --format csv {rows}")));
    let rows = |table: &str| table.lines().filter(|line| line.contains("layer *")).count();
    let (few, all, two) = (tables(""), tables("--operations"), tables("--operations 2"));
    assert!(rows(&few) <= 12 && rows(&two) == 2 && rows(&all) > 30, "{few}\n{all}");
    assert!(all.contains("kind_of_correlation") && !few.contains("kind_of_correlation"), "{all}");
}

/// Shapes that no power of two divides, with an untied head and with grouped-query attention.
#[test]
fn odd_shapes() {
    let dir = tempfile::tempdir().unwrap();
    let gpt2 = r#"{"model_type": "gpt2", "vocab_size": 53, "n_positions": 20, "n_embd": 39, "n_layer": 2, "n_head": 3,
        "n_inner": 70, "tie_word_embeddings": false, "activation_function": "gelu"}"#;
    let llama = r#"{"model_type": "llama", "vocab_size": 71, "hidden_size": 42, "intermediate_size": 55,
        "num_hidden_layers": 2, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 10,
        "rope_scaling": {"rope_type": "linear", "factor": 2.0}}"#;
    for (name, config) in [("gpt2", gpt2), ("llama", llama)] {
        let model = synthesise(dir.path(), name, config);
        compare(&model, &[3, 50, 12, 9, 1], 3, "");
        compare(&model, &[3, 50, 12, 9, 1], 3, "--preprocess --policy streaming:budget=0.5");
    }
}

/// Windows that evict, gains that no matrix follows, soft caps, blocks in parallel, and the rest of every family.
/// Their shapes go through a handshake, with the names of a thousand classes.
#[test]
fn published_encoders() {
    for arguments in ["bert-base --prompt-len 8", "bert-large --prompt-len 8", "vit-base --prompt-len 197"] {
        let planned = json(&mut waggle(&format!("plan --link lan --model {arguments}")));
        assert!(planned["phases"]["prefill"]["flows"].as_u64().unwrap() > 100, "{arguments}: {planned}");
    }
}

#[test]
fn families() {
    let all = Path::new(env!("CARGO_MANIFEST_DIR")).join("model/tests/data/families");
    let prompt: Vec<u32> = (0..13).map(|i| (5 * i + 3) % 72).collect();
    let mut found = 0;
    for entry in std::fs::read_dir(all).unwrap() {
        let model = entry.unwrap().path().display().to_string();
        compare(&model, &prompt, 4, "--preprocess");
        found += 1;
    }
    assert!(found >= 14, "{found} families");
    for name in ["mistral", "gemma2", "phi"] {
        let model = format!("{}/model/tests/data/families/{name}", env!("CARGO_MANIFEST_DIR"));
        compare(&model, &prompt, 4, "--prefill-chunk 5");
    }
}

/// A model that drafts for itself is right, so that the plan knows how many tokens each pass keeps.
#[test]
fn passes_over_guesses() {
    for (model, phases) in
        [("shakespeare-gpt2", ""), ("shakespeare-gpt2", "--preprocess"), ("shakespeare-llama", "--preprocess")]
    {
        compare(model, &[30, 27, 25, 17, 27, 10, 0], 9, &format!("--draft model:{model}:3 --draft-rate 4 {phases}"));
    }
}

/// One step after a prompt costs what it costs in a whole session, except that whole sessions share refills of OTs
/// and batches of correlations.
#[test]
fn a_step_alone() {
    for (phases, model) in [("", "shakespeare-llama"), ("--preprocess", "shakespeare-gpt2")] {
        let of =
            |arguments: &str| json(&mut waggle(&format!("plan --model {model} --link lan {phases} {arguments}")));
        for (step, session) in [
            (of("--cached 40"), of("--prompt-len 40 --tokens 2")),
            // All guesses are right, so that one pass gives all tokens.
            (of("--cached 40 --draft lookup:3"), of("--prompt-len 40 --tokens 5 --draft lookup:3 --draft-rate 4")),
        ] {
            assert!(step["phases"]["prefill"]["bytes"].as_u64().is_none_or(|bytes| bytes == 0), "{step}");
            for key in ["bytes_client_to_server", "bytes_server_to_client"] {
                let [alone, within] =
                    [&step, &session].map(|report| report["phases"]["decode"][key].as_u64().unwrap());
                assert_eq!(alone, within, "{model} {phases}: {key}");
            }
            // The cost of a pass is exact, and the number of its tokens that are kept is assumed.
            if let Some(draft) = step.get("draft") {
                assert_eq!((&draft["passes"], &draft["tokens_per_pass"]), (&value!([4]), &value!(1.25)));
                assert!(step["estimated"].as_array().unwrap().contains(&value!("tokens_per_pass")));
            }
            let offline = |report: &Value| report["phases"]["offline"]["bytes_client_to_server"].as_u64().unwrap();
            assert!(0 < offline(&step) && offline(&step) < offline(&session), "{model} {phases}");
        }
    }
}

/// A long prompt prepares its activations in one phase as well, over slow links too; a token looks them up. Nothing
/// leaps at 1 Gbit/s.
#[test]
fn activations_follow_the_volume() {
    let seconds = |link: &str, phase: &str| {
        let plan = json(&mut waggle(&format!("plan --model gpt2 --prompt-len 128 --tokens 2 --link {link}")));
        let predicted = |phase: &str| plan["phases"][phase]["seconds"].as_f64().unwrap();
        predicted(phase) + if phase == "prefill" { predicted("offline") } else { 0.0 }
    };
    let prompt = seconds("wan", "prefill");
    assert!(prompt < 67.0, "{prompt} s");
    for phase in ["prefill", "decode"] {
        let [below, above] = ["999mbit,4ms", "1001mbit,4ms"].map(|link| seconds(link, phase));
        assert!((below / above - 1.0).abs() < 0.01, "{phase}: {below} s, {above} s");
    }
}

#[test]
fn a_configuration_alone_is_enough() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("config.json");
    std::fs::write(&file, r#"{"model_type": "gpt2", "n_layer": 1}"#).unwrap();
    let plan = json(&mut waggle(&format!("plan --model {} --prompt-len 4 --tokens 2 --link wan", file.display())));
    assert_eq!(plan["model"]["config"]["n_embd"], 768);
    let decode = &plan["phases"]["decode"];
    let seconds = decode["seconds"].as_f64().unwrap();
    // Half of 4 ms for every flow, and something for the bytes.
    assert!(seconds > 0.002 * decode["flows"].as_f64().unwrap(), "{decode}");
    assert!(plan["estimated"].as_array().unwrap().contains(&Value::from("seconds")));
}

/// Two parties that nobody told anything find out the same and plan with it, and so does a plan as in their report.
#[test]
fn parties_tell_each_other_what_they_have() {
    let dir = tempfile::tempdir().unwrap();
    let of_server = dir.path().join("server.json");
    let serve = |arguments: &str| {
        let json = of_server.display();
        Server::start(&format!("--model shakespeare-gpt2 --once --skip-range-check --json {json} {arguments}"))
    };
    let tokenizer = Path::new(env!("CARGO_MANIFEST_DIR")).join("model/assets/shakespeare-gpt2/tokenizer.json");
    let asked = format!("--prompt-ids 5,6,7 --tokens 2 --preprocess --tokenizer {}", tokenizer.display());
    let found = |report: &Value| ["cores", "plan-for", "met"].map(|name| report["options"][name].clone());
    for (server, client, [cores, link]) in
        [("", "", [None, None]), ("--cores 2+64", "--plan-for wan", [Some("2+64"), Some("wan")])]
    {
        let served = serve(server);
        let mut command = served.client(&format!("{asked} {client}"));
        let of_client = dir.path().join("client.json");
        succeed(command.arg("--json").arg(&of_client));
        served.end(LIMIT);
        let run = read_json(&of_client);
        assert_eq!(found(&run), found(&read_json(&of_server)));
        let [has_cores, has_link, met] = found(&run);
        assert!(cores.is_none_or(|cores| has_cores == cores) && link.is_none_or(|link| has_link == link), "{run}");
        assert_eq!((met["bursts"].is_null(), &met["kernels"][0]), (link.is_some(), &run["kernels"]));
        let plan = "plan --model shakespeare-gpt2 --prompt-len 3 --tokens 2 --preprocess --as-in";
        let plan = json(waggle(plan).arg(&of_client));
        assert_eq!(found(&plan), found(&run));
        assert_eq!(operations(&run), operations(&plan));
        assert_eq!(kinds(&run), kinds(&plan));
    }
    let served = serve("--cores 3");
    fails(&mut served.client(&format!("{asked} --cores 4")), 1, ["cores: client says 4, server says 3"]);
    let text = succeed(&mut waggle("plan --model shakespeare-gpt2"));
    assert!(text.contains("cores 40") && text.contains("link lan, rate 3016 Mbit/s, round trip 0.3 ms"), "{text}");
}

#[test]
fn links_of_papers_are_planned() {
    let links: Value = serde_json::from_str(&succeed(&mut waggle("links --format json"))).unwrap();
    let links = links.as_array().unwrap();
    assert!(links.iter().any(|link| link["link"] == "bumblebee-wan" && link["rate_mbit_s"] == 400.0), "{links:?}");
    for link in links {
        let name = link["link"].as_str().unwrap();
        let plan = json(&mut waggle(&format!("plan --model stories260k --cached 8 --preprocess --link {name}")));
        let seconds = plan["phases"]["decode"]["seconds"].as_f64().unwrap();
        let flows = plan["phases"]["decode"]["flows"].as_f64().unwrap();
        let round_trip = link["round_trip_ms"].as_f64().unwrap() / 1e3;
        assert!(seconds >= 0.5 * round_trip * flows, "{name}: {seconds} s, {flows} flows");
    }
}

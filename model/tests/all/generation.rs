//! The generation loop, tokenizers, random models and the check against the plaintext engine.

use std::collections::HashSet;

use rand::SeedableRng;
use rand::rngs::StdRng;
use waggle_engine::Float;
use waggle_model::{
    Activation, DType, Error, GenerateOptions, Hooks, Input, ModelConfig, ModelFiles, ModelSpec, Next, Reveal,
    Sampler, Step, bundled, check, generate, synthesize,
};
use waggle_testing::asset;
use waggle_tokenizer::{Tokenizer, TokenizerError};

use crate::support::{FloatModel, greedy, load, logits, sampled};

fn run(
    model: &FloatModel,
    prompt: &[u32],
    options: &GenerateOptions,
    sampler: &mut Sampler,
) -> waggle_model::Generation {
    sampled(model, prompt, options, sampler).unwrap()
}

#[test]
fn shakespeare_writes_text_that_streams() {
    let mut files = bundled("shakespeare-gpt2").unwrap();
    let tokenizer = Tokenizer::from_bytes(files.tokenizer.take().as_deref().unwrap()).unwrap();
    let model = load(files);
    let prompt = tokenizer.encode("ROMEO:\n").unwrap();
    assert_eq!(prompt, [30, 27, 25, 17, 27, 10, 0]);
    let tokens = greedy(&model, &prompt, 40).tokens;
    let text = tokenizer.decode(&tokens).unwrap();
    assert!(text.starts_with("I will not the state"), "{text}");
    let mut stream = tokenizer.stream(&prompt);
    let mut streamed: String = tokens.iter().map(|&id| stream.push(id).unwrap()).collect();
    streamed += &stream.finish().unwrap();
    assert_eq!(streamed, text);
    assert!(matches!(bundled("milton"), Err(Error::NotBundled { .. })));
}

#[test]
fn tokenizers_of_all_kinds_come_back_and_stream() {
    let text = "Once upon a time, in Zürich\u{2026} the bees 🐝 said: \"hello\"  again.";
    let gpt2 = std::fs::read(asset("tokenizers/gpt2/tokenizer.json")).unwrap();
    for (file, special) in [(gpt2, 0), (bundled("stories260k").unwrap().tokenizer.unwrap(), 1)] {
        let tokenizer = Tokenizer::from_bytes(&file).unwrap();
        let ids = tokenizer.encode(text).unwrap();
        let whole = tokenizer.decode(&ids).unwrap();
        if special == 0 {
            assert_eq!(whole, text, "byte-level BPE loses nothing");
        } else {
            assert_eq!(ids[0], 1, "a text begins with <s>");
        }
        let mut stream = tokenizer.stream(&ids[..4]);
        let mut pieces: Vec<String> = ids[4..].iter().map(|&id| stream.push(id).unwrap()).collect();
        pieces.push(stream.finish().unwrap());
        let start = tokenizer.decode(&ids[..4]).unwrap();
        assert_eq!(start + &pieces.concat(), whole);
        assert!(pieces.iter().all(|piece| !piece.contains(char::REPLACEMENT_CHARACTER)));
        assert!(pieces.len() > 10);
    }
    assert!(matches!(Tokenizer::from_bytes(b"{}"), Err(TokenizerError::Refused { .. })));
}

/// Hooks that record the calls of the loop.
#[derive(Default)]
struct Diary {
    steps: Vec<Step>,
    layers: usize,
    tokens: Vec<Option<u32>>,
    asked: usize,
    stop_after: usize,
}

impl Hooks<Float> for Diary {
    fn begin(&mut self, _: &mut Float, step: Step) -> Result<(), waggle_engine::Error> {
        self.steps.push(step);
        Ok(())
    }

    fn layer(&mut self, done: usize, layers: usize) {
        self.layers += 1;
        assert!((1..=layers).contains(&done));
    }

    fn token(&mut self, _: &mut Float, _: Step, token: Option<u32>) {
        self.tokens.push(token);
    }

    fn agree_to_stop(&mut self, _: &mut Float, stop: Option<bool>) -> Result<bool, waggle_engine::Error> {
        assert_eq!(stop, Some(false), "no letter ends a text");
        self.asked += 1;
        Ok(self.asked == self.stop_after)
    }
}

#[test]
fn hooks_see_every_step_and_can_end_it() {
    let model = load(bundled("shakespeare-llama").unwrap());
    let prompt = [40, 37, 35, 27];
    let input = Input::of(Some(&prompt), 4);
    let mut sampler = Sampler::greedy();
    let mut diary = Diary { stop_after: 3, ..Diary::default() };
    let options = GenerateOptions { tokens: 5, ..Default::default() };
    let mut run = |options: &GenerateOptions, diary: &mut Diary| {
        generate(&mut Float::default(), &model, input, options, Next::Pick(&mut sampler), diary).unwrap()
    };
    let all = run(&options, &mut diary);
    assert_eq!(diary.steps[0], Step::Prefill);
    assert_eq!(diary.steps[1..], [1, 2, 3, 4].map(|index| Step::Decode { index, drafted: 0 }));
    assert_eq!((diary.layers, diary.asked, all.count), (20, 0, 5));
    assert_eq!(diary.tokens, all.tokens.iter().map(|t| Some(*t)).collect::<Vec<_>>());
    let options = GenerateOptions { stop_at_eos: true, ..options };
    let mut diary = Diary { stop_after: 3, ..Diary::default() };
    let short = run(&options, &mut diary);
    assert_eq!((short.count, &short.tokens[..]), (3, &all.tokens[..3]));
}

#[test]
fn generation_ends_at_an_eos_token() {
    // The newline is the end-of-text token of this model.
    let model = load(bundled("shakespeare-gpt2").unwrap());
    assert_eq!(model.spec().eos(), [0]);
    let prompt = [30, 27, 25, 17, 27, 10, 0];
    let long = greedy(&model, &prompt, 60).tokens;
    let first = long.iter().position(|t| *t == 0).unwrap();
    let options = GenerateOptions { tokens: 60, stop_at_eos: true, ..Default::default() };
    let out = run(&model, &prompt, &options, &mut Sampler::greedy());
    assert_eq!(out.tokens, long[..=first]);
}

#[test]
fn revealing_tokens_gives_the_greedy_text_and_no_logits() {
    let model = load(bundled("shakespeare-llama").unwrap());
    let prompt = [40, 37, 35, 27, 37, 19, 0];
    let want = greedy(&model, &prompt, 20).tokens;
    for all_positions in [false, true] {
        let options = GenerateOptions { tokens: 20, reveal: Reveal::Token, all_positions, ..Default::default() };
        let out = run(&model, &prompt, &options, &mut Sampler::greedy());
        assert_eq!((out.tokens, out.logits), (want.clone(), None));
    }
}

#[test]
fn sampling_repeats_with_its_seed_and_varies_without() {
    let model = load(bundled("shakespeare-gpt2").unwrap());
    let sample = |seed| {
        let mut sampler = Sampler::random(1.0, 0.95, StdRng::seed_from_u64(seed)).unwrap();
        run(&model, &[0], &GenerateOptions { tokens: 40, ..Default::default() }, &mut sampler).tokens
    };
    assert_eq!(sample(1), sample(1));
    assert_ne!(sample(1), sample(2));
}

#[test]
fn impossible_generations_are_refused_before_they_start() {
    let model = load(bundled("shakespeare-gpt2").unwrap());
    let attempt = |prompt: &[u32], tokens| {
        let options = GenerateOptions { tokens, ..Default::default() };
        sampled(&model, prompt, &options, &mut Sampler::greedy())
    };
    assert!(matches!(attempt(&[], 1), Err(Error::Nothing)));
    assert!(matches!(attempt(&[1], 0), Err(Error::Nothing)));
    assert!(matches!(attempt(&[1; 200], 58), Err(Error::TooLong { positions: 257, limit: 256 })));
    assert!(matches!(attempt(&[1], usize::MAX), Err(Error::TooLong { .. })));
    assert!(matches!(attempt(&[65], 1), Err(Error::Engine(waggle_engine::Error::Token { id: 65, vocabulary: 65 }))));
    assert_eq!(attempt(&[1; 200], 57).unwrap().tokens.len(), 57);
}

#[test]
fn check_measures_what_was_disturbed() {
    let model = load(bundled("shakespeare-gpt2").unwrap());
    let prompt = [30, 27, 25, 17, 27, 10, 0];
    for all_positions in [false, true] {
        let options = GenerateOptions { tokens: 10, all_positions, ..Default::default() };
        let honest = run(&model, &prompt, &options, &mut Sampler::greedy());
        let same = check(&model, Input::known(&prompt), &options, &honest).unwrap();
        assert_eq!((same.max_abs_logit_error, same.token_agreement), (Some(0.0), 1.0));
        assert_eq!(same.largest_margin_missed, None);
        let mut disturbed = honest.clone();
        let logits = disturbed.logits.as_mut().unwrap();
        let last = logits.nrows() - 1;
        logits[[last, 3]] += 1000.0;
        disturbed.tokens[9] = 3;
        let found = check(&model, Input::known(&prompt), &options, &disturbed).unwrap();
        assert!((found.max_abs_logit_error.unwrap() - 1000.0).abs() < 0.1);
        assert_eq!(found.token_agreement, 0.9);
        let mut row = honest.logits.as_ref().unwrap().row(last).to_vec();
        row.sort_by(f32::total_cmp);
        assert_eq!(found.largest_margin_missed, Some(row[row.len() - 1] - row[row.len() - 2]));
    }
    // Sampled tokens do not count as errors. Without logits, the tokens themselves are compared.
    let options = GenerateOptions { tokens: 30, ..Default::default() };
    let mut sampler = Sampler::random(1.5, 1.0, StdRng::seed_from_u64(3)).unwrap();
    let sampled = run(&model, &prompt, &options, &mut sampler);
    assert_eq!(check(&model, Input::known(&prompt), &options, &sampled).unwrap().token_agreement, 1.0);
    let tokens_only = waggle_model::Generation { logits: None, ..sampled };
    let found = check(&model, Input::known(&prompt), &options, &tokens_only).unwrap();
    assert!(found.token_agreement < 1.0 && found.max_abs_logit_error.is_none());
    assert!(found.largest_margin_missed.unwrap() > 0.0);
}

#[test]
fn random_models_repeat_with_their_seed_and_behave_like_fresh_ones() {
    let gpt2 = br#"{
        "model_type": "gpt2", "vocab_size": 300, "n_positions": 32, "n_embd": 96, "n_layer": 12, "n_head": 4,
        "torch_dtype": "float64"
    }"#;
    let llama = br#"{
        "model_type": "llama", "vocab_size": 300, "hidden_size": 96, "intermediate_size": 256,
        "num_attention_heads": 4, "num_key_value_heads": 2, "mlp_bias": true
    }"#;
    for config in [gpt2.as_slice(), llama] {
        let dir = tempfile::tempdir().unwrap();
        let read = |dtype, seed, name: &str| {
            let spec = synthesize(config, &dir.path().join(name), Some(2), dtype, None, seed).unwrap();
            assert_eq!(spec.layers(), 2);
            std::fs::read(dir.path().join(name).join("model.safetensors")).unwrap()
        };
        assert_eq!(read(DType::F32, 1, "a"), read(DType::F32, 1, "b"));
        assert_ne!(read(DType::F32, 1, "a"), read(DType::F32, 2, "b"));
        assert!(read(DType::F16, 1, "half").len() < read(DType::F32, 1, "a").len() * 6 / 10);
        for name in ["a", "half"] {
            let files = ModelFiles::open(&dir.path().join(name)).unwrap();
            assert!(files.tokenizer.is_none());
            assert_eq!(files.spec, ModelSpec::open(&dir.path().join(name)).unwrap());
            for tensor in files.spec.tensors().iter().filter(|t| t.shape.len() == 2) {
                let matrix = files.checkpoint.matrix(&tensor.name).unwrap();
                let spread = (matrix.mapv(|v| v * v).sum() / matrix.len() as f32).sqrt();
                let residual = ["c_proj", "o_proj", "down_proj"].iter().any(|part| tensor.name.contains(part));
                let want = if residual { 0.01 } else { 0.02 };
                assert!((spread / want - 1.0).abs() < 0.05, "{}: {spread}", tensor.name);
            }
            let rows = logits(&load(files), &[1, 2, 3, 299]);
            assert!(rows.iter().all(|v| v.abs() < 5.0) && rows.iter().any(|v| v.abs() > 0.01));
        }
        let text = std::fs::read_to_string(dir.path().join("half/config.json")).unwrap();
        assert!(!text.contains("float64"));
    }
}

#[test]
fn published_configurations_open_and_count_their_parameters() {
    let dir = asset("configs");
    let count = |file: &str| ModelSpec::open(&dir.join(file)).unwrap().parameters();
    assert_eq!(count("gpt2.json"), 124_439_808);
    // Quantised weights are another format.
    let quantised = ModelSpec::open(&dir.join("gpt2-kv260-int8.json")).unwrap_err().to_string();
    assert!(quantised.contains("quantization_config"), "{quantised}");
    assert_eq!(count("gpt2-medium.json"), 354_823_168);
    assert_eq!(count("gpt2-large.json"), 774_030_080);
    assert_eq!(count("gpt2-xl.json"), 1_557_611_200);
    assert_eq!(count("llama-2-7b-hf.json"), 6_738_415_616);
    assert_eq!(count("meta-llama-3-8b.json"), 8_030_261_248);
    assert_eq!(count("longchat-7b-v1.5-32k.RECONSTRUCTED.json"), 6_738_415_616);
    for entry in std::fs::read_dir(&dir).unwrap() {
        let path = entry.unwrap().path();
        if path.ends_with("gpt2-kv260-int8.json") {
            continue;
        }
        let spec = ModelSpec::open(&path).unwrap();
        let names: HashSet<_> = spec.tensors().into_iter().map(|t| t.name).collect();
        assert_eq!(names.len(), spec.tensors().len());
        if let ModelConfig::Llama(config) = spec.config() {
            assert_eq!(config.hidden_act, Activation::Silu);
        }
    }
}

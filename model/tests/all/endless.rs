//! Endless texts in a cache with a budget in tokens: a layer never holds more tokens than the budget, and memory does
//! not grow.
//!
//! The long text takes minutes: `cargo test --release -p waggle-model --test all endless -- --ignored`.

use std::path::Path;

use rand::SeedableRng;
use rand::rngs::StdRng;
use waggle_engine::{Float, FloatLoader, Select};
use waggle_fuzz::memory;
use waggle_model::{GenerateOptions, Input, Model, ModelFiles, Next, NoHooks, Sampler, generate_with};
use waggle_mpcache::{Budget, KvCache};
use waggle_protocols::{Fixed, FixedLoader, FixedWeight};

/// The number of tokens in a stretch, for which memory is measured together. It is a multiple of the blocks of the
/// budgets below, so that all stretches begin alike.
const STRETCH: usize = 128;

/// The tokens that a text held, and the memory that it took.
struct Taken {
    /// The most tokens that each layer held after a token.
    held: Vec<usize>,
    /// By stretch, the most memory that was taken above the memory at its beginning, in bytes. Tokens that stay
    /// count, too.
    memory: Vec<usize>,
}

/// The model in fixed point.
fn fixed(files: &ModelFiles) -> Model<FixedWeight> {
    Model::load(&mut FixedLoader::default(), &files.spec, Some(&files.checkpoint)).unwrap()
}

/// Generates `tokens` tokens after `prompt` under the policy `text`, with one call for each token.
fn write<E: Select>(engine: &mut E, model: &Model<E::Weight>, text: &str, prompt: &[u32], tokens: usize) -> Taken {
    let layers = model.spec().layers();
    let policy = text.parse().expect("a policy");
    let mut cache: KvCache<E> = model.cache(&policy);
    let options = GenerateOptions { tokens: 1, policy, ..GenerateOptions::default() };
    let mut taken = Taken { held: vec![0; layers], memory: Vec::new() };
    let mut next = prompt.to_vec();
    // The text is sampled, because greedy texts of small models repeat themselves.
    let mut sampler = Sampler::random(1.0, 1.0, StdRng::seed_from_u64(9)).expect("a sampler");
    for _ in 0..tokens / STRETCH {
        let ((), most) = memory::peak(|| {
            for _ in 0..STRETCH {
                let input = Input::known(&next);
                let pick = Next::Pick(&mut sampler);
                let got = generate_with(engine, model, &mut cache, input, &options, pick, &mut NoHooks).expect(text);
                next = got.tokens;
                for (layer, held) in taken.held.iter_mut().enumerate() {
                    *held = (*held).max(cache.held(layer));
                }
            }
        });
        taken.memory.push(most);
    }
    assert_eq!(cache.tokens(), prompt.len() + tokens - 1);
    taken
}

/// Checks that a text under `policy` stays within its `budget`, which is the mean of its layers, and takes no more
/// memory than at its beginning.
///
/// Everything runs in one thread, because memory is counted by thread.
fn stays<E: Select>(
    engine: impl FnOnce() -> E + Send,
    model: &Model<E::Weight>,
    policy: &str,
    budget: usize,
    tokens: usize,
) {
    let alone = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
    let Taken { held, memory } = alone.install(|| write(&mut engine(), model, policy, &[1, 4, 2, 8, 5, 7], tokens));
    println!("{policy}: layers held {held:?} tokens, bytes of each {STRETCH} tokens: {memory:?}");
    assert!(held.iter().sum::<usize>() <= held.len() * budget, "{policy}: {held:?}");
    // The cache is full after the first stretch. Vectors double now and then, so the two halves of the text are
    // compared.
    let most = |stretches: &[usize]| stretches.iter().copied().max().expect("several");
    let (early, late) = memory[1..].split_at(memory.len() / 2);
    assert!(most(late) <= most(early) + most(early) / 10, "{policy}: {memory:?}");
}

const LLAMA: &str = r#"{"model_type": "llama", "num_hidden_layers": 3, "hidden_size": 16, "intermediate_size": 24,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 23, "max_position_embeddings": 1024}"#;

#[test]
fn short_texts_stay_within_their_budget() {
    let dir = tempfile::tempdir().unwrap();
    crate::support::tiny::write_model(dir.path(), LLAMA);
    let files = ModelFiles::open(dir.path()).unwrap();
    let float = Model::load(&mut FloatLoader, &files.spec, Some(&files.checkpoint)).unwrap();
    let fixed = fixed(&files);
    for name in ["streaming", "h2o", "alisa", "tova", "snapkv", "pyramid", "squeeze", "knorm", "keyformer"] {
        let policy = format!("{name}:budget=32");
        stays(Float::default, &float, &policy, 32, 6 * STRETCH);
        stays(Fixed::new, &fixed, &policy, 32, 4 * STRETCH);
    }
    // The full cache exceeds the budget, and its memory grows.
    let full = write(&mut Float::default(), &float, "full", &[1, 4, 2], 6 * STRETCH);
    assert_eq!(full.held, [6 * STRETCH + 2; 3]);
    assert!(full.memory[5] > 2 * full.memory[1], "{:?}", full.memory);
}

#[test]
#[ignore = "minutes: run it by name"]
fn two_thousand_tokens_of_stories260k_within_128() {
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/stories260k");
    let dir = tempfile::tempdir().unwrap();
    for file in ["model.safetensors", "tokenizer.json"] {
        std::fs::copy(from.join(file), dir.path().join(file)).unwrap();
    }
    // The model was trained on 512 positions; rotary embeddings have more.
    let config = std::fs::read_to_string(from.join("config.json")).unwrap();
    let longer = config.replace("\"max_position_embeddings\": 512", "\"max_position_embeddings\": 4096");
    assert_ne!(config, longer);
    std::fs::write(dir.path().join("config.json"), longer).unwrap();
    let files = ModelFiles::open(dir.path()).unwrap();
    let fixed = fixed(&files);
    assert_eq!("128".parse(), Ok(Budget::Tokens(128)));
    for name in ["streaming", "h2o", "tova", "snapkv", "pyramid", "knorm"] {
        stays(Fixed::new, &fixed, &format!("{name}:budget=128"), 128, 16 * STRETCH);
    }
}

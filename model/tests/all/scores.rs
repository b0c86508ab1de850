//! Scoring heads, which every family supports.

use std::path::Path;
use std::sync::{Arc, Mutex};

use ndarray::{Array2, ArrayD};
use waggle_engine::{Ceiling, Error, Float, FloatLoader, Select};
use waggle_model::{Checkpoint, GenerateOptions, Input, Model, ModelFiles, ModelSpec, Next, NoHooks, Rows, generate};
use waggle_mpcache::{KvCache, Policy, PolicySpec, ScoreSource, Store, attention};
use waggle_protocols::{Fixed, FixedLoader};

use crate::families::families;
use crate::support::tiny::{write_columns, write_model};

/// The largest allowed difference of a score or a logit, as a share of the largest one.
const MAX_ERROR: f32 = 1e-4;

/// The number of tokens of a prompt.
const PROMPT: usize = 24;

const GPT2: &str =
    r#"{"model_type": "gpt2", "n_layer": 2, "n_embd": 12, "n_head": 3, "vocab_size": 41, "n_positions": 64}"#;

/// Calls `run` for every family, with the directory of a model that has a file of learned columns.
fn each(run: impl Fn(&str, &Path)) {
    let dir = tempfile::tempdir().unwrap();
    write_model(dir.path(), GPT2);
    write_columns(dir.path());
    run("gpt2", dir.path());
    let mut seen = vec!["gpt2".to_owned()];
    for (name, from) in families() {
        let dir = tempfile::tempdir().unwrap();
        for file in ["config.json", "model.safetensors"] {
            std::fs::copy(from.join(file), dir.path().join(file)).unwrap();
        }
        write_columns(dir.path());
        run(&name, dir.path());
        let kind = serde_json::to_value(ModelFiles::open(&from).unwrap().spec).unwrap();
        seen.push(kind["model_type"].as_str().unwrap().to_owned());
    }
    // Scores are for the tokens of a cache, and encoders keep none.
    let encoders = ["bert", "roberta", "distilbert", "vit"];
    let mut decoders = ModelSpec::TYPES.iter().filter(|kind| !encoders.contains(kind));
    assert!(decoders.all(|kind| seen.iter().any(|seen| seen == kind)), "{seen:?}");
}

fn ids(spec: &ModelSpec) -> Vec<u32> {
    (0..PROMPT as u32).map(|i| i * 7 % spec.vocabulary() as u32).collect()
}

/// A policy that attends to all tokens and records their scores by layer.
struct Noting(Arc<Mutex<Vec<ArrayD<f32>>>>);

impl Policy<Float> for Noting {
    fn attend(
        &mut self,
        engine: &mut Float,
        _layer: usize,
        q: &ArrayD<f32>,
        store: &mut Store<Float>,
    ) -> Result<ArrayD<f32>, Error> {
        attention::attend(engine, q, store)
    }

    fn wants_scores(&self) -> Option<ScoreSource> {
        Some(ScoreSource::ScoringHead("kvzap"))
    }

    fn score(&mut self, layer: usize, scores: &ArrayD<f32>, _: Ceiling) {
        let mut noted = self.0.lock().unwrap();
        assert_eq!(noted.len(), layer, "once a layer, in order");
        noted.push(scores.clone());
    }
}

fn largest(x: &Array2<f32>) -> f32 {
    x.iter().fold(0.0, |most, x| most.max(x.abs()))
}

#[test]
fn scores_are_columns_of_what_the_first_norm_of_a_layer_returns() {
    each(|name, dir| {
        let ModelFiles { spec, checkpoint, .. } = ModelFiles::open(dir).unwrap();
        if !spec.attention().shared.is_empty() {
            return;
        }
        let policy: PolicySpec = "kvzap:budget=0.5".parse().unwrap();
        let model = Model::load_for(&policy, &mut FloatLoader, &spec, Some(&checkpoint)).unwrap();
        assert_eq!(model.scoring_head(), Some("kvzap"));
        let noted = Arc::new(Mutex::new(Vec::new()));
        let mut cache = KvCache::with_policy(&spec.attention().without_windows(), Box::new(Noting(noted.clone())));
        let mut engine = Float::keeping_states();
        let ids = ids(&spec);
        let input = Input::known(&ids);
        model.forward(&mut engine, input, &mut cache, Rows::All, &mut |_| ()).unwrap();
        let norms = engine.take_states().norms;
        let of_a_layer = (norms.len() - 1) / spec.layers();
        let beside = tempfile::tempdir().unwrap();
        std::fs::copy(dir.join("kvzap.safetensors"), beside.path().join("model.safetensors")).unwrap();
        let columns = Checkpoint::open(beside.path()).unwrap();
        let noted = noted.lock().unwrap();
        assert_eq!(noted.len(), spec.layers(), "{name}");
        for (layer, scores) in noted.iter().enumerate() {
            let flat = |x: &ArrayD<f32>| x.clone().into_dimensionality::<ndarray::Ix2>().unwrap();
            let states = flat(&norms[of_a_layer * layer]);
            let want = states.dot(&columns.matrix(&format!("layers.{layer}.weight")).unwrap().t());
            let error = largest(&(flat(scores) - &want)) / largest(&want);
            assert!(error < MAX_ERROR, "{name}, layer {layer}: scores are off by {error}");
        }
    });
}

#[test]
fn states_of_the_residual_stream() {
    each(|name, dir| {
        let ModelFiles { spec, checkpoint, .. } = ModelFiles::open(dir).unwrap();
        let model = Model::load(&mut FloatLoader, &spec, Some(&checkpoint)).unwrap();
        let mut engine = Float::keeping_states();
        let mut cache = KvCache::new(&spec.attention(), &PolicySpec::default());
        let ids = ids(&spec);
        let input = Input::known(&ids);
        let last = model.forward(&mut engine, input, &mut cache, Rows::All, &mut |_| ()).unwrap();
        let residual = engine.take_states().residual;
        if !spec.attention().shared.is_empty() {
            // Columns cannot be fitted to such models, see `ModelSpec::check_shared`.
            return;
        }
        // The states are the embedding, perhaps its sum with positions, and two for each layer.
        let before = residual.len() - 2 * spec.layers();
        assert!((1..=2).contains(&before), "{name}: {before}");
        for state in &residual {
            assert_eq!(state.dim(), (PROMPT, spec.hidden()), "{name}");
        }
        // The head of the model reads the last state, normalised.
        let last = last.unwrap().into_dimensionality::<ndarray::Ix2>().unwrap();
        for (state, normed) in residual.last().unwrap().rows().into_iter().zip(last.rows()) {
            let cosine = state.dot(&normed) / (state.dot(&state) * normed.dot(&normed)).sqrt();
            assert!(cosine > 0.9999, "{name}: {cosine}");
        }
    });
}

fn run<E: Select>(
    engine: &mut E,
    model: &Model<E::Weight>,
    policy: &PolicySpec,
) -> Result<Array2<f32>, waggle_model::Error> {
    let ids = ids(&model.spec());
    let options = GenerateOptions { tokens: 5, policy: policy.clone(), ..crate::support::fine() };
    let input = Input::known(&ids);
    Ok(generate(engine, model, input, &options, Next::Forced(&[0, 1, 2, 3]), &mut NoHooks)?.logits.unwrap())
}

#[test]
fn every_family_runs_kvzap() {
    each(|name, dir| {
        let ModelFiles { spec, checkpoint, .. } = ModelFiles::open(dir).unwrap();
        let (full, policy) = (PolicySpec::default(), "kvzap:budget=12,block=3,recent=3".parse().unwrap());
        if !spec.attention().shared.is_empty() {
            let loaded = Model::load_for(&policy, &mut FloatLoader, &spec, Some(&checkpoint));
            assert!(matches!(loaded.err(), Some(waggle_model::Error::SharedPolicy { .. })), "{name}");
            return;
        }
        let plain = Model::load(&mut FloatLoader, &spec, Some(&checkpoint)).unwrap();
        let wide = Model::load_for(&policy, &mut FloatLoader, &spec, Some(&checkpoint)).unwrap();
        assert_eq!(wide.weights().len(), plain.weights().len(), "{name}: weights are wider, not more");
        // The columns do not change the text under another policy.
        let want = run(&mut Float::default(), &plain, &full).unwrap();
        let got = run(&mut Float::default(), &wide, &full).unwrap();
        assert!(largest(&(got - &want)) < MAX_ERROR * largest(&want), "{name}");
        assert!(matches!(
            run(&mut Float::default(), &plain, &policy),
            Err(waggle_model::Error::NotLearned { .. } | waggle_model::Error::WindowedPolicy { .. })
        ));
        let fixed = Model::load_for(&policy, &mut FixedLoader::default(), &spec, Some(&checkpoint)).unwrap();
        let pruned = run(&mut Float::default(), &wide, &policy);
        if spec.attention().pruned() == 0 {
            assert!(matches!(pruned, Err(waggle_model::Error::WindowedPolicy { .. })), "{name}");
            return;
        }
        assert_ne!(pruned.unwrap(), want, "{name}: nothing was evicted");
        run(&mut Fixed::new(), &fixed, &policy).unwrap();
    });
}

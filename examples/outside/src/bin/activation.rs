//! An activation of another crate, under the name that `config.json` uses.
//!
//! `quick_gelu` is x sigmoid(1.702 x), which CLIP and others use in place of GELU. It is a composition of operations
//! that every engine has, so it needs no protocol of its own.
//!
//! ```text
//! cargo run --release -p outside --bin activation                                    # on every engine, see `show`
//! cargo run --release -p outside --bin activation -- demo --model DIR --tokens 20 --check
//! ```
//!
//! With arguments the program is `waggle` with one more activation. Both parties of a session need this program.

use std::error::Error as StdError;
use std::fs;
use std::path::Path;
use std::process::ExitCode;

use ndarray::{ArrayD, IxDyn};
use waggle::engine::{Engine, Error, Float, FloatLoader, Select, Tensor};
use waggle::model::{
    ActivationFunction, GenerateOptions, Input, Model, ModelFiles, Next, NoHooks, Sampler, bundled_file, generate,
};
use waggle::protocols::{FRAC, Fixed, FixedLoader};
use waggle::tokenizer::Tokenizer;
use waggle::{Cores, Local, LocalOptions, Network, Plan, Request, Terms, register_activation};

/// x sigmoid(1.702 x).
struct QuickGelu;

/// sigmoid(1.702 x) is close to the distribution function of the normal distribution.
const STEEPNESS: f32 = 1.702;

impl ActivationFunction for QuickGelu {
    const NAME: &'static str = "quick_gelu";

    fn exact(x: f32) -> f32 {
        x / (1.0 + (-STEEPNESS * x).exp())
    }

    // silu(y) = y sigmoid(y), so silu(1.702 x) is 1.702 times too large.
    fn apply<E: Engine>(engine: &mut E, x: &E::Tensor) -> Result<E::Tensor, Error> {
        let steeper = engine.scale(x, STEEPNESS)?;
        let y = engine.silu(&steeper)?;
        engine.scale(&y, STEEPNESS.recip())
    }
}

/// The largest difference between `apply` and `exact`: the error of [`Engine::silu`] and those of two products with
/// public numbers.
const MAX_ERROR: f32 = 3e-4;

/// The number of tokens that are generated.
const TOKENS: usize = 12;

/// Writes the bundled model to `dir`, with `quick_gelu` in place of `gelu_new`. The model was trained with
/// `gelu_new`, but still writes text.
fn write_model(dir: &Path) -> Result<(), Box<dyn StdError>> {
    for file in ["config.json", "model.safetensors", "tokenizer.json"] {
        let bytes = bundled_file("shakespeare-gpt2", file).ok_or("this program bundles no models")?;
        fs::write(dir.join(file), bytes)?;
    }
    let config = dir.join("config.json");
    Ok(fs::write(&config, fs::read_to_string(&config)?.replace("gelu_new", QuickGelu::NAME))?)
}

/// The largest error of the function in fixed point, over the range of its spline and beyond.
fn error_in_fixed_point() -> Result<f32, Error> {
    let x: Vec<f32> = (-4000..=4000).map(|i| i as f32 / 200.0).collect();
    let words = x.iter().map(|x| (f64::from(*x) * f64::from(1 << FRAC)).round() as i64 as u64).collect();
    let words = ArrayD::from_shape_vec(IxDyn(&[x.len()]), words).expect("as many entries");
    let y = QuickGelu::apply(&mut Fixed::new(), &words)?;
    assert_eq!(Tensor::shape(&y), [x.len()]);
    let real = |word: u64| word as i64 as f32 / (1 << FRAC) as f32;
    Ok(x.iter().zip(y).map(|(x, y)| (real(y) - QuickGelu::exact(*x)).abs()).fold(0.0, f32::max))
}

/// Puts the function into a model, and runs it on every engine: in floating point, in fixed point, as a plan, and
/// between two parties. The tokens of the two parties must equal those in the clear, and their traffic that of the
/// plan.
fn show() -> Result<(), Box<dyn StdError>> {
    let error = error_in_fixed_point()?;
    println!("in fixed point: an error of {error:.1e} at the most");
    assert!(error < MAX_ERROR, "an error of {error}");

    let dir = tempfile::tempdir()?;
    write_model(dir.path())?;
    let model = dir.path().to_string_lossy().into_owned();
    let files = ModelFiles::open(dir.path())?;
    let tokenizer = Tokenizer::from_bytes(files.tokenizer.as_deref().ok_or("the bundled model has a tokenizer")?)?;
    let prompt = tokenizer.encode("JULIET:\nO Romeo, Romeo!")?;
    let clear = Model::load(&mut FloatLoader, &files.spec, Some(&files.checkpoint))?;
    let fixed = Model::load(&mut FixedLoader::default(), &files.spec, Some(&files.checkpoint))?;
    let in_clear = written(&mut Float::default(), &clear, &prompt)?;
    println!("in the clear: {:?}", tokenizer.decode(&in_clear)?);
    assert_eq!(written(&mut Fixed::new(), &fixed, &prompt)?, in_clear, "fixed point writes the same");

    let terms = Terms::default().cores(Cores::here());
    let plan = Plan::of(&model).terms(terms.clone()).prompt(prompt.len()).tokens(TOKENS).network(Network::Memory);
    let planned = plan.run()?.bytes();
    let request = Request::after(prompt).tokens(TOKENS);
    let mut written = Local::open(&model, LocalOptions::default().terms(terms))?.generate(&request)?;
    println!("two parties: {} bytes, {planned} planned", written.report.bytes());
    assert_eq!(written.report.tokens, in_clear, "two parties write the same");
    assert_eq!(written.report.bytes(), planned, "a session takes what was planned");
    written.compare(&model)?;
    println!("largest error of a logit: {:?}", written.report.check.and_then(|check| check.max_abs_logit_error));
    Ok(())
}

/// The tokens that `model` writes after `prompt` on `engine`.
fn written<E: Select>(
    engine: &mut E,
    model: &Model<E::Weight>,
    prompt: &[u32],
) -> Result<Vec<u32>, waggle::model::Error> {
    let input = Input::known(prompt);
    let options = GenerateOptions { tokens: TOKENS, ..GenerateOptions::default() };
    let mut greedy = Sampler::greedy();
    Ok(generate(engine, model, input, &options, Next::Pick(&mut greedy), &mut NoHooks)?.tokens)
}

fn main() -> ExitCode {
    waggle::init();
    let shown = match register_activation::<QuickGelu>() {
        Ok(()) if std::env::args().len() > 1 => return waggle_cli::run(),
        Ok(()) => show(),
        Err(error) => Err(error.into()),
    };
    match shown {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// This is a single test, because a registration lasts for the whole process.
#[test]
fn a_registered_activation_runs_on_every_engine() {
    let config = r#"{"model_type": "llama", "hidden_act": "quick_gelu"}"#;
    let refused = waggle::model::ModelSpec::from_config_json(config.as_bytes()).unwrap_err().to_string();
    assert!(refused.contains("`hidden_act` = quick_gelu is not supported (gelu_new, "), "{refused}");
    register_activation::<QuickGelu>().unwrap();
    let spec = waggle::model::ModelSpec::from_config_json(config.as_bytes()).unwrap();
    let sent = serde_json::to_string(&spec).unwrap();
    assert!(sent.contains(r#""hidden_act":"quick_gelu""#), "{sent}");
    assert_eq!(serde_json::from_str::<waggle::model::ModelSpec>(&sent).unwrap(), spec);
    show().unwrap();
}

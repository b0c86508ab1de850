//! Models beside what another program computed: `cargo run --release -p waggle-model --example compare -- DIR`, for a
//! folder of directories with a `reference.json` each, as `references/sweep.py` and `references/make.py` make them. A
//! line for each model that is refused, or whose logits differ by more than 1e-4 of the largest.

use std::error::Error;
use std::path::Path;

use serde_json::Value;
use waggle_engine::{Float, FloatLoader};
use waggle_model::{GenerateOptions, Input, Model, ModelFiles, Next, NoHooks, Sampler, generate};

const MOST: f32 = 1e-4;

/// The largest difference of a logit, as a share of the largest one.
fn difference(dir: &Path) -> Result<f32, Box<dyn Error>> {
    let files = ModelFiles::open(dir)?;
    let model = Model::load(&mut FloatLoader, &files.spec, Some(&files.checkpoint))?;
    let value: Value = serde_json::from_slice(&std::fs::read(dir.join("reference.json"))?)?;
    let options =
        GenerateOptions { tokens: 1, all_positions: !files.spec.is_encoder(), ..GenerateOptions::default() };
    let mut worst = 0.0f32;
    for sequence in value["sequences"].as_array().ok_or("no sequences")? {
        let ids: Vec<u32> = serde_json::from_value(sequence["ids"].clone())?;
        let want: Vec<f32> = serde_json::from_value::<Vec<Vec<f32>>>(sequence["logits"].clone())?.concat();
        let next = Next::Pick(&mut Sampler::greedy());
        let got = generate(&mut Float::default(), &model, Input::known(&ids), &options, next, &mut NoHooks)?;
        let got = got.logits.ok_or("no logits")?;
        if got.len() != want.len() {
            return Err(format!("{} logits, not {}", got.len(), want.len()).into());
        }
        let scale = want.iter().fold(0.0f32, |most, x| most.max(x.abs()));
        worst = got.iter().zip(&want).fold(worst, |most, (got, want)| most.max((got - want).abs() / scale));
    }
    Ok(worst)
}

fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::args().nth(1).ok_or("the folder of the models is missing")?;
    let mut dirs: Vec<_> =
        std::fs::read_dir(folder)?.map(|entry| entry.map(|e| e.path())).collect::<Result<_, _>>()?;
    dirs.sort();
    let mut wrong = 0;
    for dir in &dirs {
        match difference(dir) {
            Ok(off) if off <= MOST => continue,
            Ok(off) => println!("{}: differs by {off:.1e}", dir.display()),
            Err(error) => println!("{}: {error}", dir.display()),
        }
        wrong += 1;
    }
    println!("{} models, {wrong} of them wrong or refused", dirs.len());
    if wrong > 0 { Err("not all are equal".into()) } else { Ok(()) }
}

//! The module `waggle._waggle`: what the package `waggle` needs of the program. Reports are JSON texts here and
//! dictionaries in the package.
#![deny(missing_docs)]
#![forbid(unsafe_code)]

mod chat;
mod function;
mod interrupt;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use model::Lengths;
use session::party::Observer;
use report::Report;
use protocols::Made;
use pyo3::create_exception;
use pyo3::exceptions::{PyException, PyValueError};
use pyo3::prelude::*;
use waggle::api::{self, Failure, Options, Planned, Prompt, Study, StudyEngine};
use chat::{Heard, Stream};
use interrupt::{Flag, interruptible};

create_exception!(waggle, WaggleError, PyException, "What went wrong, in the words of the command line.");

/// The error of Python for `error`.
fn failed(error: impl std::fmt::Display) -> PyErr {
    WaggleError::new_err(error.to_string())
}

/// A document as JSON.
fn json(document: &impl serde::Serialize) -> PyResult<String> {
    serde_json::to_string(document).map_err(failed)
}

/// A prompt: words, token ids, or a file.
#[derive(FromPyObject)]
enum Words {
    Text(String),
    Ids(Vec<u32>),
    File(PathBuf),
}

impl From<Words> for Prompt {
    fn from(words: Words) -> Self {
        match words {
            Words::Text(text) => Prompt::Text(text),
            Words::Ids(ids) => Prompt::Ids(ids),
            Words::File(path) => Prompt::File(path),
        }
    }
}

/// Watches a session, and ends it where the user interrupts.
struct Watch(Flag);

impl Observer for Watch {
    fn abandoned(&self) -> bool {
        self.0.is_up()
    }

    fn prepare(&mut self, _: Made) {
        self.0.check();
    }

    fn layer(&mut self, _: usize, _: usize) {
        self.0.check();
    }
}

/// All cache policies, as JSON.
#[pyfunction]
fn policies() -> PyResult<String> {
    json(&mpcache::catalogue())
}

/// Names of the bundled models.
#[pyfunction]
fn models() -> Vec<&'static str> {
    model::bundled_names().collect()
}

/// The report of a plan, as JSON.
#[pyfunction]
fn plan(
    py: Python<'_>,
    model: String,
    prompt_len: usize,
    tokens: usize,
    cached: Option<usize>,
    options: Options,
) -> PyResult<String> {
    let planned = match cached {
        Some(cached) => Planned::Step(cached),
        None => Planned::Session(Lengths { prompt: prompt_len, tokens }),
    };
    let report = interruptible(py, move |flag| api::plan(&model, planned, &options, &mut Watch(flag)))?;
    json(&report.map_err(failed)?)
}

/// Runs a session whose text `stream` is called with, and which ends where the user interrupts; its report as JSON.
fn streamed(
    py: Python<'_>,
    stream: Option<Py<PyAny>>,
    session: impl FnOnce(&mut Stream) -> Result<Report, Failure> + Send,
) -> PyResult<String> {
    let heard = Arc::new(Heard::default());
    let theirs = Arc::clone(&heard);
    let report = interruptible(py, move |flag| session(&mut Stream::new(flag, stream, theirs)))?;
    let report = json(&report.map_err(failed)?)?;
    heard.raised().map_or(Ok(report), Err)
}

/// The report of both parties in this process, as JSON. `stream` is called with the pieces of the text.
#[pyfunction]
fn demo(
    py: Python<'_>,
    model: String,
    prompt: Words,
    tokens: usize,
    check: bool,
    stream: Option<Py<PyAny>>,
    options: Options,
) -> PyResult<String> {
    let prompt = prompt.into();
    streamed(py, stream, move |heard| api::demo(&model, &prompt, tokens, check, &options, heard))
}

/// The report of a client, as JSON. `stream` is called with the pieces of the text.
#[pyfunction]
fn generate(
    py: Python<'_>,
    prompt: Words,
    tokens: usize,
    stream: Option<Py<PyAny>>,
    options: Options,
) -> PyResult<String> {
    let prompt = prompt.into();
    streamed(py, stream, move |heard| api::generate(&prompt, tokens, &options, heard))
}

/// The page of a report or a study, whose document is `json`.
#[pyfunction]
fn page(name: &str, json: &str) -> PyResult<String> {
    api::page(name, json.as_bytes()).map_err(failed)
}

/// The words of a command line with `options` for `command`.
#[pyfunction]
fn words(command: &str, options: Options) -> PyResult<Vec<String>> {
    api::words(command, &options).map_err(failed)
}

/// Names of the bundled texts.
#[pyfunction]
fn texts() -> Vec<&'static str> {
    model::bundled_texts().collect()
}

/// What is studied, apart from the policies.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct Setting {
    model: String,
    text: Words,
    budgets: Vec<f64>,
    context: usize,
    prompt: usize,
    sequences: usize,
    engine: String,
}

/// A study of cache policies, as JSON. `functions` are the policies `python:function=NAME` among them, each with what
/// is called.
#[pyfunction]
fn evaluate(
    py: Python<'_>,
    setting: Setting,
    policies: Vec<String>,
    functions: BTreeMap<String, Py<PyAny>>,
) -> PyResult<String> {
    let engine = match setting.engine.as_str() {
        "float" => StudyEngine::Float,
        "fixed" => StudyEngine::Fixed,
        "secure" => StudyEngine::Secure,
        other => return Err(PyValueError::new_err(format!("engine {other:?}: one of float, fixed, secure"))),
    };
    let Setting { model, text, budgets, context, prompt, sequences, .. } = setting;
    let study = Study { model, text: text.into(), policies, budgets, context, prompt, sequences, engine };
    let named = function::Named::new(functions);
    let outcome = interruptible(py, move |flag| study.run(&|_| flag.check()));
    // What the function raised says more than the study that ended by it.
    if let Some(raised) = named.raised() {
        return Err(raised);
    }
    json(&outcome?.map_err(failed)?)
}

/// Runs the command line on `words`, the first of which is the program's name; returns the exit code.
#[pyfunction]
fn run(py: Python<'_>, words: Vec<String>) -> u8 {
    let code = py.detach(|| waggle::run_from(words.into_iter().map(Into::into)));
    // A code tells its number to the system alone.
    (0..=u8::MAX).find(|number| code == ExitCode::from(*number)).unwrap_or(1)
}

/// What the package needs of the program.
#[pymodule]
fn _waggle(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    bits::cpu::Cpu::choose().map_err(failed)?;
    session::register_policy::<function::Function>().map_err(failed)?;
    // A server's tokenizer runs in a process of its own, which is this interpreter again.
    let python: String = py.import("sys")?.getattr("executable")?.extract()?;
    api::started_by([python, "-m".into(), "waggle".into()].map(Into::into).to_vec());
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("WaggleError", py.get_type::<WaggleError>())?;
    module.add_class::<chat::Chat>()?;
    for function in [
        wrap_pyfunction!(policies, module)?,
        wrap_pyfunction!(models, module)?,
        wrap_pyfunction!(plan, module)?,
        wrap_pyfunction!(demo, module)?,
        wrap_pyfunction!(generate, module)?,
        wrap_pyfunction!(evaluate, module)?,
        wrap_pyfunction!(run, module)?,
        wrap_pyfunction!(page, module)?,
        wrap_pyfunction!(words, module)?,
        wrap_pyfunction!(texts, module)?,
    ] {
        module.add_function(function)?;
    }
    Ok(())
}

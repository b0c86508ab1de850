//! The module `waggle._waggle`: the functions of the program that the Python package `waggle` needs.
#![deny(missing_docs)]
#![forbid(unsafe_code)]

mod chat;
mod function;
mod interrupt;
mod keywords;

use std::alloc::System;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use pyo3::create_exception;
use pyo3::exceptions::{PyException, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use serde::Serialize;
use waggle::{
    Answer, Error, Event, Flow, Generated, GlueStudy, Local, LocalOptions, PolicySpec, Prompt, Report, Study,
    describe,
};
use zeroizing_alloc::ZeroAlloc;

use chat::{Heard, Stream};
use interrupt::{Flag, interruptible};
use keywords::Keywords;

/// Wipes all freed memory of Rust, as in the program `waggle`.
#[global_allocator]
static ALLOCATOR: ZeroAlloc<System> = ZeroAlloc(System);

create_exception!(waggle, WaggleError, PyException, "What went wrong, in the words of the command line.");

/// The Python exception for `error`.
fn failed(error: impl std::fmt::Display) -> PyErr {
    WaggleError::new_err(error.to_string())
}

/// The Python exception for an error of the library.
fn said(error: Error) -> PyErr {
    failed(describe(&error))
}

/// `document` as a Python object.
fn document<'py>(py: Python<'py>, document: &impl Serialize) -> PyResult<Bound<'py, PyAny>> {
    let text = serde_json::to_string(document).map_err(failed)?;
    py.import("json")?.call_method1("loads", (text,))
}

/// A prompt: words, token ids, a file, or several of these.
#[derive(FromPyObject)]
enum Words {
    Text(String),
    Ids(Vec<u32>),
    Several(Vec<Words>),
    File(PathBuf),
}

impl From<Words> for Prompt {
    fn from(words: Words) -> Self {
        match words {
            Words::Text(text) => Prompt::Text(text),
            Words::Ids(ids) => Prompt::Ids(ids),
            Words::Several(all) => Prompt::Several(all.into_iter().map(Prompt::from).collect()),
            Words::File(path) => Prompt::File(path),
        }
    }
}

/// An encoder's input: a text, two texts that it reads together, token ids, or the file of an image.
#[derive(FromPyObject)]
enum Input {
    Text(String),
    Pair((String, String)),
    Ids(Vec<u32>),
    Image(PathBuf),
}

impl From<Input> for Prompt {
    fn from(input: Input) -> Self {
        match input {
            Input::Text(text) => Prompt::Text(text),
            Input::Pair((first, second)) => Prompt::Pair(first, second),
            Input::Ids(ids) => Prompt::Ids(ids),
            Input::Image(path) => Prompt::Image(path),
        }
    }
}

/// All cache policies.
#[pyfunction]
fn policies(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    document(py, &waggle::policies())
}

/// Names of the bundled models.
#[pyfunction]
fn models() -> Vec<&'static str> {
    waggle::models().collect()
}

/// Plans a session and returns its report.
#[pyfunction]
#[pyo3(signature = (model, **options))]
fn plan<'py>(py: Python<'py>, model: String, options: Option<&Bound<'py, PyDict>>) -> PyResult<Bound<'py, PyAny>> {
    let options = Keywords::new(py, options)?;
    let plan = options.plan(model)?;
    options.finish()?;
    let report = interruptible(py, None, move |flag| {
        let mut stream = Stream::silent(flag);
        plan.run_with(&mut |event| stream.hear(event))
    })?;
    document(py, &report.map_err(said)?)
}

/// Python functions that are called during a call: `stream` with the pieces of the text, `progress` with the progress
/// of the call.
struct Told {
    stream: Option<Py<PyAny>>,
    progress: Option<Py<PyAny>>,
}

/// Runs a session with a text of at most `tokens` tokens. The user may interrupt it. Returns the session's report.
fn streamed<'py>(
    py: Python<'py>,
    told: Told,
    tokens: usize,
    session: impl FnOnce(&mut Stream) -> Result<Report, Error> + Send + 'static,
) -> PyResult<Bound<'py, PyAny>> {
    let heard = Arc::new(Heard::default());
    let theirs = Arc::clone(&heard);
    let Told { stream, progress } = told;
    let report = interruptible(py, progress, move |flag| session(&mut Stream::new(flag, stream, theirs, tokens)))?;
    let report = document(py, &report.map_err(said)?)?;
    heard.raised().map_or(Ok(report), Err)
}

/// Generates with both parties in this process, and returns the report. `stream` is called with the pieces of the
/// text.
#[pyfunction]
#[pyo3(signature = (model, prompt, tokens, check, stream, progress, **options))]
#[expect(clippy::too_many_arguments, reason = "the keywords of Python")]
fn demo<'py>(
    py: Python<'py>,
    model: String,
    prompt: Words,
    tokens: usize,
    check: bool,
    stream: Option<Py<PyAny>>,
    progress: Option<Py<PyAny>>,
    options: Option<&Bound<'py, PyDict>>,
) -> PyResult<Bound<'py, PyAny>> {
    let options = Keywords::new(py, options)?;
    let (terms, request) = (options.terms()?, options.generate(prompt, tokens)?);
    options.finish()?;
    streamed(py, Told { stream, progress }, tokens, move |heard| {
        let local = Local::open(&model, LocalOptions::default().terms(terms))?;
        let mut generated = local.generate_with(&request, &mut |event| heard.hear(event))?;
        if check {
            generated.compare(&model)?;
        }
        Ok(generated.report)
    })
}

/// Generates as a client, and returns the report. `stream` is called with the pieces of the text.
#[pyfunction]
#[pyo3(signature = (address, prompt, tokens, stream, progress, **options))]
fn generate<'py>(
    py: Python<'py>,
    address: String,
    prompt: Words,
    tokens: usize,
    stream: Option<Py<PyAny>>,
    progress: Option<Py<PyAny>>,
    options: Option<&Bound<'py, PyDict>>,
) -> PyResult<Bound<'py, PyAny>> {
    let options = Keywords::new(py, options)?;
    let (client, request) = (options.client(address)?, options.generate(prompt, tokens)?);
    options.finish()?;
    streamed(py, Told { stream, progress }, tokens, move |heard| {
        Ok(client.generate_with(&request, &mut |event| heard.hear(event))?.report)
    })
}

/// A session of an encoder.
#[derive(Serialize)]
struct Session {
    report: Report,
    answers: Vec<Found>,
}

/// An encoder's answer for one input.
#[derive(Serialize)]
struct Found {
    class: Option<String>,
    probability: Option<f32>,
    score: Option<f32>,
    logits: Vec<f32>,
}

impl From<Answer> for Found {
    fn from(answer: Answer) -> Self {
        let (probability, score) = (answer.probability(), answer.score());
        Found { class: answer.class, probability, score, logits: answer.logits }
    }
}

impl From<Generated> for Session {
    fn from(generated: Generated) -> Self {
        let answers = generated.answers().into_iter().map(Found::from).collect();
        Session { report: generated.report, answers }
    }
}

/// Runs `sessions`, which the user may interrupt. Returns the report and the answers of each session.
fn classified<'py>(
    py: Python<'py>,
    progress: Option<Py<PyAny>>,
    sessions: impl FnOnce(&mut Stream) -> Result<Vec<Generated>, Error> + Send + 'static,
) -> PyResult<Bound<'py, PyAny>> {
    let sessions = interruptible(py, progress, move |flag| sessions(&mut Stream::silent(flag)))?.map_err(said)?;
    let sessions: Vec<Session> = sessions.into_iter().map(Session::from).collect();
    document(py, &sessions)
}

/// Asks the encoder of a server for its answers to `inputs`, with `batch` inputs in each session.
#[pyfunction]
#[pyo3(signature = (address, inputs, batch, progress, **options))]
fn classify<'py>(
    py: Python<'py>,
    address: String,
    inputs: Vec<Input>,
    batch: usize,
    progress: Option<Py<PyAny>>,
    options: Option<&Bound<'py, PyDict>>,
) -> PyResult<Bound<'py, PyAny>> {
    let options = Keywords::new(py, options)?;
    let (client, requests) = (options.client(address)?, options.classify(inputs, batch)?);
    options.finish()?;
    classified(py, progress, move |heard| {
        requests.iter().map(|request| client.generate_with(request, &mut |event| heard.hear(event))).collect()
    })
}

/// Like `classify`, with both parties in this process.
#[pyfunction]
#[pyo3(signature = (model, inputs, batch, progress, **options))]
fn classify_here<'py>(
    py: Python<'py>,
    model: String,
    inputs: Vec<Input>,
    batch: usize,
    progress: Option<Py<PyAny>>,
    options: Option<&Bound<'py, PyDict>>,
) -> PyResult<Bound<'py, PyAny>> {
    let options = Keywords::new(py, options)?;
    let (terms, requests) = (options.terms()?, options.classify(inputs, batch)?);
    options.finish()?;
    classified(py, progress, move |heard| {
        let local = Local::open(&model, LocalOptions::default().terms(terms))?;
        requests.iter().map(|request| local.generate_with(request, &mut |event| heard.hear(event))).collect()
    })
}

/// Serves a model in this process until a signal. Returns the exit code.
#[pyfunction]
#[pyo3(signature = (model, listen, log, **options))]
fn serve(
    py: Python<'_>,
    model: String,
    listen: String,
    log: String,
    options: Option<&Bound<'_, PyDict>>,
) -> PyResult<u8> {
    let options = Keywords::new(py, options)?;
    let config = options.server(model, listen)?;
    options.finish()?;
    Ok(number(py.detach(|| waggle_cli::serve(config, &log))))
}

/// The HTML page of a report or a study, whose document is `json`.
#[pyfunction]
fn page(name: &str, json: &str) -> PyResult<String> {
    waggle_cli::page(name, json.as_bytes()).map_err(|error| failed(describe(&*error)))
}

/// Names of the bundled texts.
#[pyfunction]
fn texts() -> Vec<&'static str> {
    waggle::texts().collect()
}

/// The settings of a study, apart from the policies.
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

/// Runs a study of cache policies. `functions` maps NAME of each policy `python:function=NAME` to its function.
#[pyfunction]
fn evaluate<'py>(
    py: Python<'py>,
    setting: Setting,
    policies: Vec<String>,
    functions: BTreeMap<String, Py<PyAny>>,
    progress: Option<Py<PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let policies: Result<Vec<PolicySpec>, _> = policies.iter().map(|policy| policy.parse()).collect();
    let study = Study::default()
        .model(setting.model)
        .text(setting.text)
        .policies(policies.map_err(failed)?)
        .budgets(setting.budgets)
        .context(setting.context)
        .prompt(setting.prompt)
        .sequences(setting.sequences)
        .engine(setting.engine.parse().map_err(PyValueError::new_err)?);
    let outcome = interruptible(py, progress, move |flag| {
        // The functions stay registered while the study runs, even if the call no longer waits for it.
        let named = function::Named::new(functions, &flag);
        let outcome = study.run_with(&mut passes(&flag));
        // If a function raised an exception, it says more than the study's error.
        named.raised().map_or(outcome.map_err(said), Err)
    });
    document(py, &outcome??)
}

/// A watcher that tells how many passes of a study are done.
fn passes(flag: &Flag) -> impl FnMut(Event<'_>) -> Flow + Send {
    let mut done = 0;
    move |event| {
        if let Event::Studied { of } = event {
            done += 1;
            flag.tell("study", done, of as u64);
        }
        Flow::GoOn
    }
}

/// Runs a study of an encoder on a file in the form of one of GLUE's tasks: on its first `sequences` lines, or on
/// all.
#[pyfunction]
fn glue(
    py: Python<'_>,
    model: String,
    data: PathBuf,
    sequences: Option<usize>,
    engine: String,
    progress: Option<Py<PyAny>>,
) -> PyResult<Bound<'_, PyAny>> {
    let engine = engine.parse().map_err(PyValueError::new_err)?;
    let study = GlueStudy::default().model(model).data(data).sequences(sequences).engine(engine);
    let report = interruptible(py, progress, move |flag| study.run_with(&mut passes(&flag)))?;
    document(py, &report.map_err(said)?)
}

/// Runs the command line `words`, whose first word is the program's name. Returns the exit code.
#[pyfunction]
fn run(py: Python<'_>, words: Vec<String>) -> u8 {
    number(py.detach(|| waggle_cli::run_from(words.into_iter().map(Into::into))))
}

/// The number of an exit code. [`ExitCode`] does not return it, so it is looked up.
fn number(code: ExitCode) -> u8 {
    (0..=u8::MAX).find(|number| code == ExitCode::from(*number)).unwrap_or(1)
}

/// The parts of the program that the package needs.
#[pymodule]
fn _waggle(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    waggle::register_policy::<function::Function>().map_err(failed)?;
    // A server's tokenizer runs in a process of its own, which runs this interpreter again.
    let python: String = py.import("sys")?.getattr("executable")?.extract()?;
    // That process must not import modules from the user's working directory (`-P`, since Python 3.11).
    let safe = (py.version_info() >= (3, 11)).then(|| "-P".to_owned());
    let words = [python].into_iter().chain(safe).chain(["-m", "waggle"].map(String::from));
    waggle::init_as(words.map(Into::into).collect()).map_err(said)?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("WaggleError", py.get_type::<WaggleError>())?;
    module.add_class::<chat::Chat>()?;
    for function in [
        wrap_pyfunction!(policies, module)?,
        wrap_pyfunction!(models, module)?,
        wrap_pyfunction!(plan, module)?,
        wrap_pyfunction!(demo, module)?,
        wrap_pyfunction!(generate, module)?,
        wrap_pyfunction!(classify, module)?,
        wrap_pyfunction!(classify_here, module)?,
        wrap_pyfunction!(evaluate, module)?,
        wrap_pyfunction!(glue, module)?,
        wrap_pyfunction!(run, module)?,
        wrap_pyfunction!(page, module)?,
        wrap_pyfunction!(serve, module)?,
        wrap_pyfunction!(texts, module)?,
    ] {
        module.add_function(function)?;
    }
    Ok(())
}

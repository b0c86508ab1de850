//! Commands as functions, for programs in other languages.
//!
//! Options have the names and texts of the command line, so both take the same values with the same defaults and
//! refuse the same things in the same words. Nothing is printed.

mod chat;

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ::study::eval::{Evaluation, Sequence};
use clap::{ArgAction, Command, CommandFactory, Parser};
use engine::FloatLoader;
use model::{GenerateOptions, Lengths, Model, ModelFiles, Next, check};
use mpcache::PolicySpec;
use protocols::Made;
use report::{ModelInfo, Report};
use serde_json::Value;
use session::party::{ClientOptions, Limits, ModelServer, Observer, Outcome, PublicModel, Request, in_one_process};
use tokenizer::{TextStream, Tokenizer};

use super::chat::Refusal;
use super::connect::ConnectArgs;
use super::error::describe;
use super::eval::texts;
use super::files::{open_model, public_model};
use super::options::{LinkArg, SamplingArgs, TermsArgs};
use super::progress::harmless;
use super::record::{self, Record};
use super::report::{predict_seconds, report};
use super::{Error, html, study, tokenizer_worker};

pub use self::chat::Chat;
pub use super::chat::{ChatReport, Listener, Role, Said, TurnReport};
pub use super::program::started_by;
pub use super::study::StudyEngine;

/// Why a function failed, in the words of the command line.
#[derive(Debug)]
pub struct Failure(Cause);

#[derive(Debug)]
enum Cause {
    Command(Error),
    Turn(Box<Refusal>),
    Options(clap::Error),
    NoOption(String),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match &self.0 {
            Cause::Command(error) => f.write_str(&describe(error)),
            Cause::Turn(refusal) => f.write_str(&describe(refusal.as_ref())),
            Cause::NoOption(name) => write!(f, "there is no option `{name}`; the command's --help lists all"),
            // The first paragraph says what is wrong, and the rest how the command line is used.
            Cause::Options(error) => {
                let text = error.to_string();
                let first = text.split("\n\n").next().unwrap_or_default().trim();
                f.write_str(&first.strip_prefix("error: ").unwrap_or(first).replace('\n', " "))
            }
        }
    }
}

impl std::error::Error for Failure {}

impl<E: Into<Error>> From<E> for Failure {
    fn from(error: E) -> Self {
        Failure(Cause::Command(error.into()))
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        Failure(Cause::Turn(refusal.into()))
    }
}

/// Options by their names on the command line, without dashes: a value, or none for one that stands alone. A switch
/// that is `false` is not given.
pub type Options = Vec<(String, Option<String>)>;

/// Reads options as the command line does.
fn parse<P: Parser>(options: &Options) -> Result<P, Failure> {
    let words = std::iter::once("waggle".to_owned()).chain(words_of(&P::command(), options)?);
    P::try_parse_from(words).map_err(|e| Failure(Cause::Options(e)))
}

/// The words of `options` for the command called `name`, which another process is to run.
///
/// # Errors
/// If the command has no such option.
pub fn words(name: &str, options: &Options) -> Result<Vec<String>, Failure> {
    let root = super::Cli::command();
    words_of(root.find_subcommand(name).unwrap_or(&root), options)
}

fn words_of(command: &Command, options: &Options) -> Result<Vec<String>, Failure> {
    let mut words = Vec::new();
    for (name, value) in options {
        let option = command.get_arguments().find(|option| option.get_long() == Some(name));
        let option = option.ok_or_else(|| Failure(Cause::NoOption(name.clone())))?;
        let switch = matches!(option.get_action(), ArgAction::SetTrue);
        match value.as_deref() {
            Some("false") if switch => (),
            None => words.push(format!("--{name}")),
            Some(value) => words.push(format!("--{name}={value}")),
        }
    }
    Ok(words)
}

/// Options of a plan.
#[derive(Parser)]
struct PlanOptions {
    #[arg(long, default_value = "lan")]
    link: LinkArg,
    #[arg(long)]
    stop_at_eos: bool,
    #[command(flatten)]
    terms: TermsArgs,
}

/// Options of a session in one process.
#[derive(Parser)]
struct DemoOptions {
    #[command(flatten)]
    sampling: SamplingArgs,
    #[command(flatten)]
    terms: TermsArgs,
}

/// Options of a client.
#[derive(Parser)]
struct ClientArgs {
    #[command(flatten)]
    connect: ConnectArgs,
    #[command(flatten)]
    sampling: SamplingArgs,
    #[command(flatten)]
    terms: TermsArgs,
}

/// What a plan is of.
#[derive(Clone, Copy, Debug)]
pub enum Planned {
    /// A whole session.
    Session(Lengths),
    /// A decoding step after so many tokens, alone.
    Step(usize),
}

/// The prompt of a session.
#[derive(Clone, Debug)]
pub enum Prompt {
    /// Words, for a model with a tokenizer.
    Text(String),
    /// Token ids.
    Ids(Vec<u32>),
    /// The text of a file, or the texts of a bundled or another file of JSON.
    File(PathBuf),
}

impl Prompt {
    fn ids(&self, tokenizer: Option<&Tokenizer>) -> Result<Vec<u32>, Error> {
        let texts = match self {
            Prompt::Ids(ids) => return Ok(ids.clone()),
            Prompt::Text(text) => vec![text.clone()],
            Prompt::File(path) => texts(path)?,
        };
        let tokenizer = tokenizer.ok_or(Error::NoTokenizer)?;
        let mut ids = Vec::new();
        for text in &texts {
            ids.extend(tokenizer.encode(text)?);
        }
        if ids.is_empty() { Err(Error::EmptyPrompt) } else { Ok(ids) }
    }
}

/// Predicts a session of `model`, a directory, a `config.json` or a bundled name: the report of `waggle plan`, whose
/// seconds are those of the network alone.
///
/// # Errors
/// Those of the command.
pub fn plan(
    model: &str,
    planned: Planned,
    options: &Options,
    observer: &mut dyn Observer,
) -> Result<Report, Failure> {
    let PlanOptions { link, stop_at_eos, terms } = parse(options)?;
    let terms = terms.terms(link)?;
    let model = public_model(model, &terms.policy)?;
    let client = ClientOptions::default();
    let (outcome, lengths) = match planned {
        Planned::Session(lengths) => {
            let request = Request { stop_at_eos, ..Request::from(lengths) };
            (session::party::plan(&model, &terms, &client, &request, observer)?, lengths)
        }
        Planned::Step(cached) => {
            let (outcome, _) = session::party::plan_step(&model, &terms, &client, cached, None, None, observer)?;
            // The step after a prompt makes the second token.
            (outcome, Lengths { prompt: cached, tokens: 2 })
        }
    };
    let chosen = [
        ("link", link.to_string().into()),
        ("tokens", lengths.tokens.into()),
        ("stop_at_eos", stop_at_eos.into()),
        ("cached", if let Planned::Step(cached) = planned { cached.into() } else { Value::Null }),
    ];
    let mut report = report(&model, None, lengths.prompt, &outcome, &terms, chosen)?;
    report.predicted = true;
    report.kernels = None;
    report.estimated = ["seconds", "cpu_seconds"].map(String::from).to_vec();
    if terms.policy.random_traffic() {
        report.estimated.extend(["bytes", "messages", "flows"].map(String::from));
    }
    predict_seconds(&mut report, link.shape());
    Ok(report)
}

/// How long a party of this process waits for the other one.
const PATIENCE: Duration = Duration::from_secs(3600);

/// A session whose listener gets the text as it comes.
struct Heard<'a> {
    stream: Option<TextStream<'a>>,
    listener: &'a mut dyn Listener,
}

impl Observer for Heard<'_> {
    fn abandoned(&self) -> bool {
        self.listener.abandoned()
    }

    fn prepare(&mut self, _: Made) {
        self.listener.tick();
    }

    fn layer(&mut self, _: usize, _: usize) {
        self.listener.tick();
    }

    fn token(&mut self, token: Option<u32>) {
        let (Some(stream), Some(token)) = (&mut self.stream, token) else { return };
        // The tokenizer has taken these ids before; what it cannot show is left out.
        self.listener.text(&harmless(&stream.push(token).unwrap_or_default()));
    }
}

impl Heard<'_> {
    /// Tells the rest.
    fn finish(self) {
        let rest = self.stream.and_then(|stream| stream.finish().ok()).unwrap_or_default();
        if !rest.is_empty() {
            self.listener.text(&harmless(&rest));
        }
        self.listener.end();
    }
}

/// Generates `tokens` tokens with both parties in this process, over memory: the report of `waggle demo --link
/// memory`. With `compared` the tokens are held against the model in the clear.
///
/// # Errors
/// Those of the command.
pub fn demo(
    model: &str,
    prompt: &Prompt,
    tokens: usize,
    compared: bool,
    options: &Options,
    listener: &mut dyn Listener,
) -> Result<Report, Failure> {
    let DemoOptions { sampling, terms } = parse(options)?;
    let terms = terms.terms(LinkArg::Memory)?;
    let mut sampler = sampling.sampler(&terms)?;
    let files = open_model(model)?;
    let tokenizer = files.tokenizer.as_deref().map(Tokenizer::from_bytes).transpose()?;
    let prompt = prompt.ids(tokenizer.as_ref())?;
    let lengths = Lengths { prompt: prompt.len(), tokens };
    let request = Request { stop_at_eos: sampling.stop_at_eos, ..Request::from(lengths) };
    request.check_policy(&files.spec, &terms)?;
    request.check(&files.spec, &Limits::NONE)?;
    files.spec.check_ids(&prompt)?;
    let clear = compared
        .then(|| Model::load_for(&terms.policy, &mut FloatLoader, &files.spec, Some(&files.checkpoint)))
        .transpose()?;
    let server = ModelServer::load_for(&terms.policy, files)?;
    let next = Next::Pick(&mut sampler);
    let mut heard = Heard { stream: tokenizer.as_ref().map(|tokenizer| tokenizer.stream(&prompt)), listener };
    let [outcome, _] = in_one_process(&server, &terms, &Limits::NONE, PATIENCE, |session| {
        session.generate(&prompt[..], tokens, sampling.stop_at_eos, next, &mut heard)
    })?;
    heard.finish();
    let chosen = sampling.reported().into_iter();
    let chosen = chosen.chain([("link", "memory".into()), ("tokens", tokens.into()), ("processes", 1.into())]);
    let mut report = report(server.public(), tokenizer.as_ref(), prompt.len(), &outcome, &terms, chosen)?;
    if let Some(clear) = clear {
        let under = |policy: PolicySpec| {
            let options = GenerateOptions { tokens, reveal: terms.reveal, policy, ..GenerateOptions::default() };
            check(&clear, &prompt, &options, &outcome.generation)
        };
        report.check = Some(under(terms.policy.clone())?);
        if terms.policy != PolicySpec::default() {
            report.against_full_cache = Some(under(PolicySpec::default())?);
        }
    }
    Ok(report)
}

/// Generates text with the model of a server, whose address is the option `connect`: the report of `waggle generate`.
/// Keys and trust are those of the command line.
///
/// # Errors
/// Those of the command.
pub fn generate(
    prompt: &Prompt,
    tokens: usize,
    options: &Options,
    listener: &mut dyn Listener,
) -> Result<Report, Failure> {
    let ClientArgs { connect, sampling, terms } = parse(options)?;
    let terms = terms.terms(connect.link)?;
    let mut sampler = sampling.sampler(&terms)?;
    let session = connect.open(&terms, ClientOptions { tokenizer: true, ..Default::default() })?;
    let model: PublicModel = session.model().clone();
    let tokenizer = model.tokenizer.as_deref().map(tokenizer_worker::foreign).transpose()?;
    let prompt = prompt.ids(tokenizer.as_ref())?;
    let next = Next::Pick(&mut sampler);
    let mut heard = Heard { stream: tokenizer.as_ref().map(|tokenizer| tokenizer.stream(&prompt)), listener };
    let outcome: Outcome = session.generate(&prompt[..], tokens, sampling.stop_at_eos, next, &mut heard)?;
    heard.finish();
    let chosen = sampling.reported().into_iter();
    let chosen = chosen.chain([("link", connect.link.to_string().into()), ("tokens", tokens.into())]);
    let mut report = report(&model, tokenizer.as_ref(), prompt.len(), &outcome, &terms, chosen)?;
    report.peak_memory_bytes.client = net::peak_memory_bytes();
    Ok(report)
}

/// The page of HTML of a report or a study, as `waggle report --html` writes it; `json` is its document.
///
/// # Errors
/// If `json` is no such document.
pub fn page(name: &str, json: &[u8]) -> Result<String, Failure> {
    Ok(match record::read_as(Path::new(name), json)? {
        (Record::Session(report), json) => html::of_session(name, &report, &json)?,
        (Record::Study(study), json) => html::of_study(name, &study, &json)?,
        (Record::Sweep(_), _) => return Err(Error::SweepAlone { path: name.into() }.into()),
    })
}

/// A study of what cache policies cost in accuracy.
#[derive(Clone, Debug)]
pub struct Study {
    /// Model directory or bundled name.
    pub model: String,
    /// The text, which is cut into sequences.
    pub text: Prompt,
    /// Policies as texts. One with a `budget` of its own runs at that one alone.
    pub policies: Vec<String>,
    /// Shares of the cache, or tokens from 2 on.
    pub budgets: Vec<f64>,
    /// Tokens of a sequence.
    pub context: usize,
    /// Tokens of a sequence that go through the model at once; what follows is scored.
    pub prompt: usize,
    /// Sequences.
    pub sequences: usize,
    /// What computes.
    pub engine: StudyEngine,
}

impl Study {
    /// Runs it. `tick` is called after each pass through the model, from any thread, with how many there are in all.
    ///
    /// # Errors
    /// Those of `waggle eval`.
    pub fn run(&self, tick: &(dyn Fn(usize) + Sync)) -> Result<Evaluation, Failure> {
        let files = open_model(&self.model)?;
        let sequences = self.cut(&files)?;
        let policies = self.policies.iter().map(|text| text.parse()).collect::<Result<Vec<PolicySpec>, _>>()?;
        let candidates = study::candidates(&policies, &self.budgets)?;
        let info = ModelInfo::new(&files.name, &files.spec);
        let all = study::passes(&sequences, &candidates);
        let tick = || tick(all);
        let scores = study::scores(&self.model, files, self.engine, &sequences, &candidates, &tick)?;
        let options = [
            ("task", "text".into()),
            ("engine", self.engine.name().into()),
            ("policies", self.policies.clone().into()),
            ("budgets", self.budgets.clone().into()),
            ("context", self.context.into()),
            ("prompt", self.prompt.into()),
        ];
        let options = options.map(|(name, value)| (name.to_owned(), value)).into();
        Ok(Evaluation::new(info, options, &sequences, &candidates, scores))
    }

    fn cut(&self, files: &ModelFiles) -> Result<Vec<Sequence>, Error> {
        let tokenizer = files.tokenizer.as_deref().map(Tokenizer::from_bytes).transpose()?;
        let ids = self.text.ids(tokenizer.as_ref())?;
        Ok(Sequence::cut(&ids, self.context, self.prompt, self.sequences)?)
    }
}

#[cfg(test)]
mod tests {
    use session::party::Silent;

    use super::*;

    fn planned(options: &[(&str, Option<&str>)]) -> Result<Report, Failure> {
        let options = options.iter().map(|(name, value)| ((*name).to_owned(), value.map(str::to_owned))).collect();
        let lengths = Lengths { prompt: 8, tokens: 2 };
        plan("shakespeare-gpt2", Planned::Session(lengths), &options, &mut Silent)
    }

    #[test]
    fn options_are_those_of_the_command_line() {
        let report = planned(&[("policy", Some("h2o")), ("preprocess", None), ("link", Some("wan"))]).unwrap();
        assert_eq!(report.options["policy"], "h2o");
        assert_eq!(report.options["preprocess"], "true");
        assert_eq!(report.options["link"], "wan");
        assert!(report.predicted);
        let refused = |options: &[(&str, Option<&str>)]| planned(options).unwrap_err().to_string();
        let unknown = refused(&[("policy", Some("h2"))]);
        assert!(unknown.contains("unknown cache policy `h2`; known are: full,"), "{unknown}");
        assert!(refused(&[("polcy", Some("h2o"))]).contains("no option `polcy`"));
        // Off is the absence of a switch, and a value where the option has values.
        let off = planned(&[("stop-at-eos", Some("false")), ("preprocess", Some("false"))]).unwrap();
        assert_eq!((&off.options["stop_at_eos"], &off.options["preprocess"]), (&false.into(), &"false".into()));
        assert!(refused(&[("policy", Some("oracle"))]).contains("oracle"));
    }

    #[test]
    fn a_study_takes_a_policy_with_its_own_budget_once() {
        let text = "First Citizen:\nBefore we proceed any further, hear me speak.\n".repeat(2);
        let mut study = Study {
            model: "shakespeare-gpt2".into(),
            text: Prompt::Text(text),
            policies: vec!["streaming:budget=0.5".into(), "h2o".into()],
            budgets: vec![0.25, 0.5],
            context: 48,
            prompt: 40,
            sequences: 1,
            engine: StudyEngine::Float,
        };
        let ticks = std::sync::atomic::AtomicUsize::new(0);
        let report = study
            .run(&|all| {
                assert_eq!(all, 4 * 8);
                ticks.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            })
            .unwrap();
        assert_eq!(ticks.into_inner(), 4 * 8);
        assert_eq!(
            report.rows.iter().map(|row| row.label.as_str()).collect::<Vec<_>>(),
            ["full", "streaming:budget=0.5", "h2o", "h2o"]
        );
        study.engine = StudyEngine::Secure;
        study.policies = vec!["oracle".into()];
        assert!(study.run(&|_| ()).unwrap_err().to_string().contains("oracle"));
    }
}

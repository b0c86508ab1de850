//! `waggle demo`: both parties on this machine.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Stdio};
use std::thread;
use std::time::Duration;

use clap::{Args, CommandFactory};
use engine::FloatLoader;
use model::{Drafts, GenerateOptions, Lengths, Model, ModelFiles, Next, check};
use mpcache::PolicySpec;
use net::tcp::{self, ConnectOptions};
use net::{Channel, Identity, Link, PublicKey, Role, await_admission, memory_pair, tls};
use report::PeakMemory;
use session::party::{
    Caller, ClientOptions, ClientSession, Limits, ModelServer, Observer, Outcome, Prompt, PublicModel, Request,
    Silent, Terms,
};
use tokenizer::Tokenizer;

use super::connect::warn_of_plaintext;
use super::draft::{DraftArgs, next};
use super::error::describe;
use super::files::{DEFAULT_MODEL, check_writable, open_model, write_json};
use super::options::{LINKS, LinkArg, OperationsArgs, SamplingArgs, TermsArgs, by_name, seconds};
use super::padding::PaddingArgs;
use super::progress::Progress;
use super::prompt::PromptArgs;
use super::report::{report, tables, verdict};
use super::serve::{Line, Used};
use super::settings::forget_variables;
use super::{Error, out, program};

/// Generates text with both parties on this machine: two processes, unless the link is `memory`.
#[derive(Args, Debug)]
pub(super) struct DemoArgs {
    /// Hugging Face directory, or the name of a bundled model.
    #[arg(long, value_name = "DIR", default_value = DEFAULT_MODEL)]
    model: String,
    #[command(flatten)]
    prompt: PromptArgs,
    /// Tokens to generate [default: 200, or as many as the model has positions for].
    #[arg(long, value_name = "N")]
    tokens: Option<usize>,
    /// The network between the parties: `memory` within one process, or the name of an imitated network.
    #[arg(long, value_name = LINKS, default_value = "loopback")]
    link: LinkArg,
    /// Run the plaintext engine afterwards, and report token agreement and the largest logit error: under the same
    /// policy, which shows what the protocol changed, and then with the full cache, which shows what pruning changed.
    #[arg(long)]
    check: bool,
    /// Give up when the other party is silent for this many seconds.
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "120")]
    timeout: Duration,
    /// Let the server keep up to so many bytes of transformed weights in memory.
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    weight_cache: usize,
    /// Write the report here.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    #[command(flatten)]
    operations: OperationsArgs,
    /// Encrypt nothing between the two processes, for measurements. A text is unverified until it has ended.
    #[arg(long)]
    insecure_plaintext: bool,
    #[command(flatten)]
    padding: PaddingArgs,
    #[command(flatten)]
    draft: DraftArgs,
    #[command(flatten)]
    sampling: SamplingArgs,
    #[command(flatten)]
    terms: TermsArgs,
}

/// Takes a minute or two with the bundled model on two cores.
const DEFAULT_TOKENS: usize = 200;

pub(super) fn run(args: DemoArgs) -> Result<(), Error> {
    check_writable(args.json.as_deref())?;
    let terms = args.terms.terms(args.link)?;
    let mut sampler = args.sampling.sampler(&terms)?;
    let files = open_model(&args.model)?;
    let tokenizer = files.tokenizer.as_deref().map(Tokenizer::from_bytes).transpose()?;
    let prompt = args.prompt.read()?.ids(tokenizer.as_ref())?;
    // The last token goes through no model.
    let room = files.spec.max_positions() + 1;
    let whole = args.padding.prompt(&prompt, room.saturating_sub(args.tokens.unwrap_or(1)))?;
    let length = whole.ids().len();
    let most = room.saturating_sub(length).min(DEFAULT_TOKENS);
    let tokens = args.tokens.unwrap_or(most);
    // A request that cannot work is refused before a process is started.
    let padded = whole.padding().is_some();
    let drafts = args.draft.drafts()?;
    let stop_at_eos = args.sampling.stop_at_eos;
    let pad_answer = args.padding.pad_answer;
    let lengths = Lengths { prompt: length, tokens };
    let request = Request { lengths, stop_at_eos, pad_answer, padded, draft: drafts };
    request.check_policy(&files.spec, &terms)?;
    request.check_draft(&terms)?;
    request.check(&files.spec, &Limits::NONE)?;
    files.spec.check_ids(&prompt)?;
    let mut guess = args.draft.guess(&files.spec)?;
    warn_of_plaintext(args.insecure_plaintext);
    let client = Client { args: &args, terms: &terms, prompt: &whole, tokens, drafts };
    let mut progress = Progress::of_text(tokenizer.as_ref(), &prompt, tokens);
    progress.spin("the server reads its model");
    let session = match args.link {
        LinkArg::Memory => client.in_one_process(files, next(&mut sampler, &mut guess), &mut progress),
        _ => {
            // The weights are the other process's business.
            drop(files);
            client.with_child(next(&mut sampler, &mut guess), &mut progress)
        }
    };
    let (outcome, model, memory, server) = progress.finish(session)?;

    let chosen = [
        ("link", args.link.to_string().into()),
        ("tokens", tokens.into()),
        ("padded_prompt", padded.then_some(length).into()),
        ("processes", if args.link == LinkArg::Memory { 1 } else { 2 }.into()),
    ];
    let chosen = args.sampling.reported().into_iter().chain(args.draft.reported()).chain(chosen);
    let chosen = chosen.chain(pad_answer.then_some(("pad_answer", true.into())));
    let mut report = report(&model, tokenizer.as_ref(), prompt.len(), &outcome, &terms, chosen)?;
    report.peak_memory_bytes = memory;
    if let Some(server) = server {
        report.set_peer_cpu(&server.entries, &server.kinds, &server.per_token);
    }
    if args.check {
        let files = open_model(&args.model)?;
        let plain = Model::load_for(&terms.policy, &mut FloatLoader, &files.spec, Some(&files.checkpoint))?;
        let under = |policy: PolicySpec| {
            let options = GenerateOptions { tokens, reveal: terms.reveal, policy, ..Default::default() };
            check(&plain, &prompt, &options, &outcome.generation)
        };
        report.check = Some(under(terms.policy.clone())?);
        if terms.policy != PolicySpec::default() {
            report.against_full_cache = Some(under(PolicySpec::default())?);
        }
    }
    out::note(format_args!("\n{}", tables(&report, &args.operations)));
    if let Some(line) = verdict(&report) {
        out::note(line);
    }
    match &args.json {
        Some(path) => write_json(path, &report),
        None => Ok(()),
    }
}

/// What a session leaves: its outcome, the model as the client knows it, the parties' memory, and what the server
/// used if it is a process of its own.
type Finished = (Outcome, PublicModel, PeakMemory, Option<Used>);

/// The client's side, which is this process.
struct Client<'a> {
    args: &'a DemoArgs,
    terms: &'a Terms,
    prompt: &'a Prompt,
    tokens: usize,
    drafts: Option<Drafts>,
}

impl Client<'_> {
    /// Guesses of a pass.
    fn guesses(&self) -> usize {
        self.drafts.map_or(0, Drafts::tokens)
    }

    fn session(
        &self,
        link: impl Link + 'static,
        next: Next,
        observer: &mut dyn Observer,
    ) -> Result<(Outcome, PublicModel), Error> {
        let channel = Channel::new(Role::Client, self.args.link.wrap(link)?);
        // The tokenizer lies on this machine already.
        let session = ClientSession::open(channel, &Caller::default(), self.terms, &ClientOptions::default())?;
        let session = match self.drafts {
            Some(drafts) => session.drafting(drafts),
            None => session,
        };
        let session = if self.args.padding.pad_answer { session.padding_answers() } else { session };
        let model = session.model().clone();
        let stop = self.args.sampling.stop_at_eos;
        let outcome = session.generate(self.prompt.clone(), self.tokens, stop, next, observer)?;
        Ok((outcome, model))
    }

    /// Both parties as threads.
    fn in_one_process(&self, files: ModelFiles, next: Next, observer: &mut dyn Observer) -> Result<Finished, Error> {
        let hosted = ModelServer::load_keeping(&self.terms.policy, files, self.args.weight_cache)?;
        let (here, there) = memory_pair(self.args.timeout);
        let lengths = Lengths { prompt: self.prompt.ids().len(), tokens: self.tokens };
        let limits = Limits { lengths, drafted: self.guesses(), ..Limits::NONE };
        let (client, server) = thread::scope(|scope| {
            let server = scope.spawn(|| {
                let channel = Channel::new(Role::Server, there);
                hosted.serve(channel, &Caller::default(), self.terms, &limits, &mut Silent)
            });
            let client = self.session(here, next, observer);
            (client, server.join())
        });
        server.map_err(|_| Error::Panicked)??;
        let (outcome, model) = client?;
        let memory = net::peak_memory_bytes();
        Ok((outcome, model, PeakMemory { client: memory, server: memory, mapped: None }, None))
    }

    /// The server as a child process.
    fn with_child(&self, next: Next, observer: &mut dyn Observer) -> Result<Finished, Error> {
        // Both keys live for this run; each process is told the other's.
        let identity = Identity::generate()?;
        let mut server = Server::spawn(self, identity.public())?;
        let (address, key) = match server.line()? {
            Line::Listening { address, key } => (address, key),
            Line::Ended(_) => return Err(Error::Child { what: "it ended before a client came".into() }),
        };
        let session = self.connect(address, key, &identity).and_then(|link| self.session(link, next, observer));
        let (outcome, model) = match session {
            Ok(session) => session,
            // If the server has already failed, it knows better why.
            Err(error) => return Err(server.blame(error)),
        };
        let client = net::peak_memory_bytes();
        let Line::Ended(used) = server.line()? else {
            return Err(Error::Child { what: "it did not say what it took".into() });
        };
        server.end()?;
        Ok((outcome, model, PeakMemory { client, server: used.peak_memory_bytes, mapped: None }, Some(used)))
    }
}

impl Client<'_> {
    /// A link to the server, which must prove `key`; `None` without encryption.
    fn connect(
        &self,
        address: SocketAddr,
        key: Option<PublicKey>,
        identity: &Identity,
    ) -> Result<Box<dyn Link>, Error> {
        let timeouts = ConnectOptions { read_timeout: self.args.timeout, ..ConnectOptions::default() };
        let mut link: Box<dyn Link> = match key {
            Some(key) => Box::new(tls::connect(address, identity, move |shown| *shown == key, timeouts)?),
            None => Box::new(tcp::connect(address, timeouts)?),
        };
        // The server waits for nobody else.
        await_admission(&mut link, &mut |_| ())?;
        Ok(link)
    }
}

/// The server's process; killed when dropped.
struct Server {
    child: Child,
    out: BufReader<ChildStdout>,
}

impl Server {
    fn spawn(client: &Client, key: PublicKey) -> Result<Self, Error> {
        let DemoArgs { model, link, timeout, .. } = client.args;
        let failed = |source| Error::Spawn { source };
        let mut command = program::command().map_err(failed)?;
        command.args(["serve", "--once", "--listen", "127.0.0.1:0", "--model", model]);
        command.args(["--machine", &key.to_string()]);
        if client.args.insecure_plaintext {
            command.arg("--insecure-plaintext");
        }
        // One session, which may take as long as it likes.
        command.args(["--session-limit", "86400"]);
        // `--check` tells more, and the memory of the session alone is reported.
        command.arg("--no-calibration");
        command.args(["--link", &link.to_string(), "--timeout", &timeout.as_secs_f64().to_string()]);
        command.args([
            "--max-prompt",
            &client.prompt.ids().len().to_string(),
            "--max-tokens",
            &client.tokens.to_string(),
        ]);
        command.args(["--max-draft", &client.guesses().to_string()]);
        command.args(["--weight-cache", &client.args.weight_cache.to_string()]);
        for (name, value) in by_name(client.terms) {
            command.args([&format!("--{name}"), &value]);
        }
        // Variables that stand for options are meant for this process.
        forget_variables(&mut command, &super::Cli::command());
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().map_err(failed)?;
        match child.stdout.take() {
            Some(out) => Ok(Server { child, out: BufReader::new(out) }),
            None => Err(Error::Child { what: "it has no output".into() }),
        }
    }

    /// The next line of the server.
    fn line(&mut self) -> Result<Line, Error> {
        let mut text = String::new();
        self.out.read_line(&mut text).map_err(|e| Error::Child { what: e.to_string() })?;
        if text.is_empty() {
            let status = self.child.wait().map_err(|e| Error::Child { what: e.to_string() })?;
            return Err(Error::Child { what: status.to_string() });
        }
        serde_json::from_str(&text).map_err(|e| Error::Child { what: format!("{e} in {}", text.trim_end()) })
    }

    /// The client's error, with the server's exit if that came with it.
    fn blame(&mut self, error: Error) -> Error {
        // A process that dies takes a moment to be seen dead.
        thread::sleep(Duration::from_millis(50));
        match self.child.try_wait() {
            Ok(Some(status)) => Error::Child { what: format!("{status}; the client says: {}", describe(&error)) },
            _ => error,
        }
    }

    fn end(mut self) -> Result<(), Error> {
        let status = self.child.wait().map_err(|e| Error::Child { what: e.to_string() })?;
        if status.success() { Ok(()) } else { Err(Error::Child { what: status.to_string() }) }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Both fail only if it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

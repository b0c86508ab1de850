//! `waggle demo`: both parties on this machine.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{self, ChildStdout, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use clap::{Args, CommandFactory};
use waggle::program::{by_name, check_comparable};
use waggle::{
    Client, DEFAULT_MODEL, Generated, Helper, HelperDeals, Local, LocalOptions, Network, OptionsError, Proof,
    Request, Terms, TokenizerOf, Watch,
};
use waggle_files::{check_writable, write_json};
use waggle_model::{Lengths, Parts};
use waggle_net::{Identity, PublicKey};
use waggle_report::{Cost, HelperLink, PeakMemory, bytes};

use super::advice::told_of;
use super::child::{Line, Used};
use super::classify::by_line;
use super::connect::warn_of_plaintext;
use super::generate::{TextArgs, progress, tell};
use super::helper::HelpedArgs;
use super::options::{LINKS, OperationsArgs, PriceArgs, TermsArgs, seconds, set};
use super::report_tables::{tables, verdict, write_logits};
use super::settings::forget_variables;
use super::{Error, out};
use crate::child;

/// Generates text with both parties on this machine: two processes, unless the link is `memory`.
#[derive(Args, Debug)]
pub(super) struct DemoArgs {
    /// Hugging Face directory, or the name of a bundled model.
    #[arg(long, value_name = "DIR", default_value = DEFAULT_MODEL)]
    model: String,
    /// Parts of the models that both parties have, as with `serve --public`.
    #[arg(long, value_name = "PARTS", default_value = "")]
    public: Parts,
    /// A LoRA in PEFT's form that is added to the matrices of the model: a directory with `adapter_config.json` and
    /// `adapter_model.safetensors`. Clients learn which matrices it adapts and the largest rank of each kind.
    #[arg(long, value_name = "DIR")]
    adapter: Option<PathBuf>,
    #[command(flatten)]
    text: TextArgs,
    /// Tokens to generate [default: 40, or as many as the model has positions for; 1 for an encoder].
    #[arg(long, value_name = "N")]
    tokens: Option<usize>,
    /// The network between the parties: `memory` within one process, or the name of an imitated network.
    #[arg(long, value_name = LINKS, default_value = "loopback")]
    link: Network,
    /// Run the plaintext engine afterwards, and report token agreement and the largest logit error: under the same
    /// policy, which shows what the protocol changed, and then with the full cache, which shows what pruning changed.
    #[arg(long)]
    check: bool,
    /// Do not run the model on a text in the clear first. That run finds models that leave the ranges of operations,
    /// whose texts are spoilt. The server does it.
    #[arg(long)]
    skip_range_check: bool,
    /// Give up when the other party is silent for this many seconds.
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "120")]
    timeout: Duration,
    /// Let the server keep up to so many bytes of transformed weights in memory. Products under encryption make them,
    /// and later ones need not make them again. A weight takes 16 to 96 bytes.
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    weight_cache: usize,
    /// Write the report here.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Show what every phase and the costliest operations took. --operations, --price and --watts do as well.
    #[arg(long)]
    table: bool,
    #[command(flatten)]
    operations: OperationsArgs,
    #[command(flatten)]
    price: PriceArgs,
    /// Encrypt nothing between the two processes, for measurements. A text is unverified until it has ended.
    #[arg(long)]
    insecure_plaintext: bool,
    #[command(flatten)]
    helped: HelpedArgs,
    #[command(flatten)]
    terms: TermsArgs,
}

/// Default number of tokens. They take some ten seconds with the default model on two cores.
const DEFAULT_TOKENS: usize = 40;

pub(super) fn run(args: DemoArgs) -> Result<(), Error> {
    check_writable(args.json.as_deref())?;
    check_writable(args.text.logits.as_deref())?;
    let terms = args.terms.terms()?.together(args.link);
    // If three parties are asked for without an address of the third, this process starts it.
    let third = args.helped.lacks_third().then(|| Child::helper(&args)).transpose()?;
    let helper = match &third {
        Some((_, helper)) => Some(helper.clone()),
        None => args.helped.helper()?,
    };
    if helper.is_some() && args.link == Network::Memory {
        return Err(waggle::Error::from(OptionsError::HelperNeedsLinks).into());
    }
    let options = LocalOptions::default().terms(terms.clone()).range_check(!args.skip_range_check);
    let options = set!(options, args => public, adapter, weight_cache, timeout);
    if third.is_none() && helper.is_some() && !args.insecure_plaintext {
        out::note("the parties of a demo have new keys each time: the helper lets them in with --allow-any alone");
    }
    let terms = terms.helper(helper);
    let local = Local::open(&args.model, options)?;
    let (request, inputs) = args.text.request()?;
    let by_line = |error: waggle::Error| by_line(inputs.as_ref(), error);
    let tokens = match args.tokens {
        Some(tokens) => tokens,
        None if local.is_encoder() => 1,
        // The last token does not go through the model, so it takes no position.
        None => {
            let prompt = local.lengths(&request.clone().tokens(1)).map_err(by_line)?.prompt;
            (local.positions() + 1).saturating_sub(prompt).min(DEFAULT_TOKENS)
        }
    };
    let request = request.tokens(tokens);
    // A request that cannot work is refused before a process is started.
    let lengths = local.lengths(&request).map_err(by_line)?;
    if args.check {
        check_comparable(&terms.over(args.link)?, request.sampling.temperature > 0.0)?;
    }
    warn_of_plaintext(args.insecure_plaintext);
    let mut progress = progress(&request, lengths.tokens);
    progress.spin("the server reads its model");
    let generated = match args.link {
        Network::Memory => local.generate_with(&request, &mut |event| progress.hear(event)).map_err(Error::from),
        _ => with_child(&args, &terms, lengths, request.clone(), &mut |event| progress.hear(event)),
    };
    let mut generated = progress.finish(generated)?;
    tell(&request, inputs.as_ref(), &generated)?;
    write_logits(args.text.logits.as_deref(), &generated)?;
    if args.check {
        generated.compare_adapted(&args.model, args.adapter.as_deref())?;
    }
    let (report, price) = (&generated.report, args.price.price());
    if args.table || args.operations.given() || price.is_given() || price.watts.is_some() {
        out::note(format_args!("\n{}", tables(report, &args.operations, &price)));
    } else {
        out::note(format_args!("\n{}", told(&generated, lengths)));
    }
    if let Some(line) = verdict(report) {
        out::note(line);
    }
    if let Some(path) = &args.json {
        write_json(path, report)?;
    }
    third.map_or(Ok(()), |(child, _)| child.end())
}

/// The closing words of a demo, for a new user: what each party saw, the cost, and what to try next.
fn told(generated: &Generated, lengths: Lengths) -> String {
    let report = &generated.report;
    let chose = |name: &str, value: &str| report.options.get(name).is_some_and(|chosen| chosen == value);
    let numbers = if chose("reveal", "token") { "" } else { ", its logits" };
    let (tokens, ends) = (generated.count(), report.phases.decode.per_token.len().max(1));
    let Cost { bytes_client_to_server, bytes_server_to_client, flows, seconds, .. } = report.phases.total();
    let [up, down] = [bytes_client_to_server, bytes_server_to_client].map(bytes);
    let Cost { seconds: ahead, .. } = report.phases.offline;
    let prepared = match report.phases.offline.bytes() {
        all if chose("preprocess", "true") => {
            format!("\n      of it {} in {ahead:.1} s before the prompt was known", bytes(all))
        }
        _ => String::new(),
    };
    let token = report.phases.decode.total.seconds / ends as f64;
    let next = match chose("preprocess", "true") {
        true => "waggle demo --check       is it right? holds it against the clear model",
        false => "waggle demo --preprocess  a faster text: what knows no word is made first",
    };
    format!(
        "client saw: the prompt, the text{numbers} and the model's shape\n\
         server saw: {} tokens in, {tokens} out, and when; all else was random\n\
         cost: {up} to the server, {down} back, {flows} flows, {seconds:.1} s; {token:.2} s a token{prepared}\n\
         next: {next}\n      \
         waggle demo --table       where bytes and time went",
        lengths.prompt
    )
}

fn with_child(
    args: &DemoArgs,
    terms: &Terms,
    lengths: Lengths,
    request: Request,
    watch: &mut Watch,
) -> Result<Generated, Error> {
    // Both keys are made for this run. Each process gets the other's public key.
    let identity = Identity::generate()?;
    let mut server = Child::server(args, terms, &request, lengths, identity.public())?;
    let (address, key) = server.listening()?;
    let proof = if key.is_some() { Proof::Own(Arc::new(identity)) } else { Proof::Plaintext };
    let client = Client::new(address.to_string()).terms(terms.clone()).network(args.link).timeout(args.timeout);
    let base = Some(args.model.clone()).filter(|_| !args.public.is_empty());
    // The server listens already, so if it does not answer it has failed.
    let client = client.proof(proof).server_key(key).base(base).connect_timeout(Duration::from_secs(1));
    // The tokenizer is on this machine already.
    let request = request.tokenizer(TokenizerOf::Model(args.model.clone()));
    let mut generated = match client.generate_with(&request, watch) {
        Ok(generated) => generated,
        // If the server has failed already, its error says more.
        Err(error) => return Err(server.blame(error)),
    };
    let Line::Ended(used) = server.line()? else {
        return Err(Error::child("it did not say what it took"));
    };
    server.end()?;
    let Used { peak_memory_bytes, entries, kinds, per_token, helper } = used;
    let report = &mut generated.report;
    report.peak_memory_bytes = PeakMemory { server: peak_memory_bytes, ..report.peak_memory_bytes };
    if let Some(links) = &mut report.helper {
        links.server = helper.as_deref().map(HelperLink::of);
    }
    report.set_peer_cpu(&entries, &kinds, &per_token);
    report.options.insert("processes".into(), 2.into());
    Ok(generated)
}

/// The process of another party. It is killed when this value is dropped.
struct Child {
    child: process::Child,
    out: BufReader<ChildStdout>,
}

impl Child {
    /// Starts a third party. Returns also its address for the other two.
    fn helper(args: &DemoArgs) -> Result<(Self, Helper), Error> {
        let mut command = child::command()?;
        command.args(["helper", "--once", "--machine", "--listen=127.0.0.1:0"]);
        // A demo may use all memory of the machine.
        command.args([format!("--link={}", args.link), format!("--max-weights={}", u64::MAX)]);
        command.arg(format!("--timeout={}", args.timeout.as_secs_f64()));
        command.args(args.insecure_plaintext.then_some("--insecure-plaintext"));
        let mut child = Child::spawn(command)?;
        let (address, key) = child.listening()?;
        Ok((child, Helper { address: address.to_string(), key, deals: HelperDeals::Passes }))
    }

    fn server(
        args: &DemoArgs,
        terms: &Terms,
        request: &Request,
        lengths: Lengths,
        key: PublicKey,
    ) -> Result<Self, Error> {
        let mut command = child::command()?;
        command.args(["serve", "--once", "--listen=127.0.0.1:0"]);
        command.arg(format!("--machine={key}"));
        command.args(args.insecure_plaintext.then_some("--insecure-plaintext"));
        command.args(args.skip_range_check.then_some("--skip-range-check"));
        let given = [
            ("model", args.model.clone()),
            ("public", args.public.to_string()),
            // The one session may take as long as it needs.
            ("session-limit", "86400".into()),
            ("link", args.link.to_string()),
            ("timeout", args.timeout.as_secs_f64().to_string()),
            ("max-prompt", (lengths.prompt * request.texts()).to_string()),
            ("max-public", usize::MAX.to_string()),
            ("max-tokens", (lengths.tokens * request.texts()).to_string()),
            ("max-draft", request.draft.as_ref().map_or(0, |draft| draft.guesses).to_string()),
            ("weight-cache", args.weight_cache.to_string()),
        ];
        for (name, value) in given.into_iter().chain(by_name(&terms.over(args.link)?)) {
            command.arg(format!("--{name}={value}"));
        }
        command.args(terms.helper.iter().flat_map(HelpedArgs::arguments));
        if let Some(dir) = &args.adapter {
            command.arg("--adapter").arg(dir);
        }
        Child::spawn(command)
    }

    fn spawn(mut command: process::Command) -> Result<Self, Error> {
        // Environment variables with options are meant for this process alone.
        forget_variables(&mut command, &super::Cli::command());
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().map_err(Error::Spawn)?;
        match child.stdout.take() {
            Some(out) => Ok(Child { child, out: BufReader::new(out) }),
            None => Err(Error::child("it has no output")),
        }
    }

    /// The address on which the process listens, and its key.
    fn listening(&mut self) -> Result<(SocketAddr, Option<PublicKey>), Error> {
        match self.line()? {
            Line::Listening { address, key } => Ok((address, key)),
            Line::Ended(_) => Err(Error::child("it ended before anybody came")),
        }
    }

    fn line(&mut self) -> Result<Line, Error> {
        let mut text = String::new();
        self.out.read_line(&mut text).map_err(Error::child)?;
        if text.is_empty() {
            return Err(Error::child(self.child.wait().map_err(Error::child)?));
        }
        serde_json::from_str(&text).map_err(|e| Error::child(format_args!("{e} in {}", text.trim_end())))
    }

    /// The client's error, or the server's failure if that caused it.
    fn blame(&mut self, error: waggle::Error) -> Error {
        // It may take a moment until the death of a process is visible.
        thread::sleep(Duration::from_millis(50));
        match self.child.try_wait() {
            Ok(Some(status)) => Error::child(format_args!("{status}; the client says: {}", told_of(&error))),
            _ => error.into(),
        }
    }

    fn end(mut self) -> Result<(), Error> {
        let status = self.child.wait().map_err(Error::child)?;
        if status.success() { Ok(()) } else { Err(Error::child(status)) }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // Both calls fail only if the process has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

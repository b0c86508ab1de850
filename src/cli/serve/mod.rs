//! `waggle serve`: the party with the model.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use clap::Args;
use model::party::{Caller, Hosted, Limits, Outcome, Terms};
use model::pool::Pools;
use model::report::Cost;
use net::tcp::{self, Listener};
use net::{Channel, Entry, Role};
use serde::{Deserialize, Serialize};

use super::Error;
use super::error::describe;
use super::files::{check_writable, open_model, write_json};
use super::options::{LINKS, LinkArg, TermsArgs, link_between_processes, seconds};
use super::preprocess::filled;
use super::progress::Progress;
use super::report::{options, report};

/// Serves a model: clients generate text with it and do not learn its weights.
#[derive(Args, Debug)]
pub(super) struct ServeArgs {
    /// Hugging Face directory, or the name of a bundled model.
    #[arg(long, value_name = "DIR")]
    model: String,
    /// Address to listen on; port 0 takes a free one.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:7411")]
    listen: String,
    /// End after one session, with its exit code.
    #[arg(long)]
    once: bool,
    /// Slow what this party sends to a network; the client must do the same.
    #[arg(long, value_name = LINKS, value_parser = link_between_processes, default_value = "loopback")]
    link: LinkArg,
    /// Most tokens of a prompt.
    #[arg(long, value_name = "N", default_value_t = Limits::default().prompt)]
    max_prompt: usize,
    /// Most tokens to generate for a client.
    #[arg(long, value_name = "N", default_value_t = Limits::default().tokens)]
    max_tokens: usize,
    /// Keep this party's part of the pools that clients fill (`waggle preprocess`) and spend (`waggle generate --pool`) in
    /// this directory. They are as secret as the weights: never copy or restore them.
    #[arg(long, value_name = "DIR")]
    pools: Option<PathBuf>,
    /// Most pools in the directory; a client that wants to fill another is refused.
    #[arg(long, value_name = "N", default_value_t = 64, requires = "pools")]
    max_pools: usize,
    /// Give up on a client that is silent for this many seconds.
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "120")]
    timeout: Duration,
    /// Write the report of the last session here.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    #[command(flatten)]
    terms: TermsArgs,
    /// Talk JSON on standard output, and wait for the one client no longer than the time-out: for `demo`.
    #[arg(long, hide = true, requires = "once")]
    machine: bool,
}

/// What `--machine` prints: a line when clients may come, and a line at the end.
#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Line {
    /// Clients may come.
    Listening(SocketAddr),
    /// The session is over.
    Ended(Used),
}

/// What a session took of this process.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct Used {
    /// Its largest memory.
    pub(super) peak_memory_bytes: Option<u64>,
    /// All accounts, for their CPU times.
    pub(super) entries: Vec<Entry>,
    /// Cost of each token after the first.
    pub(super) per_token: Vec<Cost>,
}

impl Line {
    fn print(&self) -> Result<(), Error> {
        println!("{}", serde_json::to_string(self).map_err(|e| Error::Child { what: e.to_string() })?);
        Ok(())
    }
}

pub(super) fn run(args: ServeArgs) -> Result<(), Error> {
    check_writable(args.json.as_deref())?;
    let pools = match &args.pools {
        Some(dir) => {
            args.terms.allow_two_phases()?;
            Some(Pools::open(dir, args.max_pools)?)
        }
        None => None,
    };
    let hosted = Hosted::load(open_model(&args.model)?)?;
    let server = Server {
        hosted: match pools {
            Some(pools) => hosted.with_pools(pools),
            None => hosted,
        },
        terms: args.terms.terms(args.link)?,
        limits: Limits {
            prompt: args.max_prompt,
            tokens: args.max_tokens,
            preprocess: args.terms.fixed_preprocess(),
        },
    };
    let listener = tcp::listen(args.listen.as_str(), args.timeout)?;
    let address = listener.local_addr()?;
    if args.machine {
        Line::Listening(address).print()?;
    } else {
        println!("serving {} on {address}", server.hosted.public().name);
    }
    loop {
        let outcome = server.next(&listener, &args);
        if args.once {
            let Outcome { entries, per_token, .. } = outcome?;
            if args.machine {
                Line::Ended(Used { peak_memory_bytes: net::peak_memory_bytes(), entries, per_token }).print()?;
            }
            return Ok(());
        }
        if let Err(error) = outcome {
            eprintln!("error: {}", describe(&error));
            // A listener that cannot accept fails again at once.
            thread::sleep(Duration::from_millis(10));
        }
    }
}

struct Server {
    hosted: Hosted,
    terms: Terms,
    limits: Limits,
}

impl Server {
    /// Waits for a client and runs its session.
    fn next(&self, listener: &Listener, args: &ServeArgs) -> Result<Outcome, Error> {
        let link = listener.accept(args.machine.then_some(args.timeout))?;
        let peer = link.peer_addr().map_or_else(|_| "a client that left".into(), |peer| peer.to_string());
        let channel = Channel::new(Role::Server, args.link.wrap(link)?);
        // In a thread of its own, so that not even a bug that a client finds ends the server.
        let session = thread::scope(|scope| scope.spawn(|| self.session(channel, args)).join());
        let session = session.unwrap_or_else(|_| Err(Error::Panicked));
        let outcome = session.map_err(|source| Error::Session { peer: peer.clone(), source: Box::new(source) })?;
        if !args.machine {
            match outcome.filled {
                Some(id) => println!("{peer}: {}", filled(id)),
                None => println!("{peer}: {} tokens generated", outcome.generation.count),
            }
        }
        Ok(outcome)
    }

    fn session(&self, channel: Channel, args: &ServeArgs) -> Result<Outcome, Error> {
        let mut progress = Progress::bars(0);
        let outcome = if args.machine {
            self.hosted.serve(channel, &Caller::default(), &self.terms, &self.limits, &mut model::party::Silent)?
        } else {
            self.hosted.serve(channel, &Caller::default(), &self.terms, &self.limits, &mut progress)?
        };
        if let Some(path) = &args.json {
            let mut chosen = options([("link", args.link.to_string().into())]);
            chosen.extend(args.terms.reported(&self.terms));
            let mut report = report(self.hosted.public(), None, outcome.prompt_tokens, &outcome, chosen)?;
            report.peak_memory_bytes.server = net::peak_memory_bytes();
            write_json(path, &report)?;
        }
        Ok(outcome)
    }
}

//! Commands and their arguments.

mod against;
pub mod api;
mod calibrate;
mod connect;
mod demo;
mod draft;
mod error;
mod eval;
mod files;
mod fit;
mod float;
mod generate;
mod heads;
mod keygen;
mod machine;
mod options;
mod out;
mod padding;
mod plan;
mod plot;
mod policies;
mod pools;
mod preprocess;
mod program;
mod progress;
mod prompt;
mod report;
mod serve;
mod synth;
mod tokenizer_worker;
mod trust;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use error::Error;

/// Private text generation between two parties: a server with a language model, and a client with a prompt. The
/// server learns neither the prompt nor the text, and the client does not learn the weights.
#[derive(Parser, Debug)]
#[command(name = "waggle", version = machine::PROGRAM, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    Demo(demo::DemoArgs),
    Serve(serve::ServeArgs),
    Generate(generate::GenerateArgs),
    Preprocess(preprocess::PreprocessArgs),
    Pools(pools::PoolsArgs),
    Float(float::FloatArgs),
    Plan(plan::PlanArgs),
    Policies(policies::PoliciesArgs),
    Calibrate(calibrate::CalibrateArgs),
    Eval(eval::EvalArgs),
    Fit(fit::FitArgs),
    Heads(heads::HeadsArgs),
    Synth(synth::SynthArgs),
    Keygen(keygen::KeygenArgs),
    /// Runs a server's tokenizer for `generate`, and talks JSON on standard input and output.
    #[command(hide = true)]
    TokenizerWorker,
}

/// Runs the command that this process was started with; an error is one line on standard error and exit code 1.
pub fn run() -> ExitCode {
    run_from(std::env::args_os())
}

/// The same with these words, the first of which is the program's name. Words that make no command end the process.
pub fn run_from(words: impl IntoIterator<Item = OsString>) -> ExitCode {
    let command = Cli::parse_from(words).command;
    if let Err(error) = bits::cpu::Cpu::choose() {
        return out::fail(&error.into());
    }
    let outcome = match command {
        Command::Demo(args) => demo::run(args),
        Command::Serve(args) => serve::run(args),
        Command::Generate(args) => generate::run(args),
        Command::Preprocess(args) => preprocess::run(args),
        Command::Pools(args) => pools::run(args),
        Command::Float(args) => float::run(args),
        Command::Plan(args) => plan::run(args),
        Command::Policies(args) => policies::run(args),
        Command::Calibrate(args) => calibrate::run(args),
        Command::Eval(args) => eval::run(args),
        Command::Fit(args) => fit::run(args),
        Command::Heads(args) => heads::run(args),
        Command::Synth(args) => synth::run(args),
        Command::TokenizerWorker => tokenizer_worker::run(),
        Command::Keygen(args) => keygen::run(args),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => out::fail(&error),
    }
}

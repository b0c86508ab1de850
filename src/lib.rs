//! The command line of Waggle: commands, their options and their output.
//!
//! A program of another crate registers its own policies and activations, then calls [`run()`]: it has all commands,
//! which know the new names. `examples/outside` is a crate with such programs, to copy.
#![deny(missing_docs)]
#![forbid(unsafe_code)]

mod advice;
mod calibrate;
mod chat;
mod child;
mod classify;
mod compare;
mod connect;
mod demo;
mod error;
mod eval;
mod fit;
mod float;
mod generate;
mod heads;
mod help;
mod helper;
mod html;
mod keygen;
mod links;
mod log;
mod machine;
mod options;
mod out;
mod plan;
mod plot;
mod policies;
mod pools;
mod preprocess;
mod progress;
mod prompt;
mod proxy;
mod quantize;
mod record;
mod report;
mod report_tables;
mod reproduce;
mod serve;
mod settings;
mod shell;
mod sweep;
mod synth;
mod tables;
mod together;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use error::Error;
use waggle::ServerConfig;

/// Private text generation between two parties: a server with a language model, and a client with a prompt. The
/// server learns neither the prompt nor the text, and the client does not learn the weights.
#[derive(Parser, Debug)]
#[command(name = "waggle", version = machine::PROGRAM, max_term_width = 100, after_help = SETTINGS)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// Text below the commands in the help.
const SETTINGS: &str = "Every option of a command can also be given as a variable, --prompt-len as WAGGLE_PROMPT_LEN. What \
     the command line says comes first. The variable of a switch is true or false.";

/// The commands: the name of each, its arguments, and the function that runs them.
macro_rules! commands {
    ($($name:ident($args:ty) = $run:path,)*) => {
        #[derive(Subcommand, Debug)]
        enum Command {
            $($name($args),)*
        }

        impl Command {
            fn run(self) -> Result<(), Error> {
                match self {
                    $(Command::$name(args) => $run(args),)*
                }
            }
        }
    };
}

commands! {
    Demo(demo::DemoArgs) = demo::run,
    Serve(serve::ServeArgs) = serve::run,
    Helper(helper::HelperArgs) = helper::run,
    Generate(generate::GenerateArgs) = generate::run,
    Chat(chat::ChatArgs) = chat::run,
    Proxy(proxy::ProxyArgs) = proxy::run,
    Classify(classify::ClassifyArgs) = classify::run,
    Preprocess(preprocess::PreprocessArgs) = preprocess::run,
    Pools(pools::PoolsArgs) = pools::run,
    Float(float::FloatArgs) = float::run,
    Plan(plan::PlanArgs) = plan::run,
    Policies(policies::PoliciesArgs) = policies::run,
    Links(links::LinksArgs) = links::run,
    Calibrate(calibrate::CalibrateArgs) = calibrate::run,
    Sweep(sweep::SweepArgs) = sweep::run,
    Reproduce(reproduce::ReproduceArgs) = reproduce::run,
    Compare(compare::CompareArgs) = compare::run,
    Eval(eval::EvalArgs) = eval::run,
    Tables(tables::TablesArgs) = tables::run,
    Plot(plot::PlotArgs) = plot::run,
    Report(report::ReportArgs) = report::run,
    Fit(fit::FitArgs) = fit::run,
    Heads(heads::HeadsArgs) = heads::run,
    Synth(synth::SynthArgs) = synth::run,
    Quantize(quantize::QuantizeArgs) = quantize::run,
    Keygen(keygen::KeygenArgs) = keygen::run,
    Completions(shell::CompletionsArgs) = shell::completions,
    Man(shell::ManArgs) = shell::man,
}

/// Parses the command line, with options from the environment.
fn parse(mut words: Vec<OsString>) -> Cli {
    let names = std::env::vars_os().map(|(name, _)| name.to_string_lossy().into_owned());
    for name in settings::unknown_variables(&Cli::command(), names) {
        out::note(format_args!("{} is no option of any command", waggle::program::harmless(&name)));
    }
    let all = help::asks_for_all(&words);
    if all {
        words.retain(|word| word != "all");
    }
    let command = settings::with_variables(help::shown(Cli::command(), all));
    let matches = command.try_get_matches_from(words).and_then(|matches| Cli::from_arg_matches(&matches));
    matches.unwrap_or_else(|error| error.exit())
}

/// Runs the command in this process's arguments. An error is written as one line to standard error, and the exit code
/// is 1.
pub fn run() -> ExitCode {
    run_from(std::env::args_os())
}

/// [`run`] with these words, whose first one is the program's name. Words that are not a valid command end the
/// process.
pub fn run_from(words: impl IntoIterator<Item = OsString>) -> ExitCode {
    let words: Vec<OsString> = words.into_iter().collect();
    waggle::program::called(words.get(1));
    child::end_with_parent();
    let Cli { command } = parse(words);
    if let Err(error) = waggle_bits::cpu::Cpu::choose() {
        return out::fail(&error.into());
    }
    let logs = matches!(command, Command::Serve(_) | Command::Helper(_) | Command::Proxy(_));
    let done = if logs { command.run() } else { log::with_notes(|| command.run()) };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => out::fail(&error),
    }
}

/// Runs `work` as a command does: each warning of the library in this thread is a line on standard error.
pub fn with_notes<T>(work: impl FnOnce() -> T) -> T {
    log::with_notes(work)
}

/// The HTML page of a report, a study or a sweep, as `waggle report --html` writes it. `json` is the document.
///
/// # Errors
/// If `json` is not such a document.
pub fn page(name: &str, json: &[u8]) -> Result<String, Box<dyn std::error::Error + Send + Sync>> {
    let (record, json) = record::read_as(name.as_ref(), json)?;
    Ok(html::page(name, &record, &json)?)
}

/// Serves as `waggle serve` does until a signal. Logs events of `level` and above on standard error, and writes a
/// line to standard output when clients may connect. An error is one line on standard error.
pub fn serve(config: ServerConfig, level: &str) -> ExitCode {
    match serve::run_as(config, level) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => out::fail(&error),
    }
}

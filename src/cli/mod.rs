//! Commands and their arguments.

mod against;
mod calibrate;
mod chat;
mod compare;
mod connect;
mod demo;
mod error;
mod eval;
mod fit;
mod float;
mod generate;
mod heads;
mod html;
mod keygen;
mod machine;
mod mean_token;
mod options;
mod out;
mod plan;
#[cfg(feature = "plots")]
mod plot;
mod policies;
mod pools;
mod preprocess;
mod progress;
mod prompt;
mod published;
mod record;
mod report;
mod serve;
mod settings;
mod shell;
mod shown;
mod sweep;
mod synth;
mod tables;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

use error::Error;

use crate::ServerConfig;
use record::{Record, RecordError};

/// Private text generation between two parties: a server with a language model, and a client with a prompt. The
/// server learns neither the prompt nor the text, and the client does not learn the weights.
#[derive(Parser, Debug)]
#[command(name = "waggle", version = machine::PROGRAM, max_term_width = 100, after_help = SETTINGS)]
struct Cli {
    /// Take options from this file, unless the command line or the environment gives them: `tokens = 20` for every
    /// command that has `--tokens`, and under `[generate]` for `generate` alone. Stands before the command.
    #[arg(long, value_name = "FILE.toml")]
    config: Option<PathBuf>,
    #[command(subcommand)]
    command: Command,
}

/// Under the commands in the help.
const SETTINGS: &str = "Every option of a command can also be given as a variable, --prompt-len as WAGGLE_PROMPT_LEN, and \
     in a file (--config, or WAGGLE_CONFIG). The command line comes first, then variables, then the file. There a \
     switch is true or false, 1 or 0.";

#[derive(Subcommand, Debug)]
enum Command {
    Demo(demo::DemoArgs),
    Serve(serve::ServeArgs),
    Generate(generate::GenerateArgs),
    Chat(chat::ChatArgs),
    Preprocess(preprocess::PreprocessArgs),
    Pools(pools::PoolsArgs),
    Float(float::FloatArgs),
    Plan(plan::PlanArgs),
    Policies(policies::PoliciesArgs),
    Calibrate(calibrate::CalibrateArgs),
    Sweep(sweep::SweepArgs),
    Compare(compare::CompareArgs),
    Eval(eval::EvalArgs),
    Tables(tables::TablesArgs),
    #[cfg(feature = "plots")]
    Plot(plot::PlotArgs),
    Report(shown::ReportArgs),
    Fit(fit::FitArgs),
    Heads(heads::HeadsArgs),
    Synth(synth::SynthArgs),
    Keygen(keygen::KeygenArgs),
    Completions(shell::CompletionsArgs),
    Man(shell::ManArgs),
}

/// The command line, with what the environment and a file add to it.
fn parse(words: Vec<OsString>) -> Result<Cli, ExitCode> {
    let completed = settings::complete(&Cli::command(), words, |name| std::env::var_os(name))
        .map_err(|error| out::fail(&error.into()))?;
    Cli::try_parse_from(completed.arguments).map_err(|error| {
        // Help and version are no errors.
        if error.use_stderr() && !completed.added.is_empty() {
            out::note(format_args!("with {}", completed.added.join(", ")));
        }
        error.exit()
    })
}

/// Runs the command that this process was started with; an error is one line on standard error and exit code 1.
pub fn run() -> ExitCode {
    run_from(std::env::args_os())
}

/// [`run`] with these words, the first of which is the program's name. Words that make no command end the process.
pub fn run_from(words: impl IntoIterator<Item = OsString>) -> ExitCode {
    let words: Vec<OsString> = words.into_iter().collect();
    crate::worker::called(words.get(1));
    let Cli { command, config: _ } = match parse(words) {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    if let Err(error) = bits::cpu::Cpu::choose() {
        return out::fail(&error.into());
    }
    let outcome = match command {
        Command::Demo(args) => demo::run(args),
        Command::Serve(args) => serve::run(args),
        Command::Generate(args) => generate::run(args),
        Command::Chat(args) => chat::run(args),
        Command::Preprocess(args) => preprocess::run(args),
        Command::Pools(args) => pools::run(args),
        Command::Float(args) => float::run(args),
        Command::Plan(args) => plan::run(args),
        Command::Policies(args) => policies::run(args),
        Command::Calibrate(args) => calibrate::run(args),
        Command::Sweep(args) => sweep::run(args),
        Command::Compare(args) => compare::run(args),
        Command::Eval(args) => eval::run(args),
        Command::Tables(args) => tables::run(args),
        #[cfg(feature = "plots")]
        Command::Plot(args) => plot::run(args),
        Command::Report(args) => shown::run(args),
        Command::Fit(args) => fit::run(args),
        Command::Heads(args) => heads::run(args),
        Command::Synth(args) => synth::run(args),
        Command::Keygen(args) => keygen::run(args),
        Command::Completions(args) => shell::completions(&args),
        Command::Man(args) => shell::man(&args),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => out::fail(&error),
    }
}

/// The page of HTML of a report or a study, as `waggle report --html` writes it; `json` is its document.
///
/// # Errors
/// If `json` is no such document.
pub fn page(name: &str, json: &[u8]) -> Result<String, Box<dyn std::error::Error + Send + Sync>> {
    Ok(match record::read_as(name.as_ref(), json)? {
        (Record::Session(report), json) => html::of_session(name, &report, &json)?,
        (Record::Study(study), json) => html::of_study(name, &study, &json)?,
        (Record::Sweep(_), _) => return Err(RecordError::SweepAlone { path: name.into() }.into()),
    })
}

/// Serves as `waggle serve` does: logs what is of `level` or worse on standard error, writes a line on standard output
/// when clients may come, and ends by a signal. An error is one line on standard error.
pub fn serve(config: ServerConfig, level: &str) -> ExitCode {
    match serve::run_as(config, level) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => out::fail(&error),
    }
}

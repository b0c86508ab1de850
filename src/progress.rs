//! Progress on a terminal, text on standard output.

use std::fmt::Write;
use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{HumanBytes, HumanDuration, ProgressBar, ProgressState, ProgressStyle};
use waggle::program::harmless;
use waggle::{Event, Flow, Prompt};
use waggle_model::Step;
use waggle_protocols::Made;

use super::connect::note;
use super::{Error, out};

/// If prepared correlations take at least this number of bytes, the user is told before they are made.
const ANNOUNCED: u64 = 1 << 28;

/// Steps of the bar of a preparation. Each piece of the preparation counts by its share of the planned work.
const STEPS: f64 = 1000.0;

/// Shows bars on standard error if it is a terminal, and streams generated text to standard output.
pub(super) struct Progress {
    bar: ProgressBar,
    tokens: usize,
    /// Whether text is printed while it is generated. A preparation has no text, and a table is printed at once when
    /// all is done.
    text: bool,
    /// The text on the current line of a terminal while the bar is below it.
    line: String,
    printed: usize,
    /// The error of standard output. Nothing is written after it.
    failed: Option<Error>,
}

impl Progress {
    pub(super) fn of_text(tokens: usize) -> Self {
        let mut progress = Progress::bars(tokens);
        progress.text = true;
        progress
    }

    pub(super) fn bars(tokens: usize) -> Self {
        Progress { bar: bar(), tokens, text: false, line: String::new(), printed: 0, failed: None }
    }

    /// Shows the prompt before the text, in dim letters, if standard output is a terminal.
    pub(super) fn after(mut self, prompt: &Prompt) -> Self {
        if let (true, Prompt::Text(prompt)) = (self.text && std::io::stdout().is_terminal(), prompt) {
            let dim: Vec<String> = harmless(prompt).split('\n').map(|line| format!("\x1b[2m{line}\x1b[0m")).collect();
            self.show(&dim.join("\n"));
        }
        self
    }

    /// Shows `what` until something else happens.
    pub(super) fn spin(&self, what: &'static str) {
        self.bar.set_style(style("{spinner} {msg}"));
        self.bar.set_message(what);
        self.bar.enable_steady_tick(Duration::from_millis(100));
    }

    /// Shows a new bar of `length` steps, with its own pace. The time left counts down between two steps.
    fn start(&self, template: &str, length: u64) {
        self.bar.set_style(style(template));
        self.bar.set_length(length);
        self.bar.set_position(0);
        self.bar.reset_elapsed();
        self.bar.reset_eta();
        self.bar.enable_steady_tick(Duration::from_millis(500));
    }

    fn show(&mut self, text: &str) {
        if self.bar.is_hidden() || !std::io::stdout().is_terminal() {
            self.print(text);
            return;
        }
        // Whole lines are printed above the bar. The current line is a part of the bar.
        self.line.push_str(text);
        if let Some(end) = self.line.rfind('\n') {
            let rest = self.line.split_off(end + 1);
            let whole = std::mem::replace(&mut self.line, rest);
            let bar = self.bar.clone();
            bar.suspend(|| self.print(&whole));
        }
        self.bar.set_message(self.line.clone());
    }

    /// Prints and flushes `text`, as readers want each token at once.
    fn print(&mut self, text: &str) {
        if self.failed.is_none() {
            self.failed = out::print(text).err();
        }
    }

    /// Removes the bar, ends the text, and returns the result of the session. A failure of standard output comes
    /// first, because it ended the session.
    pub(super) fn finish<T>(mut self, session: Result<T, impl Into<Error>>) -> Result<T, Error> {
        self.bar.finish_and_clear();
        if self.text && session.is_ok() {
            let last = std::mem::take(&mut self.line) + "\n";
            self.print(&last);
        }
        match self.failed.take() {
            Some(error) => Err(error),
            None => session.map_err(Into::into),
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

impl Progress {
    /// Shows `event`.
    pub(super) fn hear(&mut self, event: Event<'_>) -> Flow {
        match event {
            Event::GoesOn if self.failed.is_some() => return Flow::Abandon,
            Event::Setup => self.spin("setup: base OTs"),
            // Small preparations are not announced.
            Event::Room(bytes) if bytes >= ANNOUNCED => {
                let dir = std::env::temp_dir();
                let size = HumanBytes(bytes);
                self.bar.suspend(|| eprintln!("preparing {size} of correlations in {}", dir.display()));
            }
            Event::Prepared(made) => self.prepared(made),
            Event::Begins(Step::Prefill) => {
                self.bar.disable_steady_tick();
                self.bar.set_style(style("prefill {bar:32} {pos}/{len} layers {elapsed}"));
            }
            Event::Layer { done, of } if self.printed == 0 => {
                self.bar.set_length(of as u64);
                self.bar.set_position(done as u64);
            }
            Event::Token(_) => self.token(),
            Event::Unreachable(address) => self.bar.suspend(|| {
                out::note(format_args!("nobody answers at {address} yet: is `waggle serve` running there?"));
            }),
            Event::Text(text) if self.text => self.show(text),
            event => note(&event),
        }
        Flow::GoOn
    }

    fn prepared(&self, made: Made) {
        if made.bytes == 0 && made.work == 0.0 {
            self.start("preprocess {bar:32} {msg} {elapsed}{left}", STEPS as u64);
        }
        let rate = made.bytes as f64 / self.bar.elapsed().as_secs_f64().max(1e-3);
        let [done, all, rate] = [made.bytes, made.all_bytes, rate as u64].map(HumanBytes);
        self.bar.set_message(format!("{done} of {all}, {rate}/s,"));
        self.bar.set_position((made.work * STEPS) as u64);
    }

    fn token(&mut self) {
        if self.printed == 0 {
            // A party that does not know the final number of tokens shows the number so far.
            let count = if self.tokens > 0 { "{bar:32} {pos}/{len}" } else { "{pos}" };
            self.bar.set_message(String::new());
            self.start(&format!("{{msg}}\ntokens {count} {{elapsed}}, {{pace}}{{left}}"), self.tokens as u64);
        }
        self.printed += 1;
        self.bar.set_position(self.printed as u64);
    }
}

/// A watcher of a study, and the bar that it moves.
pub(super) fn studied() -> (ProgressBar, impl FnMut(Event<'_>) -> Flow + Send) {
    let bar = passes(0);
    let shown = bar.clone();
    let watch = move |event: Event<'_>| {
        if let Event::Studied { of } = event {
            shown.set_length(of as u64);
            shown.inc(1);
        }
        Flow::GoOn
    };
    (bar, watch)
}

/// A bar over `total` passes of a study.
pub(super) fn passes(total: usize) -> ProgressBar {
    let bar = bar();
    bar.set_style(style("{bar:32} {pos}/{len} passes {elapsed}{left}"));
    bar.set_length(total as u64);
    bar
}

/// A bar on standard error, hidden if that is no terminal.
fn bar() -> ProgressBar {
    if std::io::stderr().is_terminal() { ProgressBar::new_spinner() } else { ProgressBar::hidden() }
}

/// The style of `template`. `{pace}` stands for the steps in a second, and `{left}` for a comma and the time left, or
/// for nothing if that is not known. A bad template is replaced by the default style, as a bar must not fail.
fn style(template: &str) -> ProgressStyle {
    let pace = |state: &ProgressState, to: &mut dyn Write| {
        let _ = write!(to, "{:.1}/s", state.per_sec());
    };
    let left = |state: &ProgressState, to: &mut dyn Write| {
        let left = state.eta();
        if !left.is_zero() {
            let _ = write!(to, ", {} left", HumanDuration(left));
        }
    };
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    style.with_key("pace", pace).with_key("left", left)
}

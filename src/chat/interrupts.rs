//! Ctrl-C: stops an answer, and ends the session when it comes again. What was said is kept.
//!
//! A thread takes the signals, so that the second one works whatever the session waits for. Elsewhere than under Unix
//! Ctrl-C ends the program, as it does before the session is open.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The text that a person sees when Ctrl-C stops an answer.
#[cfg(unix)]
const STOPS: &str = "\n(the answer stops; Ctrl-C again ends the session)";

/// The stage at which Ctrl-C finds the chat.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    /// Nothing is under way. A person who types is told how to end, anybody else wants the end.
    #[default]
    Waits,
    Told,
    Answers,
    /// It is to stop.
    Stops,
}

/// Shared with the thread.
#[derive(Default)]
struct State {
    stage: Stage,
    /// The state of the terminal before the answer.
    #[cfg(unix)]
    terminal: Option<rustix::termios::Termios>,
}

#[derive(Clone, Default)]
pub(super) struct Interrupts {
    state: Arc<Mutex<State>>,
}

impl Interrupts {
    /// From now on Ctrl-C has this meaning. `typed` says whether a person types; `tell` shows them how to end, and
    /// `end` keeps what was said before the process ends.
    pub(super) fn take(
        &self,
        typed: bool,
        tell: impl Fn() + Send + 'static,
        end: impl FnOnce() + Send + 'static,
    ) -> std::io::Result<()> {
        #[cfg(unix)]
        {
            use signal_hook::consts::SIGINT;
            let (this, mut end) = (self.clone(), Some(end));
            let mut signals = signal_hook::iterator::Signals::new([SIGINT])?;
            std::thread::Builder::new().name("waggle-signals".into()).spawn(move || {
                for signal in signals.forever() {
                    let mut state = this.state();
                    match state.stage {
                        Stage::Answers => {
                            state.stage = Stage::Stops;
                            crate::out::note(STOPS);
                        }
                        Stage::Waits if typed => {
                            state.stage = Stage::Told;
                            tell();
                        }
                        _ => {
                            state.loud();
                            // Not under the lock: the session may wait for it before it lets go of the words.
                            drop(state);
                            end.take().into_iter().for_each(|end| end());
                            std::process::exit(128 + signal);
                        }
                    }
                }
            })?;
        }
        #[cfg(not(unix))]
        drop((typed, tell, end));
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A line was taken.
    pub(super) fn line(&self) {
        self.state().stage = Stage::Waits;
    }

    /// An answer begins, which lasts until the value is dropped. What a person types meanwhile is not shown.
    pub(super) fn answering(&self, typed: bool) -> Answering<'_> {
        let mut state = self.state();
        state.stage = Stage::Answers;
        if typed {
            state.hush();
        }
        Answering { interrupts: self }
    }

    pub(super) fn stops(&self) -> bool {
        self.state().stage == Stage::Stops
    }
}

pub(super) struct Answering<'a> {
    interrupts: &'a Interrupts,
}

impl Drop for Answering<'_> {
    fn drop(&mut self) {
        let mut state = self.interrupts.state();
        state.stage = Stage::Waits;
        state.loud();
    }
}

#[cfg(unix)]
impl State {
    /// The terminal shows nothing of what is typed.
    fn hush(&mut self) {
        use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcsetattr};
        let Ok(before) = tcgetattr(std::io::stdin()) else { return };
        let mut quiet = before.clone();
        quiet.local_modes -= LocalModes::ECHO;
        // One that cannot be changed shows what is typed, and does no harm.
        self.terminal = tcsetattr(std::io::stdin(), OptionalActions::Now, &quiet).ok().map(|()| before);
    }

    /// It shows it again. Half a line that nobody has seen is forgotten.
    fn loud(&mut self) {
        use rustix::termios::{OptionalActions, tcsetattr};
        if let Some(before) = self.terminal.take() {
            let _ = tcsetattr(std::io::stdin(), OptionalActions::Flush, &before);
        }
    }
}

#[cfg(not(unix))]
impl State {
    fn hush(&mut self) {}
    fn loud(&mut self) {}
}

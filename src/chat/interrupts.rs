//! Ctrl-C: stops an answer and, the second time, ends the session. The conversation is kept.
//!
//! A thread handles the signals, so that the second one works whatever the session waits for. On systems other than
//! Unix, and before the session is open, Ctrl-C ends the program.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The note that is shown when Ctrl-C stops an answer.
#[cfg(unix)]
const STOPS: &str = "\n(the answer stops; Ctrl-C again ends the session)";

/// The stage at which Ctrl-C finds the chat.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    /// No answer is under way. At a terminal, Ctrl-C shows how to end; otherwise it ends the session.
    #[default]
    Waits,
    Told,
    Answers,
    /// Ctrl-C came during an answer, and the answer is about to stop.
    Stops,
}

/// The state that the session shares with the thread.
#[derive(Default)]
struct State {
    stage: Stage,
    /// The settings of the terminal before the answer, to be restored after it.
    #[cfg(unix)]
    terminal: Option<rustix::termios::Termios>,
}

#[derive(Clone, Default)]
pub(super) struct Interrupts {
    state: Arc<Mutex<State>>,
}

impl Interrupts {
    /// Handles Ctrl-C from now on. `typed` says whether the input is a terminal, `tell` shows there how to end, and
    /// `end` keeps the conversation before the process ends.
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
                            // The lock is released first, as the session may need it before it releases the
                            // conversation.
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

    /// Notes that a line was taken.
    pub(super) fn line(&self) {
        self.state().stage = Stage::Waits;
    }

    /// Notes that an answer begins. It lasts until the returned value is dropped. Meanwhile the terminal does not
    /// show typed text.
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
    /// Turns off the terminal's echo of typed text.
    fn hush(&mut self) {
        use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcsetattr};
        let Ok(before) = tcgetattr(std::io::stdin()) else { return };
        let mut quiet = before.clone();
        quiet.local_modes -= LocalModes::ECHO;
        // If the terminal cannot be changed, it shows typed text, which does no harm.
        self.terminal = tcsetattr(std::io::stdin(), OptionalActions::Now, &quiet).ok().map(|()| before);
    }

    /// Turns the echo on again, and drops half a line that was typed unseen.
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

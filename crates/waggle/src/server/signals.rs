//! SIGTERM and SIGINT: the first ends the server in good order, the second at once.

use std::io;

/// Calls `first` at the first signal. A second signal ends the process with the exit code that shells use for it.
/// Where the system is not Unix, signals keep their meaning.
pub fn on_signal(first: impl FnOnce(&'static str) + Send + 'static) -> io::Result<()> {
    #[cfg(unix)]
    {
        use signal_hook::consts::{SIGINT, SIGTERM};
        let mut signals = signal_hook::iterator::Signals::new([SIGTERM, SIGINT])?;
        std::thread::Builder::new().name("waggle-signals".into()).spawn(move || {
            let mut first = Some(first);
            for signal in signals.forever() {
                match first.take() {
                    Some(first) => first(if signal == SIGTERM { "SIGTERM" } else { "SIGINT" }),
                    None => std::process::exit(128 + signal),
                }
            }
        })?;
    }
    #[cfg(not(unix))]
    drop(first);
    Ok(())
}

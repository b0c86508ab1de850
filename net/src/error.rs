//! What can go wrong between two parties.

use thiserror::Error;

/// A failure of the channel, naming the protocol step that was under way.
#[derive(Debug, Error)]
pub enum NetError {
    /// The peer closed the connection or vanished.
    #[error("the peer closed the connection during `{step}`")]
    Closed {
        /// Protocol step under way.
        step: &'static str,
    },
    /// Nothing arrived within the read time-out.
    #[error("no message from the peer within {seconds:.1} s during `{step}`")]
    TimedOut {
        /// Protocol step under way.
        step: &'static str,
        /// The time-out.
        seconds: f64,
    },
    /// The message has another length than the protocol prescribes; nothing was allocated for it.
    #[error("the peer's message for `{step}` has {got} bytes, expected {expected}")]
    Length {
        /// Protocol step under way.
        step: &'static str,
        /// Length that the protocol prescribes (for variable messages: the maximum).
        expected: usize,
        /// Length that the peer announced.
        got: usize,
    },
    /// The message belongs to another step.
    #[error("expected the peer's message for `{step}` (tag {expected:08x}), got tag {got:08x}")]
    Unexpected {
        /// Protocol step under way.
        step: &'static str,
        /// Tag of that step.
        expected: u32,
        /// Tag received.
        got: u32,
    },
    /// The bytes do not decode to what the step allows (a residue out of range, a point off the curve, ...).
    #[error("the peer's message for `{step}` is malformed: {what}")]
    Malformed {
        /// Protocol step under way.
        step: &'static str,
        /// What is wrong.
        what: String,
    },
    /// The parties differ in version, model or options; both see the same list.
    #[error("the parties do not agree:\n{}", .differences.join("\n"))]
    Disagreement {
        /// One line for every field that differs.
        differences: Vec<String>,
    },
    /// What arrives is not the opening of a Waggle session: another program, or a peer in the middle of something.
    #[error("the peer does not speak Waggle; it begins with `{first}`")]
    NotWaggle {
        /// The first bytes received, escaped.
        first: String,
    },
    /// No connection within the connect time-out.
    #[error("cannot connect to {addr} after {seconds:.1} s: {source}")]
    Unreachable {
        /// The address tried last.
        addr: String,
        /// How long it was tried.
        seconds: f64,
        /// The last cause.
        source: std::io::Error,
    },
    /// Any other failure of the operating system.
    #[error("input/output during `{step}`: {source}")]
    Io {
        /// Protocol step under way.
        step: &'static str,
        /// The cause.
        source: std::io::Error,
    },
}

//! How much of a prompt's length is hidden.

use clap::Args;

use crate::Pads;

/// The lengths to which prompts are padded.
#[derive(Args, Clone, Debug)]
pub(super) struct PaddingArgs {
    /// Hide how long the prompt is. It is padded to the next power of two from 16 on, or to the next of these
    /// lengths. No token attends to the padding, so the text stays the same; the longer prompt costs more. Needs the
    /// policy `full`.
    #[arg(long, value_name = "LENGTHS", num_args = 0..=1, default_missing_value = "auto")]
    pub(super) pad_prompt: Option<Pads>,
    /// With --stop-at-eos: let the text go on behind its end, unseen, to the next power of two from 16 on or to
    /// --tokens. The server learns that number in the place of the text's length. Takes no draft.
    #[arg(long, requires = "stop_at_eos")]
    pub(super) pad_answer: bool,
}

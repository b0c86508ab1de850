//! Drafts: who guesses, and how much.

use clap::Args;
use model::DEFAULT_RATE;

use crate::Draft;

/// How the client guesses the next tokens.
#[derive(Args, Clone, Debug)]
pub(super) struct DraftArgs {
    /// Guess the next K tokens (4 unless given) and check all of them in one pass, which takes about as many flows as
    /// a pass over one token, and K + 1 times the bytes of most operations. The text is the same. `lookup[:K]` looks
    /// up how the text went on after the same words before; `model:DIR[:K]` runs a small public model with the same
    /// vocabulary, on this machine and in the clear. The server learns how many tokens each pass keeps, and no word
    /// of the guesses. The client learns what the model says after wrong guesses too, so the server must agree
    /// (`serve --max-draft`). Needs the policy `full`, or `snapkv`, `pyramid`, `squeeze` or `mpcache-2pc` with a
    /// share, and no pool.
    #[arg(long, value_name = "lookup[:K]|model:DIR[:K]")]
    draft: Option<Draft>,
    /// Tokens that a pass is expected to keep on average, between 1 and K + 1. With --preprocess correlations are
    /// made for as many passes as that takes; passes beyond that make their own on the spot, with several times
    /// the flows, and fewer passes leave some over: say rather too little.
    #[arg(long, value_name = "R", requires = "draft", default_value_t = DEFAULT_RATE)]
    draft_rate: f64,
    /// Let the server learn less: a pass keeps the number of tokens that --draft-rate says for it, if so many are
    /// right, and one otherwise. That is a bit for each pass that may keep several, and no word of the others. The
    /// rate is then also how fast the text can be at most: K + 1 means all or one.
    #[arg(long, requires = "draft")]
    draft_steady: bool,
}

impl DraftArgs {
    /// The guesses, if there are any.
    pub(super) fn draft(&self) -> Option<Draft> {
        self.draft.clone().map(|draft| draft.rate(self.draft_rate).steady(self.draft_steady))
    }
}

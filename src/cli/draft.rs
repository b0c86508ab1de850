//! Drafts: who guesses, and how much.

use std::fmt;
use std::str::FromStr;

use clap::Args;
use model::{DEFAULT_RATE, Drafts, Guess, Lookup, MAX_DRAFTED, ModelSpec, Next, Sampler, SmallModel};
use serde_json::Value;
use session::party::Limits;

use super::Error;
use super::files::open_model;

/// Guesses of a pass unless told otherwise.
const DEFAULT_GUESSES: usize = 4;

const _: () = assert!(DEFAULT_GUESSES <= MAX_DRAFTED);

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

/// Who guesses, and how many tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Draft {
    guesser: Guesser,
    tokens: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Guesser {
    Lookup,
    /// The model in this directory, or of this bundled name.
    Model(String),
}

impl FromStr for Draft {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |text: &str| {
            let tokens = text.parse().ok().filter(|tokens| (1..=MAX_DRAFTED).contains(tokens));
            tokens.ok_or_else(|| format!("a draft has 1 to {MAX_DRAFTED} tokens, not `{text}`"))
        };
        let (kind, rest) = text.split_once(':').map_or((text, None), |(kind, rest)| (kind, Some(rest)));
        let (guesser, tokens) = match (kind, rest) {
            ("lookup", None) => (Guesser::Lookup, DEFAULT_GUESSES),
            ("lookup", Some(tokens)) => (Guesser::Lookup, number(tokens)?),
            ("model", Some(rest)) if !rest.is_empty() => match rest.rsplit_once(':') {
                // A directory may have a colon in its name; a number after the last one is not part of it.
                Some((dir, tokens)) if !dir.is_empty() && tokens.bytes().all(|b| b.is_ascii_digit()) => {
                    (Guesser::Model(dir.to_owned()), number(tokens)?)
                }
                _ => (Guesser::Model(rest.to_owned()), DEFAULT_GUESSES),
            },
            _ => return Err("give `lookup`, `lookup:K`, `model:DIR` or `model:DIR:K`".into()),
        };
        Ok(Draft { guesser, tokens })
    }
}

impl fmt::Display for Draft {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match &self.guesser {
            Guesser::Lookup => write!(f, "lookup:{}", self.tokens),
            Guesser::Model(dir) => write!(f, "model:{dir}:{}", self.tokens),
        }
    }
}

impl DraftArgs {
    /// What the parties agree on.
    pub(super) fn drafts(&self) -> Result<Option<Drafts>, Error> {
        let Some(draft) = &self.draft else { return Ok(None) };
        // The default suits any number of guesses.
        let drafts = Drafts::new(draft.tokens, self.draft_rate)?;
        Ok(Some(if self.draft_steady { drafts.steady() } else { drafts }))
    }

    /// Refuses a draft beside `pool`.
    pub(super) fn check_pool(&self, pool: bool) -> Result<(), Error> {
        if pool && self.draft.is_some() { Err(session::Error::DraftPool.into()) } else { Ok(()) }
    }

    /// Who guesses for a model of the shape `target`, if anybody does.
    pub(super) fn guess(&self, target: &ModelSpec) -> Result<Option<Box<dyn Guess>>, Error> {
        let Some(draft) = &self.draft else { return Ok(None) };
        Ok(Some(match &draft.guesser {
            Guesser::Lookup => Box::new(Lookup),
            Guesser::Model(name) => Box::new(SmallModel::new(&open_model(name)?, target)?),
        }))
    }

    /// What a report says of it.
    pub(super) fn reported(&self) -> impl Iterator<Item = (&'static str, Value)> {
        let draft = self
            .draft
            .as_ref()
            .map(|draft| [("draft", draft.to_string().into()), ("draft_rate", self.draft_rate.into())]);
        let steady = self.draft_steady.then(|| ("draft_steady", true.into()));
        draft.into_iter().flatten().chain(steady)
    }
}

/// What picks tokens: `sampler`, with guesses if there are some.
pub(super) fn next<'a>(sampler: &'a mut Sampler, guess: &'a mut Option<Box<dyn Guess>>) -> Next<'a> {
    match guess {
        Some(guess) => Next::Drafted { sampler, guess: &mut **guess },
        None => Next::Pick(sampler),
    }
}

/// The most guesses in a pass that a server allows.
#[derive(Args, Clone, Debug)]
pub(super) struct DraftLimitArgs {
    /// Most guesses in a pass of a client that drafts (`generate --draft`); 0 refuses drafts. The client learns
    /// logits after wrong guesses too, which count for --max-reveals.
    #[arg(long, value_name = "K", default_value_t = Limits::default().drafted)]
    pub(super) max_draft: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_draft_has_one_text() {
        let lookup = |tokens| Draft { guesser: Guesser::Lookup, tokens };
        let model = |dir: &str, tokens| Draft { guesser: Guesser::Model(dir.into()), tokens };
        for (text, draft) in [
            ("lookup", lookup(4)),
            ("lookup:8", lookup(8)),
            ("model:a/b", model("a/b", 4)),
            ("model:a/b:2", model("a/b", 2)),
            ("model:c:/dir", model("c:/dir", 4)),
            ("model:x:y:64", model("x:y", 64)),
        ] {
            assert_eq!(text.parse(), Ok(draft.clone()), "{text}");
            assert_eq!(draft.to_string().parse(), Ok(draft));
        }
        for text in ["", "look", "lookup:", "lookup:0", "lookup:65", "lookup:x", "model", "model:", "model:a:0"] {
            assert!(text.parse::<Draft>().is_err(), "{text}");
        }
    }
}

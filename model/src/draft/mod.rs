//! Draft and verify: the client guesses the next tokens, and one pass through the model checks all of them.
//!
//! A pass over one token costs nearly as many flows as a pass over several. So with a draft a pass reads the last
//! token and `k` guesses after it, and computes the model's prediction after each of these tokens. The client keeps
//! the token that the sampler picks after the last token. As long as a guess is the token that was picked, the client
//! also keeps the pick after this guess. Tokens that were read beyond that are cut from the cache
//! ([`waggle_mpcache::KvCache::roll_back`]). Every kept token is the sampler's pick on the logits of its own
//! position, so the text is that of a generation without drafts, and a seeded sampler draws the same numbers.
//!
//! Every pass has the same number of guesses, and the server learns nothing about them: if the client has fewer, the
//! rest is filled up. Only at the end of the text are passes shorter, so that no position beyond it is read. The
//! server learns how many tokens each pass keeps. These numbers tell up to log2(k + 1) bits a pass, and the server
//! may choose its weights so that these bits mean something. A [steady](Drafts::steady) draft says less: a pass keeps
//! a number of tokens that was fixed before, or one token. If more tokens are right, the client keeps these to
//! itself, and they are read again as guesses. The client also learns logits (or the most probable tokens) after
//! wrong guesses. These answer queries of its own choice: in each pass up to `k` more than without a draft. A server
//! therefore agrees to a draft (`Limits::drafted`), and counts the positions of guesses, too.

mod lookup;
mod small;

use serde::{Deserialize, Serialize};

pub use lookup::PromptLookup;
pub use small::SmallModel;

use crate::Error;

/// The largest number of tokens that are guessed for a pass.
pub const MAX_DRAFTED: usize = 64;

/// The stored rate is [`Drafts::rate`] times this number.
const THOUSAND: u32 = 1000;

/// The number of tokens that a pass is expected to keep, by default. It is less than a pass keeps on most texts if
/// guesses are looked up, so that rather too many passes are prepared: a pass without preparation takes several times
/// the flows, and a prepared pass that is not needed takes none.
pub const DEFAULT_RATE: f64 = 1.25;

/// The drafts that both parties agree on: public.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Stated")]
pub struct Drafts {
    tokens: u32,
    /// The expected number of tokens that a pass keeps, in thousandths.
    rate: u32,
    steady: bool,
}

/// Drafts as they are deserialised, before they are checked.
#[derive(Deserialize)]
struct Stated {
    tokens: u32,
    rate: u32,
    steady: bool,
}

impl TryFrom<Stated> for Drafts {
    type Error = Error;

    fn try_from(Stated { tokens, rate, steady }: Stated) -> Result<Self, Error> {
        Ok(Drafts { steady, ..Drafts::new(tokens as usize, f64::from(rate) / f64::from(THOUSAND))? })
    }
}

impl Drafts {
    /// Drafts of `tokens` guesses in a pass. Correlations are prepared for as many passes as a text takes if each
    /// pass keeps `rate` tokens on average. A session in one phase does not use the rate.
    ///
    /// # Errors
    /// [`Error::Draft`] if there are none or more than [`MAX_DRAFTED`] guesses; [`Error::DraftRate`] if the rate is
    /// not between 1 and `tokens` + 1.
    pub fn new(tokens: usize, rate: f64) -> Result<Self, Error> {
        if !(1..=MAX_DRAFTED).contains(&tokens) {
            return Err(Error::Draft { got: tokens, limit: MAX_DRAFTED });
        }
        let most = 1 + tokens;
        if !(rate >= 1.0 && rate <= most as f64) {
            return Err(Error::DraftRate { rate, most });
        }
        // Both are small: checked above.
        Ok(Drafts { tokens: tokens as u32, rate: (rate * f64::from(THOUSAND)).round() as u32, steady: false })
    }

    /// Guesses in a pass.
    pub fn tokens(self) -> usize {
        self.tokens as usize
    }

    /// Tokens that a pass is expected to keep, on average.
    pub fn rate(self) -> f64 {
        f64::from(self.rate) / f64::from(THOUSAND)
    }

    /// The same drafts, made steady: a pass keeps the number of tokens that the rate schedules if all of these are
    /// right, and otherwise one. A pass that may keep several tokens tells the server one bit; other passes tell it
    /// nothing.
    pub fn steady(self) -> Self {
        Drafts { steady: true, ..self }
    }

    /// The numbers of tokens that the passes of steady drafts may keep instead of one. `None` unless the drafts are
    /// steady.
    pub fn schedule(self) -> Option<Passes> {
        self.steady.then(|| self.expected())
    }

    /// The number of tokens that each pass keeps if all goes as expected.
    pub fn expected(self) -> Passes {
        let after = move |passes: u64| passes * u64::from(self.rate) / u64::from(THOUSAND);
        Passes(Box::new((0..).map(move |pass| (after(pass + 1) - after(pass)) as usize)))
    }

    /// The largest number of positions that a generation of `tokens` tokens can show the client. It is reached if
    /// each pass keeps one token.
    pub fn positions(drafts: Option<Self>, tokens: usize) -> u64 {
        let later = (tokens as u64).saturating_sub(1);
        let most = drafts.map_or(0, |drafts| u64::from(drafts.tokens));
        // A pass with n tokens to come guesses n - 1 of them, or the largest number allowed.
        let short = later.min(most + 1);
        let guessed = short.saturating_sub(1) * short / 2;
        let rest = (later - short).saturating_mul(most);
        (tokens as u64).saturating_add(guessed).saturating_add(rest)
    }
}

/// The numbers of tokens that passes keep, pass by pass.
pub struct Passes(Box<dyn Iterator<Item = usize>>);

impl Passes {
    /// The numbers of tokens that passes keep if all goes as `draft` expects; without a draft, one token a pass.
    pub fn expected(draft: Option<Drafts>) -> Self {
        draft.map_or_else(|| Passes::of(Vec::new()), Drafts::expected)
    }

    /// The numbers `kept`, and then one token in each later pass.
    pub fn of(kept: Vec<usize>) -> Self {
        Passes(Box::new(kept.into_iter().chain(std::iter::repeat(1))))
    }

    /// The number of tokens that the next pass keeps, at most `most`.
    pub fn next(&mut self, most: usize) -> usize {
        self.0.next().map_or(1, |kept| kept.clamp(1, most))
    }
}

/// Guesses how a text goes on. Only the client has a guesser.
pub trait Guess {
    /// Guesses of the next `count` tokens after `text`, which is the prompt and what was generated so far. There may
    /// be fewer guesses.
    ///
    /// # Errors
    /// The errors of computing the guesses.
    fn guess(&mut self, text: &[u32], count: usize) -> Result<Vec<u32>, Error>;
}

/// Exactly `count` guesses after `text`: those of `guess`, filled up with the last token. For filling up, any token
/// will do.
pub(crate) fn filled(guess: Option<&mut dyn Guess>, text: &[u32], count: usize) -> Result<Vec<u32>, Error> {
    let mut guesses = match guess {
        Some(guess) if count > 0 => guess.guess(text, count)?,
        _ => Vec::new(),
    };
    let last = guesses.last().or(text.last()).copied().unwrap_or_default();
    guesses.resize(count, last);
    Ok(guesses)
}

/// The tokens that a pass gives. The token after the first i guesses is `pick(i)`. The tokens go on as long as the
/// guesses were right and no token `ends` the text.
pub(crate) fn accepted(guesses: &[u32], ends: impl Fn(u32) -> bool, mut pick: impl FnMut(usize) -> u32) -> Vec<u32> {
    let mut kept = Vec::with_capacity(1 + guesses.len());
    loop {
        let token = pick(kept.len());
        let right = guesses.get(kept.len()) == Some(&token);
        kept.push(token);
        if !right || ends(token) {
            return kept;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn numbers_that_make_no_sense_are_refused() {
        assert!(matches!(Drafts::new(0, 1.0), Err(Error::Draft { got: 0, limit: MAX_DRAFTED })));
        assert!(matches!(Drafts::new(65, 1.0), Err(Error::Draft { got: 65, .. })));
        for rate in [0.0, 0.99, 5.1, f64::NAN, f64::INFINITY] {
            assert!(matches!(Drafts::new(4, rate), Err(Error::DraftRate { most: 5, .. })), "{rate}");
        }
        assert_eq!(Drafts::new(4, 5.0).map(|drafts| (drafts.tokens(), drafts.rate())).ok(), Some((4, 5.0)));
    }

    #[test]
    fn drafts_that_are_stated_are_checked() {
        for drafts in [Drafts::new(1, 2.0).unwrap(), Drafts::new(64, 1.234).unwrap().steady()] {
            let stated = serde_json::to_string(&drafts).unwrap();
            assert_eq!(serde_json::from_str::<Drafts>(&stated).unwrap(), drafts);
        }
        for (tokens, rate) in [(0, 1), (0, 1000), (1, 0), (1, 999), (1, 2001), (65, 1000), (u32::MAX, u32::MAX)] {
            let stated = Stated { tokens, rate, steady: false };
            assert!(Drafts::try_from(stated).is_err(), "{tokens}, {rate}");
        }
    }

    proptest! {
        #[test]
        fn expected_passes_keep_the_rate(tokens in 1usize..9, share in 0.0f64..=1.0) {
            let rate = 1.0 + share * tokens as f64;
            let drafts = Drafts::new(tokens, rate).unwrap();
            let mut schedule = drafts.expected();
            let kept: Vec<usize> = (0..1000).map(|_| schedule.next(9)).collect();
            prop_assert!(kept.iter().all(|kept| (1..=1 + tokens).contains(kept)), "{:?}", kept);
            prop_assert!((kept.iter().sum::<usize>() as f64 - 1000.0 * drafts.rate()).abs() < 1.0);
        }

        #[test]
        fn positions_are_those_of_passes_that_keep_one_token(tokens in 0usize..40, drafted in 0usize..9) {
            let drafts = (drafted > 0).then(|| Drafts::new(drafted, 1.0).unwrap());
            // The prompt gives one token, and each further token takes a pass.
            let naive = (tokens.min(1) as u64)
                + (1..tokens).map(|made| 1 + drafted.min(tokens - made - 1) as u64).sum::<u64>();
            prop_assert_eq!(Drafts::positions(drafts, tokens), naive);
        }

        #[test]
        fn what_a_pass_keeps_is_what_single_passes_give(
            truth in prop::collection::vec(0u32..3, 9),
            guesses in prop::collection::vec(0u32..3, 0..8),
            end in 0u32..4,
        ) {
            let mut picks = Vec::new();
            let kept = accepted(&guesses, |token| token == end, |i| {
                picks.push(i);
                truth[i]
            });
            // Only positions whose tokens are kept are looked at, because a sampler draws random numbers for each.
            prop_assert_eq!(&picks, &(0..kept.len()).collect::<Vec<_>>());
            prop_assert_eq!(&kept[..], &truth[..kept.len()]);
            prop_assert_eq!(&kept[..kept.len() - 1], &guesses[..kept.len() - 1]);
            let last = kept[kept.len() - 1];
            prop_assert!(last == end || guesses.get(kept.len() - 1) != Some(&last));
            prop_assert!(!kept[..kept.len() - 1].contains(&end));
        }
    }

    #[test]
    fn guesses_are_filled_up() {
        struct Two;
        impl Guess for Two {
            fn guess(&mut self, _: &[u32], _: usize) -> Result<Vec<u32>, Error> {
                Ok(vec![7, 8])
            }
        }
        let two: &mut dyn Guess = &mut Two;
        assert_eq!(filled(Some(two), &[1], 4).unwrap(), [7, 8, 8, 8]);
        assert_eq!(filled(Some(&mut Two), &[1], 1).unwrap(), [7]);
        assert_eq!(filled(None, &[3, 1], 2).unwrap(), [1, 1]);
    }
}

//! `h2o`, `scissorhands`, `alisa` and `tova`: the tokens that received the least attention are evicted.
//!
//! A full store evicts obliviously. To evict one token, the slot of the least score is a hidden one-hot vector e, and
//! the oldest protected token moves into this slot: of the slots x and the row m of this token, x + e (m - e x) is
//! made, by one gather and one scatter. To evict a block, the best of the unprotected tokens are gathered. Either way
//! the slots lose their order, which attention does not need, and all rows are rewritten. A block of N tokens,
//! evicted every N steps, therefore costs about as much as one single token, evicted in each step ([`Schedule`]).
//!
//! **Beside the papers.** H2O adds up attention, and half of the tokens that it keeps are the latest; this is the
//! same here. TOVA protects no token; here the token of the query stays. Sums are rounded before they are compared
//! ([`Received`]). Of tokens with equal scores, an eviction of a block leaves the first, and an eviction of one token
//! drops the first. In `tova` many scores are equal, since a single query gives most tokens no attention. Two parties
//! whose store was shuffled ([`TopK::ShuffleReveal`]) draw one of these tokens. kvpress differs in `h2o`
//! (`bench/peers/README.md`): a token's score is a mean over the queries that see it, and nothing protects the latest
//! ones.
//!
//! **Windows.** With `window` a sum forgets: it covers the queries of the current window, which has at most so many,
//! and those of the window before it. Of a prompt only the last `window` queries count, so only these need
//! probabilities. `scissorhands` and `alisa` are `h2o` with windows of other lengths. Scissorhands (Liu et al., arXiv
//! 2305.17118) counts, over a history of queries, how often a token got less than the average, and drops the tokens
//! with the largest counts. A sum serves here, since a count would take a comparison in every step. ALISA (Zhao et
//! al., arXiv 2403.17312) adds up the attention of as many queries as tokens are protected, and may look at a dropped
//! token again. Here an evicted token is gone.
//!
//! **Public.** How many tokens are kept after each step. **Revealed.** Nothing; with [`TopK::ShuffleReveal`] what
//! that method's documentation says.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use waggle_engine::{Error, Origin, Ranking, Right, Select, Tensor, TopK};

use crate::attention::{self, Received};
use crate::eviction::{Rows, Scores};
use crate::schedule::Later;
use crate::{
    Facts, Granularity, HeadShape, NamedPolicy, Piece, Policy, PolicyError, PolicyFamily, PolicyOptions, Schedule,
    Store, UnknownValue, eviction,
};

/// The score by which tokens are evicted. The token with the least score goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EvictionScore {
    /// All attention that the token ever received, per key/value head. Half of the budget protects the latest tokens.
    /// H2O (Zhang et al., arXiv 2306.14048).
    Accumulated,
    /// The attention that the token receives from the latest query, summed over all heads of the layer. Only the
    /// token of this query is protected. TOVA (Oren et al., arXiv 2401.06104).
    Latest,
}

/// The queries whose attention counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Window {
    /// All.
    All,
    /// The latest: at least this many, and at most twice as many.
    Latest(usize),
    /// The latest: at least as many as half of the budget, and at most twice as many.
    Protected,
}

/// Keeps a share of all tokens seen, or a number of tokens, and evicts those that received the least attention.
///
/// The parties learn how many tokens are kept. With [`TopK::ShuffleReveal`] they also learn what that method's
/// documentation says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rolling {
    /// The budget, out of all tokens seen, and when the other tokens are evicted.
    pub schedule: Schedule,
    /// The score by which tokens are evicted.
    pub score: EvictionScore,
    /// The queries that give [`EvictionScore::Accumulated`] attention.
    pub window: Window,
    /// The method that finds the least score.
    pub top_k: TopK,
}

impl PolicyFamily for Rolling {
    const POLICIES: &'static [NamedPolicy<Self>] = &[
        NamedPolicy {
            name: "h2o",
            keys: KEYS,
            about: "H2O: evicts what received the least attention so far",
            read: |options| read(options, EvictionScore::Accumulated, Window::All),
        },
        NamedPolicy {
            name: "scissorhands",
            keys: WINDOW_KEYS,
            about: "Scissorhands: as h2o, by a history of queries",
            read: |options| read(options, EvictionScore::Accumulated, Window::Latest(SCISSORHANDS_WINDOW)),
        },
        NamedPolicy {
            name: "alisa",
            keys: WINDOW_KEYS,
            about: "ALISA: as h2o, by as many queries as tokens are protected",
            read: |options| read(options, EvictionScore::Accumulated, Window::Protected),
        },
        NamedPolicy {
            name: "tova",
            keys: KEYS,
            about: "TOVA: evicts what the latest query attends to least",
            read: |options| read(options, EvictionScore::Latest, Window::All),
        },
    ];

    fn facts(&self) -> Facts {
        let side_by_side = self.score == EvictionScore::Accumulated;
        Facts { side_by_side, ..Facts::selecting("how many tokens are kept", self.top_k) }
    }

    fn build<E: Select>(&self, layers: usize, _shape: HeadShape) -> Box<dyn Policy<E>> {
        Box::new(Evicting::<E> { settings: *self, layers: (0..layers).map(|_| None).collect() })
    }
}

const KEYS: &[&str] = &["budget", "block", "guard", "topk"];
const WINDOW_KEYS: &[&str] = &["budget", "block", "guard", "window", "topk"];

/// The default window of `scissorhands`.
const SCISSORHANDS_WINDOW: usize = 128;

fn read(options: &mut PolicyOptions, score: EvictionScore, window: Window) -> Result<Rolling, PolicyError> {
    let schedule = Schedule::read(options, Later::Always)?;
    let window = if options.lists("window") { options.value("window", window)? } else { window };
    Ok(Rolling { schedule, score, window, top_k: options.top_k(TopK::Rank)? })
}

impl fmt::Display for Window {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Window::All => f.write_str("all"),
            Window::Latest(queries) => queries.fmt(f),
            Window::Protected => f.write_str("protected"),
        }
    }
}

impl FromStr for Window {
    type Err = UnknownValue;

    fn from_str(text: &str) -> Result<Self, UnknownValue> {
        let number = || text.parse().ok().filter(|n| (1..1 << 20).contains(n)).map(Window::Latest);
        let named = || [Window::All, Window::Protected].into_iter().find(|window| window.to_string() == text);
        number().or_else(named).ok_or_else(|| UnknownValue::new("a number of queries from 1, protected or all"))
    }
}

/// The policy of one generation.
struct Evicting<E: Select> {
    settings: Rolling,
    /// By layer, what every kept token received so far; only with [`EvictionScore::Accumulated`].
    layers: Vec<Option<Sums<E::Tensor>>>,
}

/// The attention that tokens received.
#[derive(Clone)]
struct Sums<T> {
    scores: Scores<T>,
    /// The number of queries in the current window.
    queries: usize,
}

impl EvictionScore {
    fn select(self) -> Granularity {
        match self {
            EvictionScore::Accumulated => Granularity::PerKv,
            EvictionScore::Latest => Granularity::PerLayer,
        }
    }

    /// The number of protected tokens among `keep` tokens. They are the latest.
    fn protected(self, keep: usize) -> usize {
        match self {
            EvictionScore::Accumulated => (keep / 2).max(1),
            EvictionScore::Latest => 1,
        }
    }
}

impl<E: Select> Policy<E> for Evicting<E> {
    fn fork(&self) -> Option<Box<dyn Policy<E>>> {
        Some(Box::new(Evicting { layers: self.layers.clone(), ..*self }))
    }

    fn observation_window(&self, _layer: usize, piece: Piece) -> usize {
        match self.settings.score {
            EvictionScore::Accumulated => self.settings.counted(piece),
            EvictionScore::Latest => 0,
        }
    }

    fn layer_class(&self, _layer: usize) -> usize {
        0
    }

    fn attend(
        &mut self,
        engine: &mut E,
        layer: usize,
        q: &E::Tensor,
        store: &mut Store<E>,
    ) -> Result<E::Tensor, Error> {
        let (piece, shape) = (store.piece(), store.heads());
        let Rolling { schedule, score, .. } = self.settings;
        let reading = piece.in_prompt() && !piece.ends_prompt();
        let counted = if score == EvictionScore::Latest { 1 } else { self.settings.counted(piece) };
        if reading && (score == EvictionScore::Latest || counted == 0) {
            return attention::attend(engine, q, store);
        }
        let attended = attention::weighted(engine, q, store)?;
        let (before, queries) = match self.layers[layer].take() {
            Some(Sums { scores, queries }) if queries + counted > self.settings.queries(piece) => {
                (Some(scores.begin_window(engine)), 0)
            }
            Some(Sums { scores, queries }) => (Some(scores), queries),
            None => (None, 0),
        };
        let queries = queries + counted;
        let p = attended.probabilities();
        let mut scores = eviction::accumulate(engine, before, p, counted, score.select(), shape)?;
        if reading {
            self.layers[layer] = Some(Sums { scores, queries });
            return Ok(attended.output);
        }
        let budget = schedule.budget_of(store.seen());
        let most = schedule.stay(budget);
        let summed = queries + scores.earlier.as_ref().map_or(0, |_| self.settings.queries(piece));
        let size = Received::new(engine, summed, score.select(), shape)?;
        engine.scope("eviction", |engine| {
            let held = store.len();
            if let Some(left) = schedule.left(most, held) {
                let rows = Rows::divide(store, schedule.guarded(budget), left, score.protected(left));
                scores = scores.map(|scores| rows.follow(scores, 1));
                scores = match left + 1 == held {
                    true => self.settings.evict(engine, size, &rows, &scores, store)?,
                    false => self.settings.shrink(engine, size, rows, &scores, store)?,
                };
            }
            Ok(())
        })?;
        if score == EvictionScore::Accumulated {
            self.layers[layer] = Some(Sums { scores, queries });
        }
        Ok(attended.output)
    }
}

impl Rolling {
    /// The largest number of queries in a window.
    fn queries(&self, piece: Piece) -> usize {
        match self.window {
            Window::All => usize::MAX,
            Window::Latest(queries) => queries,
            Window::Protected => self.score.protected(self.schedule.budget_of(piece.prompt)),
        }
    }

    /// The number of queries of `piece` that count, the last ones.
    fn counted(&self, piece: Piece) -> usize {
        let queries = self.queries(piece);
        if piece.in_prompt() { piece.among_last(queries) } else { piece.new.min(queries) }
    }

    /// The ranking that finds the `k` largest of the `known` scores, which are sums of attention bounded by `size`.
    fn ranking<T>(&self, k: usize, size: Received, known: &Scores<T>) -> Ranking {
        eviction::by_attention(k, self.top_k, Received { ceiling: known.ceiling, ..size })
    }

    /// Evicts all candidates but the best at once.
    fn shrink<E: Select>(
        &self,
        engine: &mut E,
        size: Received,
        rows: Rows,
        known: &Scores<E::Tensor>,
        store: &mut Store<E>,
    ) -> Result<Scores<E::Tensor>, Error> {
        if rows.stay == 0 {
            rows.keep_no_candidate(store);
            return Ok(rows.spare(known));
        }
        let scores = known.total(engine)?.slice(1, rows.candidates.clone());
        let best = engine.top_k(&scores, &self.ranking(rows.stay, size, known))?;
        eviction::keep_scored(engine, store, &best, rows.candidates, known, size.magnitude, self.score.select())
    }

    /// Evicts the candidate with the least score. The oldest of the latest tokens takes its slot.
    fn evict<E: Select>(
        &self,
        engine: &mut E,
        size: Received,
        rows: &Rows,
        known: &Scores<E::Tensor>,
        store: &mut Store<E>,
    ) -> Result<Scores<E::Tensor>, Error> {
        let (tokens, kv_heads) = (store.len(), store.heads().kv_heads);
        let Range { start, end: old } = rows.candidates;
        let magnitude = eviction::scored_magnitude(size.magnitude);
        let payload = |store: &Store<E>, range| eviction::scored_payload(store, known, self.score.select(), range);
        let scores = known.total(engine)?.slice(1, start..old);
        let negative = engine.negate(&scores)?;
        let least = engine.top_k(&negative, &self.ranking(1, size, known))?;
        let candidates = payload(store, start..old);
        let leaving = engine.gather(&least, Right::Fresh(&candidates), magnitude)?;
        let leaving = engine.negate(&leaving)?;
        let change = engine.add(&leaving, &payload(store, old..old + 1))?;
        let change = engine.scatter(&least, &change, magnitude + 1)?;
        let changed = engine.add(&candidates, &change)?;
        if let Some(rows) = engine.chosen(&least) {
            store.record_kept(|head| {
                let slot = start + rows[head.min(rows.len() - 1)][0];
                (0..old).map(|i| if i == slot { old } else { i }).chain(old + 1..tokens).collect()
            });
        }
        // The slots before the old token, and those after it.
        let all = eviction::replaced(&payload(store, 0..tokens), 1, start..old + 1, &changed);
        let (pairs, scores) = eviction::parted(&all, known);
        store.replace_by_head(&Granularity::unpack(&pairs, kv_heads));
        // A score is the old score of the slot plus what the scatter added.
        let added = engine.ceiling(Origin::Moved { magnitude: magnitude + 1 })?;
        Ok(Scores { ceiling: known.ceiling.plus(added), ..scores })
    }
}

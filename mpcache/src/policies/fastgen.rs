//! `fastgen`: every head keeps the tokens that its attention to the prompt asks for. FastGen (Ge et al., arXiv
//! 2310.01801).
//!
//! At the end of the prompt each key/value head takes the first of four profiles that recovers the share `recovery`
//! of its attention, on average over all queries of the prompt. The profiles are: the first tokens; the first tokens
//! and the *frequent* ones, which received the most attention; the first, the frequent and the latest tokens; all
//! tokens. The frequent tokens and the latest take half of the budget each. Sums of attention go on while text is
//! generated, and after each token a head drops what its profile no longer contains.
//!
//! **What is left out.** The authors also keep punctuation. A policy sees no words, so it cannot do this.
//!
//! **In the clear only.** Which tokens a head keeps, and so how many, follows from the prompt. Two parties could hide
//! these numbers only if all heads held as many tokens as the largest, which is the full cache. `duo` instead chooses
//! once for a model.

use waggle_engine::{Error, Select, Tensor};

use super::{DEFAULT_BUDGET, DEFAULT_SINKS};
use crate::attention::{self, Attended};
use crate::schedule::{guard, guarded};
use crate::{Facts, HeadShape, NamedPolicy, Piece, Policy, PolicyFamily, Store, budget};

/// The share of the attention to recover, by default: the authors' number.
const DEFAULT_RECOVERY: f64 = 0.95;

/// Gives every head a profile of its own, by its attention to the prompt. Only engines that see their values run it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FastGen {
    /// Share of all tokens seen that a head keeps, besides the first tokens, if it keeps both the frequent tokens and
    /// the latest: half of the share each. With 1 all heads keep everything.
    pub budget: f64,
    /// Share of the prompt's attention that the kept tokens must have received.
    pub recovery: f64,
    /// Tokens that are spared at each end of the prompt in addition to the budget, as a share of it.
    pub guard: f64,
    /// Tokens at the start of the text, which every head keeps.
    pub sinks: usize,
}

impl PolicyFamily for FastGen {
    const POLICIES: &'static [NamedPolicy<Self>] = &[NamedPolicy {
        name: "fastgen",
        keys: &["budget", "recovery", "guard", "sinks"],
        about: "FastGen: what each head needs, by the prompt; only where values are seen",
        read: |options| {
            Ok(FastGen {
                budget: options.fraction("budget", DEFAULT_BUDGET)?,
                recovery: options.fraction("recovery", DEFAULT_RECOVERY)?,
                guard: guard(options)?,
                sinks: options.number("sinks", 0, DEFAULT_SINKS)?,
            })
        },
    }];

    fn facts(&self) -> Facts {
        Facts::in_the_clear()
    }

    fn build<E: Select>(&self, layers: usize, shape: HeadShape) -> Box<dyn Policy<E>> {
        Box::new(Profiled { settings: *self, layers: vec![vec![Head::default(); shape.kv_heads]; layers] })
    }
}

/// The tokens that a head keeps besides the first ones and the newest one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Profile {
    Nothing,
    Frequent,
    FrequentAndLatest,
    Everything,
}

/// The state of a key/value head.
#[derive(Clone, Debug, Default)]
struct Head {
    /// By row, the attention that the row received so far.
    received: Vec<f64>,
    /// The probabilities of the queries of the prompt, until the head has its profile.
    queries: Vec<Vec<f32>>,
    kept: Option<Profile>,
}

/// The policy of one generation.
struct Profiled {
    settings: FastGen,
    /// The states, by layer and then by key/value head.
    layers: Vec<Vec<Head>>,
}

impl FastGen {
    /// Half of the budget for `tokens` tokens: the number of frequent tokens, and also of latest ones.
    fn half(&self, tokens: usize) -> usize {
        (self.budget / 2.0 * tokens as f64).round() as usize
    }

    /// The rows of `received` that a head with the profile `kept` keeps when it has seen `tokens` tokens. The first
    /// `first` of them always stay.
    fn rows(&self, kept: Profile, received: &[f64], tokens: usize, first: usize) -> Vec<usize> {
        let (held, half) = (received.len(), self.half(tokens));
        let latest = match kept {
            Profile::Everything => return (0..held).collect(),
            Profile::FrequentAndLatest => half.max(1),
            Profile::Nothing | Profile::Frequent => 1,
        };
        let rest = first.min(held)..held.saturating_sub(latest);
        let mut order: Vec<usize> = rest.clone().collect();
        order.sort_by(|a, b| received[*b].total_cmp(&received[*a]));
        order.truncate(if kept == Profile::Nothing { 0 } else { half });
        (0..held).filter(|row| !rest.contains(row) || order.contains(row)).collect()
    }

    /// The profile of a head, from the probabilities of the prompt's queries in `head`.
    fn choose(&self, head: &Head) -> Profile {
        if self.budget == 1.0 {
            return Profile::Everything;
        }
        let tokens = head.received.len();
        let recovers = |kept: Profile| {
            let mut stays = vec![false; tokens];
            // The latest tokens differ from query to query.
            let far = if kept == Profile::FrequentAndLatest { Profile::Frequent } else { kept };
            self.rows(far, &head.received, tokens, self.sinks).into_iter().for_each(|row| stays[row] = true);
            let latest = if kept == Profile::FrequentAndLatest { self.half(tokens).max(1) } else { 1 };
            let seen = |query: &Vec<f32>| -> f64 {
                let recent = query.len().saturating_sub(latest);
                let sees = |(row, p): (usize, &f32)| if stays[row] || row >= recent { f64::from(*p) } else { 0.0 };
                query.iter().enumerate().map(sees).sum()
            };
            head.queries.iter().map(seen).sum::<f64>() >= self.recovery * head.queries.len() as f64
        };
        let cheapest = [Profile::Nothing, Profile::Frequent, Profile::FrequentAndLatest]
            .into_iter()
            .find(|kept| recovers(*kept));
        cheapest.unwrap_or(Profile::Everything)
    }
}

impl Head {
    /// Adds to each of the `rows` rows the attention that it received from the queries of `p` (queries, rows). `p`
    /// has `each` queries of the first query head of the group, then as many of the next one. The last query of a
    /// head sees all rows, and each query before it one row less. Until the head has its profile, the probabilities
    /// are kept as well.
    fn watch(&mut self, p: &[f32], rows: usize, each: usize) {
        self.received.resize(rows, 0.0);
        for (query, p) in p.chunks(rows).enumerate() {
            let p = &p[..rows - each + 1 + query % each];
            self.received.iter_mut().zip(p).for_each(|(sum, p)| *sum += f64::from(*p));
            if self.kept.is_none() {
                self.queries.push(p.to_vec());
            }
        }
    }
}

impl<E: Select> Policy<E> for Profiled {
    fn observation_window(&self, _layer: usize, piece: Piece) -> usize {
        if piece.in_prompt() { piece.new } else { 0 }
    }

    fn parts(&self, _layer: usize, shape: HeadShape) -> Vec<Vec<usize>> {
        (0..shape.kv_heads).map(|head| vec![head]).collect()
    }

    fn attend(
        &mut self,
        engine: &mut E,
        layer: usize,
        q: &E::Tensor,
        store: &mut Store<E>,
    ) -> Result<E::Tensor, Error> {
        let hidden = Error::NotInTheClear { operation: "the policy `fastgen`" };
        if !E::CLEAR {
            return Err(hidden);
        }
        let Attended { output, by_part } = attention::weighted(engine, q, store)?;
        let (piece, shape) = (store.piece(), store.heads());
        for (part, p) in by_part.iter().enumerate() {
            let (queries, rows) = (p.shape()[1], p.shape()[2]);
            let Some(p) = engine.reveal(p)? else { return Err(hidden) };
            let head = &mut self.layers[layer][part];
            head.watch(&p.into_iter().collect::<Vec<f32>>(), rows, queries / shape.group());
            if piece.in_prompt() && !piece.ends_prompt() {
                continue;
            }
            let kept = head.kept.unwrap_or_else(|| self.settings.choose(head));
            head.kept = Some(kept);
            head.queries.clear();
            let guard = guarded(self.settings.guard, budget(self.settings.budget, piece.prompt));
            if let Some(order) = store.guard(part, guard) {
                head.received = order.iter().map(|row| head.received[*row]).collect();
            }
            let (guarded, each) = store.guarded(part);
            let first = guarded + self.settings.sinks.saturating_sub(each);
            let rows = self.settings.rows(kept, &head.received, piece.end, first);
            if rows.len() < head.received.len() {
                head.received = rows.iter().map(|row| head.received[*row]).collect();
                store.keep_rows(part, &rows);
            }
        }
        Ok(output)
    }
}

#[cfg(test)]
mod tests {
    use ndarray::ArrayD;
    use waggle_engine::Float;

    use crate::{HeadShape, KvCache, Layers, PolicySpec};

    /// Four heads: one looks at the first token, one at a token far back, one at the token before, and one at all
    /// tokens alike.
    #[test]
    fn every_head_keeps_what_it_looks_at() {
        const PROMPT: usize = 20;
        let shape = HeadShape { heads: 4, kv_heads: 4, head_dim: PROMPT + 1 };
        let spec: PolicySpec = "fastgen:budget=0.2,sinks=2".parse().unwrap();
        let mut cache = KvCache::<Float>::new(&Layers::global(1, shape), &spec);
        let d = shape.head_dim;
        let looks = |head: usize, at: usize| match head {
            0 => Some(0),
            1 => Some(7.min(at)),
            2 => Some(at.max(1) - 1),
            _ => None,
        };
        let mut pass = |tokens: std::ops::Range<usize>| {
            let (first, new) = (tokens.start, tokens.len());
            // The key of a token is the unit vector of its position.
            let rows = ArrayD::from_shape_fn(vec![new, 4 * d], |at| f32::from(at[1] % d == first + at[0]));
            let q = ArrayD::from_shape_fn(vec![4, new, d], |at| {
                if looks(at[0], first + at[1]) == Some(at[2]) { 30.0 } else { 0.0 }
            });
            cache.attend(&mut Float::default(), 0, &q, &rows, &rows).unwrap();
            cache.attended(0).unwrap().to_vec()
        };
        // Every query of the prompt sees the prompt whole.
        assert!(pass(0..PROMPT).iter().all(|seen| seen.len() == PROMPT));
        let seen = pass(PROMPT..PROMPT + 1);
        assert_eq!(seen[0], [0, 1, 19, 20]);
        // The head keeps two frequent tokens beside the first two and the newest.
        assert!(seen[1].contains(&7) && seen[1].len() == 6, "{seen:?}");
        // The latest two tokens are 18 and 19, and two more received the most attention.
        assert!(seen[2].ends_with(&[18, 19, 20]) && seen[2].len() == 7, "{seen:?}");
        assert_eq!(seen[3], (0..PROMPT + 1).collect::<Vec<_>>());
    }
}

//! A cache policy of another crate, which becomes known by name like all other policies.
//! [`Cargo.toml`](../../Cargo.toml) can be copied as well.
//!
//! `value-aware` evicts at the end of the prompt, as SnapKV does, but multiplies the attention that a token received
//! from the latest queries by the size of the token's value: VATP (Guo et al., arXiv 2406.12335). Attention to a
//! token with a small value changes little.
//!
//! ```text
//! cargo run --release -p outside --bin policy                                         # on every engine, see `show`
//! cargo run --release -p outside --bin policy -- demo --policy value-aware:budget=0.3 --tokens 20 --check
//! cargo run --release -p outside --bin policy -- policies
//! ```
//!
//! With arguments the program is `waggle` with one more policy. Both parties of a session need the policy, so both
//! `serve` and `generate` must be run by this program.

use std::process::ExitCode;

use waggle::engine::{Ceiling, Error, Ranking, Select, Tensor, TopK};
use waggle::mpcache::Granularity::PerKv;
use waggle::mpcache::{
    Facts, HeadShape, NamedPolicy, Piece, Policy, PolicyFamily, Store, attention, budget,
    eviction::{self, Rows},
};
use waggle::{Cores, Local, LocalOptions, Network, Plan, Request, Study, Terms, register_policy};

/// The settings of the policy.
#[derive(Clone, Copy, Debug)]
struct ValueAware {
    /// Share of the prompt that is kept.
    budget: f64,
    /// The number of latest queries of the prompt that vote. Their own tokens stay.
    window: usize,
}

// ANCHOR: family
impl PolicyFamily for ValueAware {
    const POLICIES: &'static [NamedPolicy<Self>] = &[NamedPolicy {
        name: "value-aware",
        keys: &["budget", "window"],
        about: "VATP: the latest queries vote, and large values count more",
        read: |options| {
            Ok(ValueAware { budget: options.fraction("budget", 0.25)?, window: options.number("window", 1, 16)? })
        },
    }];
    // ANCHOR_END: family

    fn facts(&self) -> Facts {
        // Tokens after the prompt are neither evicted nor remembered.
        Facts { can_roll_back: true, ..Facts::shows("how many tokens are kept") }
    }

    fn build<E: Select>(&self, layers: usize, _shape: HeadShape) -> Box<dyn Policy<E>> {
        Box::new(Voting::<E> { settings: *self, votes: (0..layers).map(|_| None).collect() })
    }
}

/// The policy of one generation.
struct Voting<E: Select> {
    settings: ValueAware,
    /// For each layer, the attention that tokens have received so far, (kv_heads, tokens). It is kept because a long
    /// prompt comes in pieces.
    votes: Vec<Option<E::Tensor>>,
}

/// log2 of a bound on scores. A score is a sum of at most 16 * 4 probabilities (the default window, times the heads
/// that share a key), multiplied by the size of a value, whose entries add up to less than 2^10.
const MAGNITUDE: u32 = 16;

/// Fractional bits to which scores are rounded before they are compared.
const FRAC: u32 = 10;

impl<E: Select> Policy<E> for Voting<E> {
    fn observation_window(&self, _layer: usize, piece: Piece) -> usize {
        piece.among_last(self.settings.window)
    }

    fn layer_class(&self, _layer: usize) -> usize {
        0
    }

    // ANCHOR: attend
    fn attend(
        &mut self,
        engine: &mut E,
        layer: usize,
        q: &E::Tensor,
        store: &mut Store<E>,
    ) -> Result<E::Tensor, Error> {
        let attended = attention::weighted(engine, q, store)?;
        let piece = store.piece();
        let voters = piece.among_last(self.settings.window);
        if voters > 0 {
            engine.scope("eviction", |engine| {
                let received = attention::received(engine, attended.probabilities(), voters, PerKv, store.heads())?;
                let votes = attention::accumulate(engine, self.votes[layer].take(), received)?;
                if piece.ends_prompt() {
                    return self.evict(engine, &votes, store);
                }
                self.votes[layer] = Some(votes);
                Ok(())
            })?;
        }
        Ok(attended.output)
    }
    // ANCHOR_END: attend
}

impl<E: Select> Voting<E> {
    /// Evicts the tokens with the fewest `votes` (kv_heads, tokens). No party learns which tokens these are.
    fn evict(&self, engine: &mut E, votes: &E::Tensor, store: &mut Store<E>) -> Result<(), Error> {
        let keep = budget(self.settings.budget, store.len());
        // Neither end of the prompt is guarded.
        let rows = Rows::divide(store, 0, keep, self.settings.window);
        if rows.stay == 0 {
            rows.keep_no_candidate(store);
            return Ok(());
        }
        let sizes = engine.abs(&store.values_by_head().slice(1, rows.candidates.clone()))?;
        let sizes = engine.sum_last(&sizes)?;
        let scores = engine.mul(&votes.slice(1, rows.candidates.clone()), &sizes)?;
        // No ceiling is needed, because `rank` opens no comparison.
        let (k, method) = (rows.stay, TopK::Rank);
        let how = Ranking { k, method, magnitude: MAGNITUDE, ceiling: Ceiling::NONE, frac: FRAC, rounded: false };
        let chosen = eviction::choose(engine, &scores, &how)?;
        eviction::keep(engine, store, &chosen, rows.candidates, PerKv)
    }
}

/// The prompt. It is in the public domain and resembles what the bundled model writes.
const TEXT: &str = "First Citizen:\nBefore we proceed any further, hear me speak.\n\nAll:\nSpeak, speak.\n\nFirst \
    Citizen:\nYou are all resolved rather to die than to famish?\n\nAll:\nResolved. resolved.\n\nFirst Citizen:\n\
    First, you know Caius Marcius is chief enemy to the people.\n";

/// The model of `show`, and the numbers of tokens of the prompt and of the generated text.
const MODEL: &str = "shakespeare-gpt2";
const PROMPT: usize = 64;
const TOKENS: usize = 12;

/// Runs the policy on every engine: in the clear, as a plan, and between two parties. The tokens of the two parties
/// must equal those in the clear, and their traffic that of the plan.
fn show() -> Result<(), waggle::Error> {
    // The policy's loss of accuracy, compared with SnapKV.
    let policies = vec!["value-aware".parse()?, "snapkv".parse()?];
    let study = Study::default().model(MODEL).text(TEXT).policies(policies).budgets(vec![0.25]);
    println!("{}", study.context(120).prompt(88).sequences(2).run()?.table());

    // The policy's cost for two parties, from shapes alone.
    let full = Terms::default().cores(Cores::here());
    let terms = full.clone().policy("value-aware:budget=0.5".parse()?);
    let plan = Plan::of(MODEL).prompt(PROMPT).tokens(TOKENS).network(Network::Memory);
    let [pruned, full] = [terms.clone(), full].map(|terms| plan.clone().terms(terms).run());
    let (pruned, full) = (pruned?.bytes(), full?.bytes());
    println!("planned: {pruned} bytes, and {full} under `full`");

    // Then the run between two parties. The model reads characters as tokens.
    let local = Local::open(MODEL, LocalOptions::default().terms(terms))?;
    let mut written = local.generate(Request::after(&TEXT[..PROMPT]).tokens(TOKENS))?;
    println!("two parties: {} bytes for {:?}", written.report.bytes(), written.text());
    written.compare(MODEL)?;
    let agreement = written.report.check.map(|check| check.token_agreement);
    println!("in the clear: {:.0} % of the tokens are the same", 100.0 * agreement.unwrap_or_default());
    assert_eq!(agreement, Some(1.0), "two parties write what the model writes in the clear");
    assert_eq!(written.report.bytes(), pruned, "a session takes what was planned");
    Ok(())
}

fn main() -> ExitCode {
    waggle::init();
    let shown = match register_policy::<ValueAware>() {
        Ok(()) if std::env::args().len() > 1 => return waggle_cli::run(),
        Ok(()) => show().map_err(|error| waggle::describe(&error)),
        Err(error) => Err(error.to_string()),
    };
    match shown {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use waggle::PolicySpec;

    use super::*;

    #[test]
    fn a_registered_policy_runs_on_every_engine() {
        register_policy::<ValueAware>().unwrap();
        show().unwrap();
    }

    #[test]
    fn the_name_is_known_like_those_of_other_policies() {
        assert!(register_policy::<ValueAware>().is_ok(), "once more changes nothing");
        let spec: PolicySpec = "value-aware:window=4".parse().unwrap();
        assert_eq!(serde_json::to_string(&spec).unwrap(), "\"value-aware:window=4\"");
        assert_ne!(spec, "value-aware".parse().unwrap());
        assert_eq!(
            spec.with("window", "16").unwrap().settings(),
            "value-aware".parse::<PolicySpec>().unwrap().settings()
        );
        let refused = |text: &str| text.parse::<PolicySpec>().unwrap_err().to_string();
        let unknown = refused("value-awar");
        assert!(
            unknown.starts_with("unknown cache policy `value-awar`") && unknown.ends_with(", value-aware"),
            "{unknown}"
        );
        assert_eq!(
            refused("value-aware:k=1"),
            "cache policy `value-aware` has no option `k`; it takes: budget, window"
        );
        assert_eq!(refused("value-aware:window=0"), "cache policy `value-aware`: window=0: expected a number from 1");
        assert!(waggle::mpcache::catalogue().iter().any(|policy| policy.name == "value-aware"));
    }

    /// A family of policies under a name that is taken.
    struct Taken;

    impl PolicyFamily for Taken {
        const POLICIES: &'static [NamedPolicy<Self>] =
            &[NamedPolicy { name: "h2o", keys: &[], about: "", read: |_| Ok(Taken) }];

        fn facts(&self) -> Facts {
            Facts::default()
        }

        fn build<E: Select>(&self, layers: usize, shape: HeadShape) -> Box<dyn Policy<E>> {
            PolicySpec::default().build(layers, shape)
        }
    }

    #[test]
    fn a_name_stands_for_one_policy() {
        let refused = register_policy::<Taken>().unwrap_err().to_string();
        assert_eq!(refused, "there is a cache policy `h2o` already");
    }
}

//! Runs policies over sequences, on all cores.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use ndarray::{Array2, ArrayView2, Axis};
use waggle_engine::{Engine, Select};
use waggle_model::{
    GenerateOptions, Generation, Hooks, Input, Lengths, Model, ModelSpec, Next, NoHooks, Sampler, Step, generate,
    generate_with,
};
use waggle_mpcache::{Budget, Policy, PolicySpec};
use waggle_session::PublicPrefix;
use waggle_session::party::{
    ClientOptions, Event, Flow, Limits, ModelServer, Prompt, Request, Terms, Watch, in_one_process, nobody,
};

use super::interval::{Interval, intervals};
use super::metrics::{Metrics, Totals, Trace};
use super::{EvalError, Observed, Sequence, Wanted};

/// A policy at a budget, which a study is to run.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// The policy without its budget, unless the user stated the budget with the policy. In a plot, each label is one
    /// line.
    pub label: String,
    /// The budget: a share of the cache, or a number of tokens if it is 2 or more. `None` for policies without a
    /// budget, such as `full`.
    pub budget: Option<f64>,
    /// The policy with its budget.
    pub policy: PolicySpec,
}

impl Candidate {
    /// The candidate that is the full cache, without a budget.
    pub fn full() -> Self {
        let policy = PolicySpec::default();
        Candidate { label: policy.to_string(), budget: None, policy }
    }

    /// The full cache behind public tokens that `policy` has pruned.
    pub fn behind(policy: &PolicySpec) -> Self {
        Candidate { label: format!("full, public {policy}"), ..Candidate::full() }
    }

    /// `policy` at `budget`. The budget is a share of the cache in (0, 1] or, if the policy accepts it, a whole
    /// number of tokens from 2 on.
    pub fn new(policy: &PolicySpec, budget: f64) -> Result<Self, EvalError> {
        if budget.to_string().parse::<Budget>().is_err() {
            return Err(EvalError::Budget(budget));
        }
        let with = policy.with("budget", &budget.to_string())?;
        Ok(Candidate { label: policy.to_string(), budget: Some(budget), policy: with })
    }

    /// `policy` at the budget that its own options state, or as it is if it takes no budget. `None` if it takes a
    /// budget but its options state none.
    pub fn with_own_budget(policy: &PolicySpec) -> Result<Option<Self>, EvalError> {
        if !policy.takes("budget") {
            return Ok(Some(Candidate { label: policy.to_string(), budget: None, policy: policy.clone() }));
        }
        let Some(budget) = policy.option("budget").and_then(|text| text.parse().ok()) else { return Ok(None) };
        Ok(Some(Candidate { label: policy.to_string(), ..Candidate::new(policy, budget)? }))
    }
}

/// Puts sequences through a model on some engine.
pub trait Runner: Sync {
    /// Shape of the model.
    fn spec(&self) -> ModelSpec;

    /// Whether the engine sees its values in the clear.
    fn sees(&self) -> bool;

    /// The largest number of sequences to run at the same time.
    fn most_at_once(&self) -> usize;

    /// Runs `sequence` under `policy`. `tick` is called after each of the sequence's [`passes`](Sequence::passes),
    /// but not while a [wanted](Sequence::wanted) answer is generated.
    fn run(&self, sequence: &Sequence, policy: &PolicySpec, tick: &(dyn Fn() + Sync)) -> Result<Trace, EvalError>;

    /// Runs several sequences as [`run`](Runner::run) does, but reads them side by side. All must have prompts of the
    /// same length, the same number of passes and no wanted answers. The policy decides for each sequence [by
    /// itself](PolicySpec::side_by_side).
    fn run_together(
        &self,
        sequences: &[Sequence],
        policy: &PolicySpec,
        tick: &(dyn Fn() + Sync),
    ) -> Result<Vec<Trace>, EvalError> {
        sequences.iter().map(|sequence| self.run(sequence, policy, tick)).collect()
    }

    /// The largest number of texts for an encoder to read side by side.
    fn most_side_by_side(&self) -> usize;

    /// Lets an encoder read `texts` side by side, and returns the logits of its classes for each text. An entry of
    /// `texts` has the ids, and the index at which the second of two texts begins. The policy keeps all, but rows may
    /// end ([`PolicySpec::shed`]).
    fn classify(&self, texts: &[(Vec<u32>, Option<usize>)], policy: &PolicySpec) -> Result<Vec<Vec<f32>>, EvalError>;
}

fn side_by_side(texts: &[(Vec<u32>, Option<usize>)]) -> Result<Prompt, EvalError> {
    let texts: Vec<Prompt> = texts.iter().map(|(ids, second)| Prompt::from(ids).with_second(*second)).collect();
    Ok(Prompt::side_by_side(&texts, None, true)?)
}

/// Runs sequences in this process, on an engine that sees its values. Attention is [`Observed`], but not behind
/// public tokens, whose keys the observer does not have.
pub struct InClear<'a, E: Engine> {
    /// The model.
    pub model: &'a Model<E::Weight>,
    /// The function that makes a new engine for each run.
    pub engine: fn() -> E,
}

impl<E: Select> Runner for InClear<'_, E> {
    fn spec(&self) -> ModelSpec {
        self.model.spec()
    }

    fn sees(&self) -> bool {
        E::CLEAR
    }

    fn most_at_once(&self) -> usize {
        usize::MAX
    }

    fn run(&self, sequence: &Sequence, policy: &PolicySpec, tick: &(dyn Fn() + Sync)) -> Result<Trace, EvalError> {
        let spec = self.model.spec();
        spec.check_policy(policy)?;
        let layers = spec.attention();
        // If all layers have windows, no layer is pruned, and one layer stands for those.
        let pruned = layers.pruned().max(1);
        // The prompt's last position may be scored, but tokens that go through the model together are not measured.
        let alone: Vec<usize> = sequence.scored().iter().copied().filter(|p| *p >= sequence.prompt()).collect();
        let build = || policy.build(pruned, layers.pruned_heads());
        let observes = self.model.public_tokens() == 0;
        let (prompt, rest) = sequence.ids().split_at(sequence.prompt());
        let input = Input::known(prompt);
        let mut ticks = Ticks(tick);
        let generate = |runs: Box<dyn Policy<E>>, options: GenerateOptions, next: Next, hooks: &mut dyn Hooks<E>| {
            let mut cache = self.model.cache_with(runs).shedding(policy.shed());
            generate_with(&mut (self.engine)(), self.model, &mut cache, input, &options, next, hooks)
        };
        let options = GenerateOptions { tokens: sequence.passes(), ..GenerateOptions::default() };
        let (observed, means) = match observes {
            true => {
                let (observed, means) = Observed::new(build(), pruned, &alone);
                // Rows that have ended are not in the layers that follow.
                let step = policy.shed().and_then(|shed| shed.steps(layers.windows.len()).first().copied());
                let whole = &layers.windows[..step.map_or(layers.windows.len(), |step| step.layer)];
                let observed = observed.first(whole.iter().filter(|window| window.is_none()).count());
                (Box::new(observed) as Box<dyn Policy<E>>, Some(means))
            }
            false => (build(), None),
        };
        let out = generate(observed, options, Next::Forced(rest), &mut ticks)?;
        let attention = means.map(|means| *means.lock().unwrap_or_else(PoisonError::into_inner));
        let generated = sequence.wanted().map(|Wanted { tokens, .. }| {
            let options = GenerateOptions { tokens: *tokens, stop_at_eos: true, ..GenerateOptions::default() };
            let mut greedy = Sampler::greedy();
            generate(build(), options, Next::Pick(&mut greedy), &mut NoHooks)
        });
        let generated = generated.transpose()?.map(|out| out.tokens);
        Ok(Trace { logits: scored_rows(sequence, &out), attention, generated })
    }

    /// One text at a time. Reading side by side would save messages, but in the clear there are none.
    fn most_side_by_side(&self) -> usize {
        1
    }

    fn classify(&self, texts: &[(Vec<u32>, Option<usize>)], policy: &PolicySpec) -> Result<Vec<Vec<f32>>, EvalError> {
        self.model.spec().check_policy(policy)?;
        let prompt = side_by_side(texts)?;
        let (padding, policy) = (prompt.known_padding(), policy.clone());
        let options = GenerateOptions { tokens: 1, padding, policy, ..GenerateOptions::default() };
        let next = Next::Pick(&mut Sampler::greedy());
        let input = prompt.input();
        Ok(class_logits(generate(&mut (self.engine)(), self.model, input, &options, next, &mut NoHooks)?))
    }
}

/// Runs each sequence as a whole session between two parties, as over a network. The parties are two threads of this
/// process, which exchange messages through memory.
pub struct TwoParties<'a> {
    /// The server. Its model has the scoring head that the policies need.
    pub server: &'a ModelServer,
    /// Options of the protocols.
    pub protocol: waggle_protocols::Options,
    /// Public tokens before every sequence.
    pub prefix: Option<PublicPrefix>,
}

/// The longest time that a party waits for the other one. In fact the other party computes for seconds at most.
const PATIENCE: Duration = Duration::from_secs(600);

impl Runner for TwoParties<'_> {
    fn spec(&self) -> ModelSpec {
        self.server.public().spec.clone()
    }

    fn sees(&self) -> bool {
        false
    }

    /// One sequence at a time, because a session takes all cores.
    fn most_at_once(&self) -> usize {
        1
    }

    fn run(&self, sequence: &Sequence, policy: &PolicySpec, tick: &(dyn Fn() + Sync)) -> Result<Trace, EvalError> {
        let (prompt, rest) = sequence.ids().split_at(sequence.prompt());
        let out = self.session(policy, prompt, sequence.passes(), false, Next::Forced(rest), &mut ticking(tick))?;
        let generated = sequence.wanted().map(|Wanted { tokens, .. }| {
            self.session(policy, prompt, *tokens, true, Next::Pick(&mut Sampler::greedy()), &mut nobody)
        });
        let generated = generated.transpose()?.map(|out| out.tokens);
        Ok(Trace { logits: scored_rows(sequence, &out), attention: None, generated })
    }

    fn run_together(
        &self,
        sequences: &[Sequence],
        policy: &PolicySpec,
        tick: &(dyn Fn() + Sync),
    ) -> Result<Vec<Trace>, EvalError> {
        let [first, _, ..] = sequences else {
            return sequences.iter().map(|sequence| self.run(sequence, policy, tick)).collect();
        };
        let parts = || sequences.iter().map(|sequence| sequence.ids().split_at(sequence.prompt()));
        let prompts: Vec<Prompt> = parts().map(|(prompt, _)| prompt.into()).collect();
        let prompt = Prompt::side_by_side(&prompts, None, false)?;
        let next = Next::Each(parts().map(|(_, rest)| Next::Forced(rest)).collect());
        let mut out = self.session(policy, prompt, first.passes(), false, next, &mut ticking(tick))?;
        let logits = out.logits.take().unwrap_or_default();
        let trace = |(rows, sequence): (ArrayView2<f32>, &Sequence)| {
            let logits = Some(rows.to_owned());
            let logits = scored_rows(sequence, &Generation { logits, ..Generation::default() });
            Trace { logits, attention: None, generated: None }
        };
        Ok(logits.axis_chunks_iter(Axis(0), first.passes()).zip(sequences).map(trace).collect())
    }

    fn most_side_by_side(&self) -> usize {
        8
    }

    fn classify(&self, texts: &[(Vec<u32>, Option<usize>)], policy: &PolicySpec) -> Result<Vec<Vec<f32>>, EvalError> {
        let next = Next::Pick(&mut Sampler::greedy());
        Ok(class_logits(self.session(policy, side_by_side(texts)?, 1, false, next, &mut nobody)?))
    }
}

impl TwoParties<'_> {
    /// Runs a session under `policy` that generates `tokens` tokens after `prompt`. With `stop_at_eos` it may
    /// generate fewer.
    fn session(
        &self,
        policy: &PolicySpec,
        prompt: impl Into<Prompt>,
        tokens: usize,
        stop_at_eos: bool,
        next: Next<'_>,
        watch: &mut Watch,
    ) -> Result<Generation, EvalError> {
        let terms = Terms { protocol: self.protocol, policy: policy.clone(), ..Terms::default() };
        let [out, _] =
            in_one_process(self.server, &terms, &Limits::NONE, &ClientOptions::default(), PATIENCE, |open| {
                let open = open.behind(self.prefix.clone());
                let open = if stop_at_eos { open.stopping_at_eos() } else { open };
                open.generate(prompt, tokens, next, watch)
            })?;
        Ok(out.generation)
    }
}

/// The logits that an encoder gave, as one list for each text.
fn class_logits(out: Generation) -> Vec<Vec<f32>> {
    out.logits.map_or_else(Vec::new, |logits| logits.rows().into_iter().map(|row| row.to_vec()).collect())
}

/// The logits of the scored positions. Row i of a generation's logits belongs to the input position `prompt - 1 + i`.
fn scored_rows(sequence: &Sequence, out: &Generation) -> Array2<f32> {
    let rows: Vec<usize> = sequence.scored().iter().map(|position| position + 1 - sequence.prompt()).collect();
    out.logits.as_ref().map_or_else(|| Array2::zeros((0, 0)), |logits| logits.select(Axis(0), &rows))
}

/// Hooks that call the function after each pass.
struct Ticks<'a>(&'a (dyn Fn() + Sync));

impl<E: Engine> Hooks<E> for Ticks<'_> {
    fn token(&mut self, _: &mut E, _: Step, _: Option<u32>) {
        (self.0)();
    }
}

/// Makes a function that watches a session and calls `tick` after each of its tokens.
fn ticking(tick: &(dyn Fn() + Sync)) -> impl FnMut(Event<'_>) -> Flow {
    move |event| {
        if let Event::Token(_) = event {
            tick();
        }
        Flow::GoOn
    }
}

/// The scores of a policy on all sequences.
#[derive(Clone, Debug, PartialEq)]
pub struct Scores {
    /// The policy's metrics, over all scored positions of all sequences.
    pub metrics: Metrics,
    /// 95 % confidence intervals by the metric's key; empty for a single sequence.
    pub intervals: BTreeMap<String, Interval>,
    /// The metrics of each sequence alone, relative to the full cache on the same sequence.
    pub by_sequence: Vec<Metrics>,
    /// The answer that was generated for each sequence, if answers are wanted.
    pub generated: Vec<String>,
}

impl Scores {
    fn new(of: &[(Totals, Option<String>)], full: &[(Totals, Option<String>)]) -> Self {
        let totals = |all: &[(Totals, Option<String>)]| all.iter().map(|(totals, _)| *totals).collect::<Vec<_>>();
        let (policy, full) = (totals(of), totals(full));
        Scores {
            metrics: Totals::sum(&policy).metrics(&Totals::sum(&full)),
            intervals: intervals(&policy, &full),
            by_sequence: policy.iter().zip(&full).map(|(policy, full)| policy.metrics(full)).collect(),
            generated: of.iter().filter_map(|(_, text)| text.clone()).collect(),
        }
    }
}

/// Runs the full cache and all `candidates` over `sequences`. Returns the scores of the full cache, then the scores
/// of each candidate.
///
/// Runs are spread over all cores. Each run gets as few threads as leave no core idle. `tick` is called after each
/// pass through the model, so it is called (1 + number of candidates) times the [`passes`](Sequence::passes) of all
/// sequences.
///
/// # Errors
/// Before any work: an error for a sequence that is too long for the model or outside its vocabulary, and for a
/// policy that needs to see values if `runner` does not. Later: errors of the runs.
pub fn evaluate(
    runner: &dyn Runner,
    sequences: &[Sequence],
    candidates: &[Candidate],
    tick: &(dyn Fn() + Sync),
) -> Result<(Scores, Vec<Scores>), EvalError> {
    compare([runner, runner], None, sequences, candidates, tick)
}

/// [`evaluate`] with two runners: that of the full cache, and that of `candidates`. Both put `prefix` before every
/// sequence.
pub(super) fn compare(
    [whole, runner]: [&dyn Runner; 2],
    prefix: Option<&PublicPrefix>,
    sequences: &[Sequence],
    candidates: &[Candidate],
    tick: &(dyn Fn() + Sync),
) -> Result<(Scores, Vec<Scores>), EvalError> {
    check(runner, prefix, sequences, candidates)?;
    let full = Candidate::full();
    let at_once = runner.most_at_once();
    let all = |policy: &PolicySpec| batches(sequences, policy.side_by_side().then(|| runner.most_side_by_side()));
    let batches_of_full = all(&full.policy);
    let reference = parallel(batches_of_full.len(), at_once, |batch| {
        whole.run_together(&sequences[batches_of_full[batch].clone()], &full.policy, tick)
    })?;
    let reference: Vec<Trace> = reference.into_iter().flatten().collect();
    let score = |s: usize, trace: &Trace| {
        let totals = Totals::new(&sequences[s], trace, &reference[s].logits)?;
        let text = match (sequences[s].wanted(), &trace.generated) {
            (Some(wanted), Some(ids)) => Some(wanted.grader.text(ids)?),
            _ => None,
        };
        Ok::<_, EvalError>((totals, text))
    };
    let of_full = reference.iter().enumerate().map(|(s, trace)| score(s, trace)).collect::<Result<Vec<_>, _>>()?;
    let of_each = candidates.iter().flat_map(|one| all(&one.policy).into_iter().map(move |batch| (one, batch)));
    let jobs: Vec<(&Candidate, Range<usize>)> = of_each.collect();
    let totals = parallel(jobs.len(), at_once, |job| {
        let (candidate, batch) = &jobs[job];
        let traces = runner.run_together(&sequences[batch.clone()], &candidate.policy, tick)?;
        batch.clone().zip(&traces).map(|(s, trace)| score(s, trace)).collect::<Result<Vec<_>, _>>()
    })?;
    let mut totals: Vec<_> = totals.into_iter().flatten().collect();
    let mut scores = Vec::with_capacity(candidates.len());
    while !totals.is_empty() {
        let rest = totals.split_off(sequences.len());
        scores.push(Scores::new(&totals, &of_full));
        totals = rest;
    }
    Ok((Scores::new(&of_full, &of_full), scores))
}

/// Divides the sequences into ranges of consecutive ones that are read together. The sequences of a range have
/// prompts of the same length, the same number of passes and no wanted answers, and there are at most `most` of them.
/// Without `most`, each sequence is a range of its own.
fn batches(sequences: &[Sequence], most: Option<usize>) -> Vec<Range<usize>> {
    let alike = |a: &Sequence, b: &Sequence| {
        let form = |of: &Sequence| (of.prompt(), of.passes());
        most.is_some() && a.wanted().is_none() && b.wanted().is_none() && form(a) == form(b)
    };
    let mut end = 0;
    let batches = sequences.chunk_by(alike).flat_map(|run| run.chunks(most.unwrap_or(1).max(1)));
    batches
        .map(|batch| {
            end += batch.len();
            end - batch.len()..end
        })
        .collect()
}

/// Refuses sequences that the model cannot read, and candidates that `runner` cannot run.
pub(super) fn check(
    runner: &dyn Runner,
    prefix: Option<&PublicPrefix>,
    sequences: &[Sequence],
    candidates: &[Candidate],
) -> Result<(), EvalError> {
    let (spec, terms) = (runner.spec(), Terms { prefix: prefix.cloned(), ..Terms::default() });
    for sequence in sequences {
        let wanted = sequence.wanted().map(|wanted| wanted.tokens);
        for tokens in std::iter::once(sequence.passes()).chain(wanted) {
            let request = Request::from(Lengths { prompt: sequence.prompt(), tokens });
            match request.validate(&spec, &terms, &Limits::NONE) {
                Err(waggle_session::Error::Model(waggle_model::Error::TooLong { limit, .. })) => {
                    let context = sequence.ids().len().max(sequence.prompt() + tokens);
                    return Err(EvalError::Context { context, limit });
                }
                other => other?,
            }
        }
        spec.check_ids(sequence.ids())?;
    }
    candidates.iter().try_for_each(|c| spec.check_policy(&c.policy))?;
    match candidates.iter().find(|c| c.policy.clear_only() && !runner.sees()) {
        Some(candidate) => Err(EvalError::Blind(candidate.policy.name())),
        None => Ok(()),
    }
}

/// Runs the jobs 0 to `jobs` - 1, and returns their results in order, or the first error. At most `at_once` jobs run
/// at the same time, and at most one for each core.
///
/// Each worker owns a pool of threads. In a common pool, a job that waits for a part of a product would start another
/// job on top of itself, and products would be cut into more parts than there are idle cores.
pub(crate) fn parallel<T: Send>(
    jobs: usize,
    at_once: usize,
    run: impl Fn(usize) -> Result<T, EvalError> + Sync,
) -> Result<Vec<T>, EvalError> {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let workers = jobs.min(at_once).min(cores).max(1);
    let (next, failed) = (AtomicUsize::new(0), AtomicBool::new(false));
    let work = || -> Result<Vec<(usize, T)>, EvalError> {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(cores / workers).build()?;
        pool.install(|| {
            let mut done = Vec::new();
            while !failed.load(Ordering::Relaxed) {
                let job = next.fetch_add(1, Ordering::Relaxed);
                if job >= jobs {
                    break;
                }
                let result = run(job).inspect_err(|_| failed.store(true, Ordering::Relaxed))?;
                done.push((job, result));
            }
            Ok(done)
        })
    };
    let results = thread::scope(|scope| {
        let workers: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        let joined = workers.into_iter().map(|w| w.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        joined.collect::<Vec<_>>()
    });
    let mut done = Vec::with_capacity(jobs);
    for result in results {
        done.extend(result?);
    }
    done.sort_by_key(|(job, _)| *job);
    Ok(done.into_iter().map(|(_, result)| result).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_come_in_order_and_errors_come_out() {
        let squares = parallel(50, usize::MAX, |i| Ok(i * i)).unwrap();
        assert_eq!(squares, (0..50).map(|i| i * i).collect::<Vec<_>>());
        assert!(parallel(0, 1, Ok).unwrap().is_empty());
        let failed = parallel(50, 3, |i| if i == 7 { Err(EvalError::Budget(7.0)) } else { Ok(i) });
        assert!(matches!(failed, Err(EvalError::Budget(_))));
    }

    #[test]
    fn sequences_of_one_form_are_read_together() {
        let cut = |context, prompt, count| Sequence::cut(&[1; 100], context, prompt, count).unwrap();
        let all = [cut(10, 5, 5), cut(10, 4, 2), cut(9, 4, 1)].concat();
        assert_eq!(batches(&all, Some(4)), [0..4, 4..5, 5..7, 7..8]);
        assert_eq!(batches(&all, Some(1)).len(), 8);
        assert_eq!(batches(&all, None).len(), 8);
        assert!(batches(&[], Some(4)).is_empty());
    }

    #[test]
    fn budgets_are_shares_or_tokens() {
        let of = |policy: &str, budget| Candidate::new(&policy.parse().unwrap(), budget);
        for budget in [0.0, -0.5, 1.5, f64::NAN] {
            assert!(matches!(of("streaming", budget), Err(EvalError::Budget(_))), "{budget}");
        }
        assert_eq!(of("streaming:sinks=1", 64.0).unwrap().policy.to_string(), "streaming:budget=64,sinks=1");
        // Not every policy takes a budget in tokens.
        assert!(matches!(of("mpcache", 64.0), Err(EvalError::Policy(_))));
        let own = |policy: &str| Candidate::with_own_budget(&policy.parse().unwrap()).unwrap();
        assert_eq!(own("streaming"), None);
        let snapkv = own("snapkv:budget=64,block=8").unwrap();
        assert_eq!((snapkv.label.as_str(), snapkv.budget), ("snapkv:block=8,budget=64", Some(64.0)));
    }
}

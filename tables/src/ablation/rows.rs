//! One row of the table: a configuration at a length of the cache, planned and, where asked for, between two parties.

use net::Shape;
use protocols::{Fixed, Options};

use super::configurations::Configuration;
use super::cost::{Accounts, Split};
use super::error::AblationError;
use super::findings::{Attention, Measured, Operation, Row};
use super::run::{self, Scenario};
use super::shapes::PAIRS;
use super::{check, data};

/// How rows are measured.
#[derive(Clone, Debug)]
pub(crate) struct Method {
    /// What both parties state.
    pub(crate) options: Options,
    /// Network between them.
    pub(crate) link: Shape,
    /// Steps of a plan, at least.
    pub(crate) plan_steps: usize,
    /// Steps of two parties.
    pub(crate) steps: usize,
    /// Lengths at which two parties run.
    pub(crate) secure: Vec<usize>,
}

/// Steps around a cache of `cache` tokens: their mean has seen so many.
fn around(cache: usize, steps: usize) -> Result<Scenario, AblationError> {
    let before = 1 + steps.div_ceil(2);
    if steps == 0 || cache <= before {
        return Err(AblationError::Short { cache, steps });
    }
    Ok(Scenario { prompt: cache - before, steps })
}

/// The accounts whose path begins with `scope`, or all.
fn within<'a>(scope: &'a str, factor: f64) -> impl Fn(&str) -> Option<f64> + 'a {
    move |path| path.starts_with(scope).then_some(factor)
}

/// The mean step by operation.
fn operations(steady: &Accounts, steps: usize) -> Vec<Operation> {
    let mut paths: Vec<&String> = steady.keys().map(|account| &account.path).collect();
    paths.sort();
    paths.dedup();
    let cost = |path: &String| Split::of(steady, |other| (other == path).then_some(PAIRS / steps as f64));
    let mut all: Vec<_> = paths.into_iter().map(|path| Operation { path: path.clone(), step: cost(path) }).collect();
    all.retain(|operation| operation.step.total().bytes() > 0.0);
    all.sort_by(|a, b| b.step.total().bytes().total_cmp(&a.step.total().bytes()));
    all
}

/// One configuration with `cache` tokens in the cache.
pub(crate) fn row(configuration: &Configuration, cache: usize, method: &Method) -> Result<Row, AblationError> {
    let Configuration { name, policy, paper } = configuration;
    // Clusters longer than the cache never close, so there is no period over which to take a mean.
    let period = policy.clusters().map_or(1, |c| c.sizes.coarse());
    let steps = if period < cache / 2 { method.plan_steps.max(period) } else { method.plan_steps };
    let scenario = around(cache, steps)?;
    let plan = run::plan(policy, scenario, method.options)?;
    let mut planned = Split::of(&plan.steady, within("", PAIRS / steps as f64));
    if method.options.preprocess {
        let prompt = run::plan(policy, Scenario { steps: 0, ..scenario }, method.options)?.offline();
        planned.offline = (plan.offline() - prompt) * (PAIRS / steps as f64);
    }
    let measured = method.secure.contains(&cache).then(|| measure(configuration, cache, method)).transpose()?;
    Ok(Row {
        attention: Attention { name: (*name).to_owned(), policy: policy.clone(), cache },
        paper: *paper,
        planned,
        operations: operations(&plan.steady, steps),
        eviction: Split::of(&plan.prompt, within("eviction", PAIRS)),
        digests: Split::of(&plan.prompt, within("digest", PAIRS)),
        measured,
    })
}

/// Between two parties.
fn measure(configuration: &Configuration, cache: usize, method: &Method) -> Result<Measured, AblationError> {
    let policy = &configuration.policy;
    let scenario = around(cache, method.steps)?;
    let words = data::words(&data::inputs(scenario.tokens(), cache as u64));
    let options = method.options;
    let fixed = run::run(&mut Fixed::evaluating(options.evaluation()), policy, &words, scenario)?;
    let secure = run::secure(policy, &words, scenario, method.link, options)?;
    let check = check::compare(policy, &secure.outputs, &fixed.outputs)?;
    check::plan_holds(policy, &secure, &run::plan(policy, scenario, options)?)?;
    let step = Split::of(&secure.steady, within("", PAIRS / method.steps as f64));
    Ok(Measured { step, check })
}

//! An eviction policy that is a Python function. The function gets scores and returns the indices to keep.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ndarray::{ArrayD, Axis};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use waggle::engine::{Error, Select};
use waggle::mpcache::attention::{Attended, weighted};
use waggle::mpcache::{Budget, DEFAULT_BUDGET, Facts, HeadShape, NamedPolicy, Piece, Policy, PolicyFamily, Store};

use crate::interrupt::Flag;

/// The functions of the studies that run now, by their names in policies.
static FUNCTIONS: Mutex<BTreeMap<String, Entry>> = Mutex::new(BTreeMap::new());

struct Entry {
    function: Py<PyAny>,
    /// The first error that the function raised.
    raised: Option<PyErr>,
}

fn functions() -> MutexGuard<'static, BTreeMap<String, Entry>> {
    FUNCTIONS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Signals that names are free again.
static FREED: Condvar = Condvar::new();

/// Interval at which a study that waits for a name checks whether it was interrupted.
const POLL: Duration = Duration::from_millis(50);

/// Registers functions under names, until this value is dropped.
pub(crate) struct Named(Vec<String>);

impl Named {
    /// Registers `named`. Waits until no other study uses one of the names, or until `flag` ends the work. Another
    /// study may run in another thread, or be an interrupted one that is still in the middle of a step.
    pub(crate) fn new(named: BTreeMap<String, Py<PyAny>>, flag: &Flag) -> Self {
        let mut all = functions();
        while named.keys().any(|name| all.contains_key(name)) {
            all = FREED.wait_timeout(all, POLL).unwrap_or_else(PoisonError::into_inner).0;
            flag.check();
        }
        let names = named.keys().cloned().collect();
        all.extend(named.into_iter().map(|(name, function)| (name, Entry { function, raised: None })));
        Named(names)
    }

    /// An error that one of the functions raised.
    pub(crate) fn raised(&self) -> Option<PyErr> {
        let mut all = functions();
        self.0.iter().find_map(|name| all.get_mut(name)?.raised.take())
    }
}

impl Drop for Named {
    fn drop(&mut self) {
        let gone: Vec<_> = {
            let mut all = functions();
            self.0.iter().map(|name| all.remove(name)).collect()
        };
        FREED.notify_all();
        // The functions are dropped without the lock, as their destructors may run any code.
        drop(gone);
    }
}

/// The policy's settings.
#[derive(Clone, Debug)]
pub(crate) struct Function {
    name: String,
    budget: Budget,
}

impl PolicyFamily for Function {
    const POLICIES: &'static [NamedPolicy<Self>] = &[NamedPolicy {
        name: "python",
        keys: &["function", "budget"],
        about: "a function of Python, see `waggle.evaluate`",
        read: |options| {
            let expected = "a function that `waggle.evaluate` was given";
            let name = options.read("function", expected, |name| Some(name.to_owned()))?;
            Ok(Function {
                name: name
                    .ok_or_else(|| options.missing("function", "a function that `waggle.evaluate` is given"))?,
                budget: options.value("budget", DEFAULT_BUDGET)?,
            })
        },
    }];

    const REQUIRED: &'static str = "function=NAME";

    fn facts(&self) -> Facts {
        // The function sees scores.
        Facts::in_the_clear()
    }

    fn build<E: Select>(&self, layers: usize, shape: HeadShape) -> Box<dyn Policy<E>> {
        Box::new(Called { settings: self.clone(), layers: vec![vec![Head::default(); shape.kv_heads]; layers] })
    }
}

/// The policy during one generation.
struct Called {
    settings: Function,
    layers: Vec<Vec<Head>>,
}

/// Facts about the tokens that a key/value head holds.
#[derive(Clone, Default)]
struct Head {
    /// Attention that each token has received so far.
    scores: Vec<f64>,
    /// Attention received from the latest query.
    latest: Vec<f64>,
    /// Position of each token in the text.
    positions: Vec<usize>,
}

/// Why a function's answer cannot be used.
#[derive(Debug, thiserror::Error)]
enum Answer {
    /// The function raised an exception; the study raises it again.
    #[error("the policy `{name}` raised an exception")]
    Raised { name: String },
    /// The function returned indices for too few or too many heads.
    #[error("the policy `{name}` returned lists for {got} heads; the layer has {heads} key/value heads")]
    Heads { name: String, got: usize, heads: usize },
    /// The function returned indices that are not a valid selection.
    #[error("the policy `{name}`, layer {layer}, head {head}: {what}")]
    Indices { name: String, layer: usize, head: usize, what: String },
}

impl<E: Select> Policy<E> for Called {
    /// Number of queries whose attention counts: all queries of the piece.
    fn observation_window(&self, _layer: usize, piece: Piece) -> usize {
        piece.new
    }

    /// Every key/value head holds tokens of its own.
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
        let Attended { output, by_part } = weighted(engine, q, store)?;
        let piece = store.piece();
        for (p, head) in by_part.iter().zip(&mut self.layers[layer]) {
            let values = engine.reveal(p)?.ok_or_else(|| backend(blind()))?;
            head.receive(&values, store.heads().group(), piece);
        }
        if piece.in_prompt() && !piece.ends_prompt() {
            return Ok(output);
        }
        let keep = self.settings.budget.of(store.seen());
        if store.len() > keep {
            let kept = self.call(layer, store.seen(), keep)?;
            for (part, rows) in kept.iter().enumerate() {
                store.keep_rows(part, rows);
                self.layers[layer][part].keep(rows);
            }
        }
        Ok(output)
    }
}

fn blind() -> std::io::Error {
    std::io::Error::other("a policy of Python needs an engine that sees its values")
}

fn backend(error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::Backend(Box::new(error))
}

impl Head {
    /// Adds `p` (1, group * rows, tokens), the attention that tokens received from `rows` queries. `group` is the
    /// number of query heads that share this key/value head. The rows of each query head are adjacent.
    fn receive(&mut self, p: &ArrayD<f32>, group: usize, piece: Piece) {
        let p = p.index_axis(Axis(0), 0);
        let (rows, tokens) = (p.shape()[0] / group, p.shape()[1]);
        self.positions.extend(piece.end - piece.new..piece.end);
        self.scores.resize(tokens, 0.0);
        self.latest = vec![0.0; tokens];
        for (row, weights) in p.outer_iter().enumerate() {
            for (token, weight) in weights.iter().enumerate() {
                self.scores[token] += f64::from(*weight);
                if row % rows == rows - 1 {
                    self.latest[token] += f64::from(*weight);
                }
            }
        }
    }

    fn keep(&mut self, rows: &[usize]) {
        self.scores = rows.iter().map(|row| self.scores[*row]).collect();
        self.positions = rows.iter().map(|row| self.positions[*row]).collect();
    }
}

impl Called {
    /// Calls the function for a layer after `seen` tokens. Returns for each key/value head the indices of the tokens
    /// to keep, ascending, at most `keep`.
    fn call(&self, layer: usize, seen: usize, keep: usize) -> Result<Vec<Vec<usize>>, Error> {
        let name = &self.settings.name;
        let answer = Python::attach(|py| -> PyResult<Vec<Vec<usize>>> {
            let function = functions().get(name).map(|entry| entry.function.clone_ref(py));
            let function = function.ok_or_else(|| super::failed(format!("no study has a function `{name}` now")))?;
            let heads = &self.layers[layer];
            let of = |what: fn(&Head) -> &[f64]| heads.iter().map(|head| what(head).to_vec()).collect::<Vec<_>>();
            let view = PyDict::new(py);
            view.set_item("layer", layer)?;
            view.set_item("seen", seen)?;
            view.set_item("scores", of(|head| &head.scores))?;
            view.set_item("latest", of(|head| &head.latest))?;
            view.set_item("positions", heads.iter().map(|head| head.positions.clone()).collect::<Vec<_>>())?;
            py.import("waggle")?.getattr("_kept")?.call1((function, view, keep))?.extract()
        });
        let mut kept = answer.map_err(|error| {
            if let Some(entry) = functions().get_mut(name) {
                entry.raised.get_or_insert(error);
            }
            backend(Answer::Raised { name: name.clone() })
        })?;
        let heads = self.layers[layer].len();
        if kept.len() != heads {
            return Err(backend(Answer::Heads { name: name.clone(), got: kept.len(), heads }));
        }
        for (head, rows) in kept.iter_mut().enumerate() {
            let wrong = |what: String| backend(Answer::Indices { name: name.clone(), layer, head, what });
            let (given, held) = (rows.len(), self.layers[layer][head].scores.len());
            rows.sort_unstable();
            rows.dedup();
            if rows.len() < given {
                return Err(wrong("an index stands there twice".into()));
            }
            if let Some(row) = rows.last().filter(|row| **row >= held) {
                return Err(wrong(format!("index {row} of {held} tokens")));
            }
            if rows.is_empty() || rows.len() > keep {
                return Err(wrong(format!("{} tokens are kept, not 1 to {keep}", rows.len())));
            }
        }
        Ok(kept)
    }
}

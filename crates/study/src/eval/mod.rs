//! The accuracy that pruning the key/value cache costs.
//!
//! A [`Sequence`] is teacher-forced. Its first `prompt` tokens go through the model at once, so that policies that
//! judge a prompt see one. The remaining tokens follow one by one on the growing cache. Each *scored position* is the
//! position of a remaining token or the last position of the prompt. Each policy runs on the same sequences, and so
//! does the reference `full`. For each policy, [`Metrics`] hold:
//!
//! | metric | mean over | definition |
//! |---|---|---|
//! | `perplexity` | scored positions | exp of the mean of -ln p(next token) |
//! | `perplexity_ratio` | | `perplexity` divided by that of `full` |
//! | `accuracy` | scored positions | 1 where the most probable token is the next one of the sequence |
//! | `agreement` | scored positions | 1 where `full` finds the same token most probable |
//! | `kl` | scored positions | sum of p ln(p / p_S), p of `full` and p_S of the policy, in nats |
//! | `attention_mass` | positions, layers, heads | sum over A of softmax(q K^T) |
//! | `output_error` | positions, layers, heads | \|\|o_S - o\|\| / \|\|o\|\|, o_S what the policy gave, o = softmax(q K^T) V |
//! | `top_k_recall` | positions, layers, heads | share of A among the \|A\| tokens of largest q . k, ties in favour |
//! | `layer_overlap` | positions, pairs of adjacent layers, heads | \|A_l ∩ A_(l+1)\| / \|A_l\| |
//! | `attended` | positions, layers, heads | \|A\| / n |
//! | `attended_tokens` | positions, layers, heads | \|A\| |
//! | `exact_match` | answers | 1 where the most probable token is right at every position of the answer, so that greedy generation gives it |
//! | `score` | sequences | what the task's [`Grader`] gives a generated answer, 0 to 1 |
//!
//! A is the set of tokens to which the query attended, and A_l is this set in layer l. K and V are the keys and
//! values of all n tokens up to the query's own, including evicted ones, and q is the pruned model's own query. All
//! are taken from the pruned run: an error of an earlier layer or token shows in the metrics of the predictions, not
//! in those of attention. The metrics of attention, `attention_mass` to `attended_tokens`, need an engine that sees
//! its values.
//!
//! Every number has a 95 % confidence [`Interval`] over the sequences, paired with the full cache. A row also has the
//! metrics of each sequence alone.
//!
//! A [`Task`] makes the sequences: it is one file of `tasks` and a line in [`TASKS`].
//! [`study_attention`] says what the full cache's attention looks at: pages, and tokens by class.
//! [`judge_heads`] finds the heads that need distant tokens. [`Observed`] measures attention around any policy;
//! [`evaluate`] runs a study with a [`Runner`]; a [`StudyReport`] holds the numbers.

mod attention;
mod engine;
mod error;
mod heads;
mod interval;
mod lm_eval;
mod metrics;
mod observed;
pub mod pages;
mod report;
mod run;
mod sequence;
mod tasks;

pub use attention::AttentionMeans;
pub use engine::{Studied, StudyEngine, Subject, candidates, evaluation, learned, passes};
pub use error::EvalError;
pub use heads::{HeadMeasure, HeadScores, InSight, judge_heads, repetitions};
pub use interval::{CONFIDENCE, Interval};
pub(crate) use lm_eval::config_of;
pub use metrics::{METRICS, Metric, Metrics, Trace};
pub use observed::Observed;
pub use pages::{AttentionMap, AttentionStudy, Class, study_attention};
pub use report::{EVALUATION_VERSION, Row, SequenceInfo, StudyReport, TokenCost};
pub(crate) use run::parallel;
pub use run::{Candidate, InClear, Runner, Scores, TwoParties, evaluate};
pub use sequence::{Grader, Sequence, Wanted};
pub use tasks::{TASKS, Task, TaskInput};

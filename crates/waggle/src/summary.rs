//! Turns a session's outcome into a report.

use serde_json::Value;
use waggle_model::Drafts;
use waggle_report::provenance::{Program, Provenance};
use waggle_report::{DraftReport, HelperLink, HelperLinks, ModelInfo};
use waggle_session::party::{Outcome, PublicModel};
use waggle_tokenizer::Tokenizer;

use crate::reader::text_of;
use crate::terms::named;
use crate::{Error, Report};

/// Version and revision, as a program shows them.
pub const PROGRAM: &str = env!("WAGGLE_PROGRAM");

/// The program's name, version and build, for records.
pub fn built() -> Program {
    let revision = env!("WAGGLE_REVISION");
    Program { version: env!("CARGO_PKG_VERSION"), revision: Some(revision).filter(|revision| !revision.is_empty()) }
}

/// The origin of the records of this process.
pub fn provenance() -> Option<Provenance> {
    Some(Provenance::current(built()))
}

/// The name of an option and its value.
pub(crate) type Chosen = (&'static str, Value);

/// The report of a run of `model`. `options` are chosen options that are not among the session's terms.
pub(crate) fn report(
    model: &PublicModel,
    tokenizer: Option<&Tokenizer>,
    prompt_tokens: usize,
    outcome: &Outcome,
    options: impl IntoIterator<Item = Chosen>,
) -> Result<Report, Error> {
    let mut report = Report::new(ModelInfo::new(&model.name, &model.spec));
    report.provenance = provenance();
    report.options = options.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    report.options.extend(named(&outcome.terms));
    let disclosed = Some(&model.disclosure.disclosed).filter(|disclosed| !disclosed.is_nothing());
    let public = disclosed.and_then(|disclosed| serde_json::to_value(disclosed).ok());
    report.options.extend(public.map(|public| ("public".to_owned(), public)));
    report.prompt_tokens = prompt_tokens;
    report.tokens = outcome.generation.tokens.clone();
    // Several texts of a decoder are reported one by one.
    let several = outcome.generation.lengths.len() > 1 && !model.spec.is_encoder();
    report.text = text_of(&model.spec, tokenizer.filter(|_| !several), &report.tokens)?;
    report.wire = outcome.wire;
    let [client, server] = outcome.helper.each_ref().map(|link| link.as_deref().map(HelperLink::of));
    report.helper = (client.is_some() || server.is_some()).then_some(HelperLinks { client, server });
    report.draft = outcome.draft.map(|draft| drafted(draft, outcome.generation.passes.clone()));
    report.set_costs(outcome.entries.clone(), outcome.kinds.clone(), outcome.per_token.clone());
    Ok(report)
}

/// The part of a report on the guesses of `draft`. `passes` are the numbers of tokens that each pass kept.
fn drafted(draft: Drafts, passes: Vec<usize>) -> DraftReport {
    let tokens_per_pass = passes.iter().sum::<usize>() as f64 / passes.len().max(1) as f64;
    DraftReport { guesses: draft.tokens(), rate: draft.rate(), passes, tokens_per_pass }
}

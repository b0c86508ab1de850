//! A generation that is ready to run: who hears its text, and what it leaves.

use std::path::Path;
use std::slice;

use serde_json::Value;
use waggle_model::{
    Drafts, FloatModel, Generation, Guess, Input, Lengths, ModelSpec, Next, Reveal, Sampler, Step, check, check_input,
};
use waggle_mpcache::PolicySpec;
use waggle_protocols::Made;
use waggle_session::party::{self, ClientSession, Limits, Observer, Outcome, Request, Silent};
use waggle_session::pool::PoolSet;
use waggle_tokenizer::{ChatTemplate, TextStream, Tokenizer, TokenizerError};

use crate::error::PromptError;
use crate::generate::{Draft, Generate};
use crate::models::{Reader, Words, each, harmless, open_adapted, text_of};
use crate::summary::{Chosen, report};
use crate::{Error, Report};

/// Watches a session of a client and hears its text. Every method has a default that does nothing.
pub trait Listener: Observer {
    /// Nobody answers at `address` yet, and this client goes on trying.
    fn calls(&mut self, address: &str) {
        let _ = address;
    }

    /// The server is busy, and this client waits.
    fn waits(&mut self) {}

    /// The server at `address` has a chat template that was not met before. It adds to the words, so it has a say in
    /// how long answers are.
    fn template(&mut self, address: &str, template: &ChatTemplate) {
        let _ = (address, template);
    }

    /// The server's tokenizer runs under limits alone, because a sandbox is missing here.
    fn no_sandbox(&mut self, why: &str) {
        let _ = why;
    }

    /// The text goes on with `text`, which has no control characters but line ends and tabs.
    fn text(&mut self, text: &str) {
        let _ = text;
    }

    /// The chat template changes what was said before: the model reads the conversation from its beginning.
    fn rereads(&mut self) {}

    /// The chat template would write some words by what they are ([`LOOKS`](crate::LOOKS)).
    fn looks(&mut self) {}

    /// The text is over.
    fn end(&mut self) {}
}

impl Listener for Silent {}

/// Hands the pieces of a text to a function.
pub struct Text<F>(
    /// The function.
    pub F,
);

impl<F: FnMut(&str)> Observer for Text<F> {}

impl<F: FnMut(&str)> Listener for Text<F> {
    fn text(&mut self, text: &str) {
        (self.0)(text);
    }
}

/// Hears a text, beside the listener.
type Keep = Box<dyn Fn(&str)>;

/// Makes text of the tokens of a generation: names of classes, words, or without a tokenizer ids with commas between
/// them.
pub(crate) struct Heard<'a> {
    labels: Option<Vec<String>>,
    stream: Option<TextStream<'a>>,
    count: usize,
    /// Several texts grow at once: nobody hears them before all have ended.
    several: bool,
    listener: &'a mut dyn Listener,
    /// Hears the text as it is.
    kept: Option<Keep>,
    /// Why the text cannot be shown any more.
    failed: Option<TokenizerError>,
}

impl<'a> Heard<'a> {
    pub(crate) fn new(
        labels: Option<Vec<String>>,
        tokenizer: Option<&'a Tokenizer>,
        before: &[u32],
        listener: &'a mut dyn Listener,
    ) -> Self {
        let stream = tokenizer.filter(|_| labels.is_none()).map(|tokenizer| tokenizer.stream(before));
        Heard { labels, stream, count: 0, several: false, listener, kept: None, failed: None }
    }

    /// Of so many texts; of several nobody hears words before all have ended, unless they are names of classes.
    pub(crate) fn of_texts(self, texts: usize) -> Self {
        Heard { several: texts > 1 && self.labels.is_none(), ..self }
    }

    /// Gives the text to `keep`, too.
    pub(crate) fn kept_by(self, keep: impl Fn(&str) + 'static) -> Self {
        Heard { kept: Some(Box::new(keep)), ..self }
    }

    /// Ends the text: why it could not be shown, or what its session came to.
    pub(crate) fn finish<T>(mut self, done: Result<T, waggle_session::Error>) -> Result<T, Error> {
        let rest = match (self.failed.take(), self.stream.take()) {
            (Some(error), _) => Err(error),
            (None, stream) => stream.map_or(Ok(String::new()), TextStream::finish),
        };
        self.tell(rest.as_deref().unwrap_or_default());
        self.listener.end();
        rest?;
        Ok(done?)
    }

    fn tell(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        if let Some(keep) = &self.kept {
            keep(text);
        }
        if !self.listener.stops() {
            self.listener.text(&harmless(text));
        }
    }
}

impl Observer for Heard<'_> {
    fn setup(&mut self) {
        self.listener.setup();
    }

    fn stock(&mut self, bytes: u64) {
        self.listener.stock(bytes);
    }

    fn prepare(&mut self, made: Made) {
        self.listener.prepare(made);
    }

    fn begin(&mut self, step: Step) {
        self.listener.begin(step);
    }

    fn layer(&mut self, done: usize, layers: usize) {
        self.listener.layer(done, layers);
    }

    fn token(&mut self, token: Option<u32>) {
        self.listener.token(token);
        let Some(token) = token.filter(|_| !self.several) else { return };
        self.count += 1;
        let label = self.labels.as_ref().and_then(|labels| labels.get(token as usize)).cloned();
        let text = match &mut self.stream {
            _ if label.is_some() => if self.count > 1 { "\n" } else { "" }.to_owned() + &label.unwrap_or_default(),
            _ if self.failed.is_some() => return,
            Some(stream) => match stream.push(token) {
                Ok(text) => text,
                Err(error) => {
                    self.failed = Some(error);
                    return;
                }
            },
            None if self.count == 1 => token.to_string(),
            None => format!(",{token}"),
        };
        self.tell(&text);
    }

    fn stops(&self) -> bool {
        self.listener.stops()
    }

    fn abandoned(&self) -> bool {
        self.failed.is_some() || self.listener.abandoned()
    }
}

/// A generation whose options were checked and whose files were read.
pub(crate) struct Asked<'a> {
    options: &'a Generate,
    words: Words,
    drafts: Option<Drafts>,
}

impl Generate {
    /// Checks and reads what needs no server.
    pub(crate) fn ask(&self, terms: &party::Terms) -> Result<Asked<'_>, Error> {
        if self.pool.is_some() && self.draft.is_some() {
            return Err(waggle_session::Error::DraftPool.into());
        }
        // Bad settings are reported before a server is bothered.
        self.sampling.sampler(terms)?;
        let drafts = self.draft.as_ref().map(Draft::drafts).transpose()?;
        let words = self.prompt.clone().read()?;
        let first = if let Words::Several(own) = &words { 1 + own.len() } else { 2 };
        each(first, self.later.iter().cloned(), |later| later.read().map(drop))?;
        Ok(Asked { options: self, words, drafts })
    }
}

/// A generation in the ids of a model.
pub(crate) struct Ready<'a> {
    options: &'a Generate,
    /// The prompt without padding; of several texts as the server sees it.
    plain: party::Prompt,
    whole: party::Prompt,
    /// The prompt of each text, without padding.
    prompts: Vec<party::Prompt>,
    /// One for each text.
    samplers: Vec<Sampler>,
    drafts: Option<Drafts>,
    guess: Option<Box<dyn Guess>>,
}

impl<'a> Asked<'a> {
    /// Under the `terms` that were agreed. What cannot work with the model `spec` is refused before a server is asked
    /// for it, and before numbers of the request size anything.
    pub(crate) fn prompt(self, terms: &party::Terms, spec: &ModelSpec, reader: &Reader) -> Result<Ready<'a>, Error> {
        let Asked { options, words, drafts } = self;
        let Generate { tokens, stop_at_eos, pad_answer, samples, .. } = *options;
        // The last token goes through no model.
        let room = (spec.max_positions() + 1).saturating_sub(tokens);
        let padded = |count: usize| match &options.pad_prompt {
            Some(_) if spec.image().is_some() => Err(waggle_model::Error::Encoder { what: "a padded image" }.into()),
            pads => Ok::<_, Error>(pads.as_ref().map(|pads| pads.of(count, room)).transpose()?),
        };
        let check = |texts: usize, prompt: usize, padded: bool| {
            let draft = drafts;
            let request =
                Request { stop_at_eos, pad_answer, padded, texts, draft, ..Lengths { prompt, tokens }.into() };
            request.validate(spec, terms, &Limits::NONE)
        };
        let one = |words: Words| {
            let prompt = words.prompt(spec, reader)?;
            let count = prompt.input().count;
            let length = padded(count)?;
            check(1, length.unwrap_or(count), length.is_some())?;
            check_input(spec, prompt.input())?;
            Ok(prompt)
        };
        let texts = words.prompts(one)?;
        each(1 + texts.len(), options.later.iter().cloned(), |later| one(later.read()?).map(drop))?;
        if options.class && !spec.is_encoder() {
            return Err(PromptError::NoClass.into());
        }
        let counts = || texts.iter().map(|text| text.input().count);
        let longest = counts().max().unwrap_or(0);
        let length = padded(longest)?;
        let uneven = counts().any(|count| count < longest);
        check(texts.len().saturating_mul(samples), length.unwrap_or(longest), uneven || length.is_some())?;
        let texts: Vec<_> = texts.into_iter().flat_map(|text| vec![text; samples]).collect();
        let whole = party::Prompt::side_by_side(&texts, length, spec.is_encoder())?;
        let samplers = (0..texts.len()).map(|at| options.sampling.sampler_of(at, terms)).collect::<Result<_, _>>()?;
        let plain = if let [plain] = &texts[..] { plain.clone() } else { whole.clone() };
        let guess = options.draft.as_ref().map(|draft| draft.guess(spec)).transpose()?;
        Ok(Ready { options, plain, whole, prompts: texts, samplers, drafts, guess })
    }
}

/// Refuses to compare sampled tokens with the most probable ones.
pub fn check_comparable(terms: &party::Terms, sampled: bool) -> Result<(), Error> {
    match terms.reveal {
        Reveal::Token if sampled => {
            Err(waggle_model::Error::NeedsLogits { what: "a comparison of sampled text" }.into())
        }
        _ => Ok(()),
    }
}

impl Ready<'_> {
    /// The ids of the prompt, without padding.
    pub(crate) fn ids(&self) -> &[u32] {
        self.plain.ids()
    }

    /// The number of texts.
    pub(crate) fn texts(&self) -> usize {
        self.prompts.len()
    }

    /// Lengths of prompt and text as the server sees them.
    pub(crate) fn lengths(&self) -> Lengths {
        Lengths { prompt: self.whole.input().count, tokens: self.options.tokens }
    }

    pub(crate) fn run(
        &mut self,
        session: ClientSession,
        pool: Option<PoolSet>,
        heard: &mut Heard,
    ) -> Result<Outcome, waggle_session::Error> {
        let session = match self.drafts {
            Some(drafts) => session.drafting(drafts),
            None => session,
        };
        let Generate { tokens, stop_at_eos, pad_answer, .. } = *self.options;
        let session = if stop_at_eos { session.stopping_at_eos() } else { session };
        let session = if pad_answer { session.padding_answers() } else { session };
        let next = match (&mut self.samplers[..], &mut self.guess) {
            ([sampler], Some(guess)) => Next::Drafted { sampler, guess: &mut **guess },
            (samplers, _) => Next::Each(samplers.iter_mut().map(Next::Pick).collect()),
        };
        match pool {
            Some(pool) => session.spend(pool, self.whole.clone(), tokens, next, heard),
            None => session.generate(self.whole.clone(), tokens, next, heard),
        }
    }

    /// Generates and reports; `chosen` are options beside those of the generation.
    pub(crate) fn report(
        self,
        model: &party::PublicModel,
        tokenizer: Option<&Tokenizer>,
        outcome: Outcome,
        chosen: impl IntoIterator<Item = Chosen>,
    ) -> Result<Generated, Error> {
        let Ready { options, plain, whole, prompts, .. } = self;
        let Input { count, texts, .. } = whole.input();
        let padded = whole.padding().map(|_| count);
        let own = [
            ("tokens", options.tokens.into()),
            ("padded_prompt", padded.into()),
            ("stop_at_eos", options.stop_at_eos.into()),
        ];
        let chosen = options.sampling.chosen().into_iter().chain(own).chain(chosen);
        let chosen = chosen.chain(options.draft.iter().flat_map(Draft::chosen));
        let chosen = chosen.chain(options.pad_answer.then_some(("pad_answer", Value::from(true))));
        let chosen = chosen.chain((texts > 1).then_some(("texts", Value::from(texts))));
        let mut report = report(model, tokenizer, plain.input().count, &outcome, chosen)?;
        report.peak_memory_bytes.client = waggle_net::peak_memory_bytes();
        if let Some(tokenizer) = tokenizer.filter(|_| prompts.len() > 1 && !model.spec.is_encoder()) {
            let after = |(prompt, ids): (&party::Prompt, &[u32])| {
                let mut stream = tokenizer.stream(prompt.ids());
                let text = ids.iter().map(|id| stream.push(*id)).collect::<Result<String, _>>()?;
                Ok::<_, TokenizerError>(text + &stream.finish()?)
            };
            let texts = prompts.iter().zip(outcome.generation.texts()).map(after);
            report.texts = Some(texts.collect::<Result<_, _>>()?);
        }
        // A score has no name, and a longer text is in the report.
        let named = options.tokens == 1
            && (model.spec.is_multi_label() || model.spec.labels().is_none_or(|labels| labels.len() > 1));
        let class = |token: &u32| match named {
            true => text_of(&model.spec, tokenizer, slice::from_ref(token)),
            false => Ok(None),
        };
        let classes = report.tokens.iter().map(class).collect::<Result<_, _>>()?;
        let each = model.spec.labels().filter(|_| model.spec.is_multi_label()).unwrap_or_default();
        Ok(Generated { report, outcome, prompt: plain, classes, each })
    }
}

/// A text and what it took.
#[derive(Debug)]
pub struct Generated {
    /// The report.
    pub report: Report,
    pub(crate) outcome: Outcome,
    /// That of all texts.
    prompt: party::Prompt,
    /// Name or word of each token, where every token is an answer.
    classes: Vec<Option<String>>,
    /// Names of classes that are found each by itself.
    each: Vec<String>,
}

/// What an encoder says of a text.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// The name of the class that it finds, or the word in the place of the mask, without control characters.
    pub class: Option<String>,
    /// The logits of all classes, or the score of a model with one; empty if the client learned the class alone.
    pub logits: Vec<f32>,
    /// Of a model that finds each class by itself, their names and probabilities, the likeliest first, where their
    /// logits are known; otherwise empty.
    pub each: Vec<(String, f32)>,
}

impl Answer {
    /// That of a model with these logits; `each` has the names of classes that are found each by itself.
    fn new(class: Option<String>, logits: Vec<f32>, each: &[String]) -> Self {
        let sigmoid = |logit: &f32| 1.0 / (1.0 + (-logit).exp());
        let mut each: Vec<_> = each.iter().map(|name| harmless(name)).zip(logits.iter().map(sigmoid)).collect();
        each.sort_by(|a, b| b.1.total_cmp(&a.1));
        Answer { class, logits, each }
    }

    /// The probability of the class that was found, where there are several and their logits are known.
    pub fn probability(&self) -> Option<f32> {
        if let Some((_, most)) = self.each.first() {
            return Some(*most);
        }
        let most = self.logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f32 = self.logits.iter().map(|logit| (logit - most).exp()).sum();
        (self.logits.len() > 1).then(|| 1.0 / sum)
    }

    /// The score of a model that gives no class.
    pub fn score(&self) -> Option<f32> {
        if let ([score], true) = (&self.logits[..], self.each.is_empty()) { Some(*score) } else { None }
    }
}

impl Generated {
    /// The text; empty if there is no tokenizer.
    pub fn text(&self) -> &str {
        self.report.text.as_deref().unwrap_or_default()
    }

    /// The text after each prompt, where a model reads several side by side; empty without a tokenizer.
    pub fn texts(&self) -> &[String] {
        match (&self.report.texts, &self.report.text) {
            (Some(texts), _) => texts,
            (None, Some(text)) => std::slice::from_ref(text),
            (None, None) => &[],
        }
    }

    /// The ids of each text.
    pub fn ids(&self) -> impl Iterator<Item = &[u32]> {
        self.outcome.generation.texts()
    }

    /// The number of tokens of all texts. Unseen ones behind the end of a text count.
    pub fn count(&self) -> usize {
        let Generation { count, lengths, .. } = &self.outcome.generation;
        count * lengths.len()
    }

    /// The logits that the client learned, a row for each token that was picked or for each class of a text; `None`
    /// if it learned tokens alone.
    pub fn logits(&self) -> Option<Vec<Vec<f32>>> {
        self.outcome
            .generation
            .logits
            .as_ref()
            .map(|logits| logits.rows().into_iter().map(|row| row.to_vec()).collect())
    }

    /// What an encoder says of each text.
    pub fn answers(&self) -> Vec<Answer> {
        let Generation { logits, .. } = &self.outcome.generation;
        let answer = |(at, class): (usize, &Option<String>)| {
            let logits = logits.as_ref().map_or_else(Vec::new, |logits| logits.row(at).to_vec());
            Answer::new(class.as_deref().map(harmless), logits, &self.each)
        };
        self.classes.iter().enumerate().map(answer).collect()
    }

    /// Holds the tokens against `model` in the clear, a directory or a bundled name: under the policy of the session,
    /// which shows what the protocol changed, and with the full cache, which shows what pruning changed.
    ///
    /// # Errors
    /// If the model cannot be read or has another shape, and if tokens were sampled and no logits are there to
    /// compare.
    pub fn compare(&mut self, model: &str) -> Result<(), Error> {
        self.compare_adapted(model, None)
    }

    /// [`compare`](Generated::compare) with a model to which an adapter is added, if there is one.
    ///
    /// # Errors
    /// Those of [`compare`](Generated::compare), and those of the adapter.
    pub fn compare_adapted(&mut self, model: &str, adapter: Option<&Path>) -> Result<(), Error> {
        let sampled = self.report.options.get("temperature").and_then(Value::as_f64).is_some_and(|t| t > 0.0);
        check_comparable(&self.outcome.terms, sampled)?;
        let files = open_adapted(model, adapter)?;
        let Generated { report, outcome, prompt, .. } = self;
        let input = prompt.input();
        let terms = &outcome.terms;
        let clear = FloatModel::open(&terms.policy, &files)?;
        let tokens =
            report.options.get("tokens").and_then(Value::as_u64).map_or(outcome.generation.count, |n| n as usize);
        let under = |policy: PolicySpec| {
            let options = waggle_model::GenerateOptions {
                tokens,
                reveal: terms.reveal,
                policy,
                padding: prompt.known_padding(),
                ..waggle_model::GenerateOptions::default()
            };
            check(&clear, input, &options, &outcome.generation)
        };
        report.check = Some(under(terms.policy.clone())?);
        if terms.policy != PolicySpec::default() {
            report.against_full_cache = Some(under(PolicySpec::default())?);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::Answer;

    /// The probabilities of `transformers`' pipeline for these logits: each by itself, or one of all.
    #[test]
    fn classes_that_are_found_by_themselves_have_sigmoids() {
        let logits = vec![1.0672, 0.4969, 0.8747, 1.5071];
        let names = ["toxic", "insult", "threat", "obscene"].map(str::to_owned);
        let each = Answer::new(Some("obscene".into()), logits.clone(), &names);
        let order: Vec<&str> = each.each.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(order, ["obscene", "toxic", "threat", "insult"]);
        for ((_, got), want) in each.each.iter().zip([0.8186, 0.7441, 0.7057, 0.6217]) {
            assert!((got - want).abs() < 1e-3, "{got} {want}");
        }
        assert_eq!((each.probability(), each.score()), (Some(each.each[0].1), None));
        let one = Answer::new(Some("obscene".into()), logits, &[]);
        assert!(one.each.is_empty() && (one.probability().unwrap() - 0.3859).abs() < 0.01, "{one:?}");
        // One class that is there or not is no score.
        let single = Answer::new(None, vec![0.0], &names[..1]);
        assert_eq!((single.probability(), single.score()), (Some(0.5), None));
        assert_eq!(Answer::new(None, vec![2.5], &[]).score(), Some(2.5));
    }
}

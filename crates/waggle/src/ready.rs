//! A generation that is ready to run: a request whose prompt is encoded for a model.

use std::slice;

use waggle_model::{Drafts, Guess, Input, Lengths, ModelSpec, Next, Sampler, check_input};
use waggle_session::PublicPrefix;
use waggle_session::party::{self, ClientSession, Event, Limits, Outcome};
use waggle_session::pool::PoolSet;
use waggle_tokenizer::{Tokenizer, TokenizerError};

use crate::Error;
use crate::error::PromptError;
use crate::generated::Generated;
use crate::heard::Heard;
use crate::prompt::{Place, Prompt, each};
use crate::public::named as public;
use crate::reader::{Reader, text_of};
use crate::request::{Draft, Request};
use crate::summary::{Chosen, report};

/// A request whose prompt is encoded for a model.
pub(crate) struct Ready {
    request: Request,
    /// The prompt without padding. If there are several texts, it is the prompt as the server sees it, padding
    /// included.
    plain: party::Prompt,
    whole: party::Prompt,
    /// The prompt of each text, without padding.
    prompts: Vec<party::Prompt>,
    /// The samplers, one for each text.
    samplers: Vec<Sampler>,
    drafts: Option<Drafts>,
    guess: Option<Box<dyn Guess>>,
    /// Public tokens before every text.
    prefix: Option<PublicPrefix>,
}

impl Ready {
    /// Prepares a `request` that was [read](Request::read), under the agreed `terms`, behind the public tokens
    /// `prefix`. A request that cannot work with the model `spec` is refused before the server is asked, and before
    /// its numbers size any buffer.
    pub(crate) fn new(
        request: Request,
        prefix: Option<PublicPrefix>,
        terms: &party::Terms,
        spec: &ModelSpec,
        reader: &Reader,
    ) -> Result<Self, Error> {
        let Request { tokens, stop_at_eos, pad_answer, samples, .. } = request;
        let drafts = request.draft.as_ref().map(Draft::drafts).transpose()?;
        let public = prefix.as_ref().map_or(0, |prefix| prefix.ids().len());
        let place = if prefix.is_some() { Place::Later } else { Place::First };
        let terms = &party::Terms { prefix: prefix.clone(), ..terms.clone() };
        // The last token does not go through the model, so it takes no position.
        let room = (spec.max_positions() + 1).saturating_sub(tokens).saturating_sub(public);
        let padded = |count: usize| match &request.pad_prompt {
            Some(_) if spec.image().is_some() => Err(waggle_model::Error::Encoder { what: "a padded image" }.into()),
            pads => Ok::<_, Error>(pads.as_ref().map(|pads| pads.of(count, room)).transpose()?),
        };
        let check = |texts: usize, prompt: usize, padded: bool| {
            let draft = drafts;
            let lengths = Lengths { prompt, tokens };
            let request = party::Request { stop_at_eos, pad_answer, padded, texts, draft, ..lengths.into() };
            request.validate(spec, terms, &Limits::NONE)
        };
        let one = |prompt: Prompt| {
            let prompt = prompt.ready_at(place, spec, reader)?;
            let count = prompt.input().count;
            let length = padded(count)?;
            check(1, length.unwrap_or(count), length.is_some())?;
            check_input(spec, prompt.input())?;
            Ok(prompt)
        };
        let texts = match request.prompt.clone() {
            Prompt::Several(all) => each(1, all, one)?,
            prompt => vec![one(prompt)?],
        };
        each(1 + texts.len(), request.later.iter().cloned(), |later| one(later.read()?).map(drop))?;
        if request.class && !spec.is_encoder() {
            return Err(PromptError::NoClass.into());
        }
        let counts = || texts.iter().map(|text| text.input().count);
        let longest = counts().max().unwrap_or(0);
        let length = padded(longest)?;
        let uneven = counts().any(|count| count < longest);
        check(texts.len().saturating_mul(samples), length.unwrap_or(longest), uneven || length.is_some())?;
        let texts: Vec<_> = texts.into_iter().flat_map(|text| vec![text; samples]).collect();
        let whole = party::Prompt::side_by_side(&texts, length, spec.is_encoder())?;
        let samplers = (0..texts.len()).map(|at| request.sampling.sampler_of(at, terms)).collect::<Result<_, _>>()?;
        let plain = if let [plain] = &texts[..] { plain.clone() } else { whole.clone() };
        let guess = request.draft.as_ref().map(|draft| draft.guess(spec)).transpose()?;
        Ok(Ready { request, plain, whole, prompts: texts, samplers, drafts, guess, prefix })
    }

    /// The ids of the prompt, without padding.
    pub(crate) fn ids(&self) -> &[u32] {
        self.plain.ids()
    }

    /// The number of texts.
    pub(crate) fn texts(&self) -> usize {
        self.prompts.len()
    }

    /// The lengths of prompt and text that the server sees, padding included.
    pub(crate) fn lengths(&self) -> Lengths {
        Lengths { prompt: self.whole.input().count, tokens: self.request.tokens }
    }

    pub(crate) fn run(
        &mut self,
        session: ClientSession,
        pool: Option<PoolSet>,
        heard: &mut Heard,
    ) -> Result<Outcome, waggle_session::Error> {
        let watch = &mut |event: Event<'_>| heard.hear(event);
        let session = match self.drafts {
            Some(drafts) => session.drafting(drafts),
            None => session,
        };
        let Request { tokens, stop_at_eos, pad_answer, .. } = self.request;
        let session = session.behind(self.prefix.clone());
        let session = if stop_at_eos { session.stopping_at_eos() } else { session };
        let session = if pad_answer { session.padding_answers() } else { session };
        let next = match (&mut self.samplers[..], &mut self.guess) {
            ([sampler], Some(guess)) => Next::Drafted { sampler, guess: &mut **guess },
            (samplers, _) => Next::Each(samplers.iter_mut().map(Next::Pick).collect()),
        };
        match pool {
            Some(pool) => session.spend(pool, self.whole.clone(), tokens, next, watch),
            None => session.generate(self.whole.clone(), tokens, next, watch),
        }
    }

    /// The result of a session that has ended with `outcome`, and its report. The report names the request's own
    /// options and the options `chosen`.
    pub(crate) fn report(
        self,
        model: &party::PublicModel,
        tokenizer: Option<&Tokenizer>,
        outcome: Outcome,
        chosen: impl IntoIterator<Item = Chosen>,
    ) -> Result<Generated, Error> {
        let Ready { request, plain, whole, prompts, prefix, .. } = self;
        let Input { count, texts, .. } = whole.input();
        let padded = whole.padding().map(|_| count);
        let mut all: Vec<Chosen> = request.sampling.chosen().into();
        all.extend([
            ("tokens", request.tokens.into()),
            ("padded_prompt", padded.into()),
            ("stop_at_eos", request.stop_at_eos.into()),
        ]);
        all.extend(chosen);
        all.extend(request.draft.iter().flat_map(Draft::chosen));
        all.extend(prefix.iter().flat_map(public));
        all.extend(request.pad_answer.then_some(("pad_answer", true.into())));
        all.extend((texts > 1).then_some(("texts", texts.into())));
        let mut report = report(model, tokenizer, plain.input().count, &outcome, all)?;
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
        // A score has no name. The report has longer texts already.
        let named = request.tokens == 1
            && (model.spec.is_multi_label() || model.spec.labels().is_none_or(|labels| labels.len() > 1));
        let class = |token: &u32| match named {
            true => text_of(&model.spec, tokenizer, slice::from_ref(token)),
            false => Ok(None),
        };
        let classes = report.tokens.iter().map(class).collect::<Result<_, _>>()?;
        let each = model.spec.labels().filter(|_| model.spec.is_multi_label()).unwrap_or_default();
        // Padding changes no text, but how many rows go on with it.
        let prompt = if outcome.terms.policy.shed().is_some() { whole } else { plain };
        Ok(Generated::new(report, outcome, prompt, classes, each))
    }
}

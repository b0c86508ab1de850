//! The client's side of a session: the party with the prompt.

use std::path::Path;
use std::time::Instant;

use waggle_model::{Drafts, GenerateOptions, Generation, Lengths, Next, check_input, check_next, generate};
use waggle_net::{Channel, Role};
use waggle_protocols::{Part, Secure};

use super::opening::SessionKind;
use super::recorder::{Recorder, finish};
use super::source::Source;
use super::{
    ChatSession, ClientOptions, Event, Filled, Limits, Outcome, Peer, Prompt, PublicModel, Request, Terms, ToHelper,
    Watch, correlations, helper, opening,
};
use crate::pool::{PoolId, PoolSet, Purpose, UnfinishedPool};
use crate::{Base, Error, PublicPrefix};

/// A session that is open: the parties agree, and the client knows what is public about the model.
pub struct ClientSession {
    channel: Channel,
    server: Peer,
    terms: Terms,
    model: PublicModel,
    base: Option<Base>,
    draft: Option<Drafts>,
    stop_at_eos: bool,
    pad_answer: bool,
    all_positions: bool,
    /// When the session began.
    since: Instant,
    kept: Option<Vec<PoolId>>,
    texts: usize,
    to_helper: Option<ToHelper>,
}

impl ClientSession {
    /// Shakes hands with `server` over `channel`, whose role is client, and receives the description of the model.
    ///
    /// # Errors
    /// [`waggle_net::NetError::Disagreement`] if the parties differ, or another [`waggle_net::NetError`] that names
    /// the step.
    pub fn open(mut channel: Channel, server: &Peer, terms: &Terms, options: &ClientOptions) -> Result<Self, Error> {
        let since = Instant::now();
        let met = opening::meet_server(&mut channel, terms, options);
        let (model, terms) = opening::complaining(&mut channel, met)?;
        Ok(ClientSession {
            channel,
            server: server.clone(),
            terms,
            model,
            base: options.base.cloned(),
            draft: None,
            stop_at_eos: false,
            pad_answer: false,
            all_positions: false,
            since,
            kept: None,
            texts: 1,
            to_helper: None,
        })
    }

    /// This session, for a generation with guesses: the server learns how many tokens each pass keeps. The passes
    /// check the guesses of [`Next::Drafted`]. Without these, nothing sensible is guessed.
    pub fn drafting(self, draft: Drafts) -> Self {
        ClientSession { draft: Some(draft), ..self }
    }

    /// This session, where a text or an answer ends at an end-of-text token.
    pub fn stopping_at_eos(self) -> Self {
        ClientSession { stop_at_eos: true, ..self }
    }

    /// This session, where a text that [ends](Self::stopping_at_eos) at its end-of-text token is padded to the next
    /// [`bucket`](waggle_model::bucket) of tokens. The server learns the bucket alone, and nobody sees the padding.
    pub fn padding_answers(self) -> Self {
        ClientSession { pad_answer: true, ..self }
    }

    /// This session, where the client learns the logits of every position of the prompt too: it scores a given text.
    pub fn scoring_prompt(self) -> Self {
        ClientSession { all_positions: true, ..self }
    }

    /// This session, for [`ClientSession::fill`]: before the pool is filled, the server removes its parts of this
    /// client's pools, except those in `kept`. So `kept` must name all parts of pools that the client has.
    pub fn having_only(self, kept: Vec<PoolId>) -> Self {
        ClientSession { kept: Some(kept), ..self }
    }

    /// This session, for [`ClientSession::fill`]: the pool is for `texts` texts that are read side by side.
    pub fn for_texts(self, texts: usize) -> Self {
        ClientSession { texts, ..self }
    }

    /// This session, with the public tokens `prefix` before every text.
    pub fn behind(mut self, prefix: impl Into<Option<PublicPrefix>>) -> Self {
        self.terms.prefix = prefix.into();
        self
    }

    /// This session, with the way to the helper that its terms name.
    pub fn with_helper(self, to_helper: ToHelper) -> Self {
        ClientSession { to_helper: Some(to_helper), ..self }
    }

    /// The terms on which the parties agreed.
    pub fn terms(&self) -> &Terms {
        &self.terms
    }

    /// The server's description of its model.
    pub fn model(&self) -> &PublicModel {
        &self.model
    }

    /// Generates up to `tokens` tokens after `prompt`, of which the server learns the length alone.
    ///
    /// # Errors
    /// An error before anything is sent, if prompt or length do not fit the model; [`Error::Refused`] if the server
    /// will not do as much; an error that names the step if the peer vanishes or sends nonsense.
    pub fn generate(
        self,
        prompt: impl Into<Prompt>,
        tokens: usize,
        next: Next,
        watch: &mut Watch,
    ) -> Result<Outcome, Error> {
        self.run(prompt.into(), tokens, None, next, watch)
    }

    /// [`ClientSession::generate`] with the correlations of `pool`, which is used up: the files of all its parts are
    /// gone when the first message that depends on them is sent.
    ///
    /// # Errors
    /// As [`ClientSession::generate`]. An error before the server is asked, if the pool was made for another model,
    /// for other terms or for a shorter generation; [`Error::Refused`] if the server has no pool of one of the ids;
    /// [`Error::PoolFile`] if a file is damaged or another process claimed it first.
    pub fn spend(
        self,
        pool: PoolSet,
        prompt: impl Into<Prompt>,
        tokens: usize,
        next: Next,
        watch: &mut Watch,
    ) -> Result<Outcome, Error> {
        self.run(prompt.into(), tokens, Some(pool), next, watch)
    }

    /// The request for these lengths.
    fn request(&self, lengths: Lengths) -> Request {
        let ClientSession { stop_at_eos, pad_answer, all_positions, draft, .. } = *self;
        Request { stop_at_eos, pad_answer: stop_at_eos && pad_answer, all_positions, draft, ..lengths.into() }
    }

    fn run(
        mut self,
        prompt: Prompt,
        tokens: usize,
        pool: Option<PoolSet>,
        next: Next,
        watch: &mut Watch,
    ) -> Result<Outcome, Error> {
        let input = prompt.input();
        let lengths = Lengths { prompt: input.count, tokens };
        let request = &Request { padded: prompt.padding().is_some(), texts: input.texts, ..self.request(lengths) };
        let kind = pool.as_ref().map_or(SessionKind::Generate, |pool| SessionKind::Spend(pool.ids()));
        check_input(&self.model.spec, input)?;
        check_next(&self.model.spec, self.terms.reveal, &next)?;
        kind.validate(request, &self.model.spec, &self.terms, &Limits::NONE)?;
        watch(Event::Setup);
        let peer = self.server.key.as_deref();
        let pool = match pool {
            Some(pool) => {
                // This check precedes the planning, which takes a while.
                pool.check_bound(request)?;
                if let Some(prefix) = &mut self.terms.prefix {
                    // The server states them with its verdict, and they must be those of the pool.
                    prefix.set_frac_bits(pool.prefix_scales());
                }
                let bound = pool.bound();
                let purpose = Purpose::new(&self.model, &self.terms, bound, request.texts, None, peer, watch)?;
                let purposes = purpose.parts(pool.last())?;
                pool.check(&purposes, request)?;
                Some((pool, purposes))
            }
            None => None,
        };
        let ClientSession { mut channel, mut terms, model: public, base, server, to_helper, .. } = self;
        opening::ask(&mut channel, &public, &mut terms, request, &kind)?;
        let stock = match pool {
            Some((pool, purposes)) => Some(correlations::spend(&mut channel, pool.claim(&purposes))?),
            None => None,
        };
        let model = public.shapes(&terms, Base::known(base.as_ref()))?;
        let mut engine = Secure::new(channel, terms.protocol)?;
        let source = Source { stock, peer: &server, to_helper: to_helper.as_ref(), halves: None };
        let ready = correlations::ready(&mut engine, &public, &model.weights(), &terms, request, source, watch)?;
        let options = GenerateOptions { padding: prompt.known_padding(), ..request.options(&terms) };
        let correlations::Ready { helped, passes } = ready;
        let mut recorder = Recorder::new(watch).dealing(passes);
        let generation = generate(&mut engine, &model, input, &options, next, &mut recorder);
        let generation = opening::complaining(engine.channel(), generation.map_err(Error::from))?;
        let helped = helper::leave(&mut engine)?.or(helped);
        engine.channel().confirm_transcript()?;
        Ok(Outcome { helper: [helped, None], ..finish(&mut engine, &terms, request, generation, recorder) })
    }

    /// Opens a chat whose turns have at most the lengths `bound`.
    ///
    /// # Errors
    /// An error before anything is sent, if the lengths do not fit the model, or the policy cuts the first turn alone
    /// ([`Error::TalkPolicy`]) or would choose among padding ([`waggle_model::Error::PaddedPolicy`]);
    /// [`Error::Refused`] if the server will not do as much.
    pub fn chat(self, bound: Lengths, watch: &mut Watch) -> Result<ChatSession, Error> {
        let bound = self.request(bound);
        let ClientSession { mut channel, mut terms, model: public, base, since, .. } = self;
        SessionKind::Chat.validate(&bound, &public.spec, &terms, &Limits::NONE)?;
        opening::ask(&mut channel, &public, &mut terms, &bound, &SessionKind::Chat)?;
        let model = public.shapes(&terms, Base::known(base.as_ref()))?;
        ChatSession::begin(channel, public, terms, model, bound, since, watch)
    }

    /// Makes the correlations of generations up to `bound`. The client's correlations end up in the file `path`,
    /// which must not exist, and the server's in a file of its own. A helper named in the terms deals now, not when
    /// the pool is spent.
    ///
    /// # Errors
    /// An error before anything is sent, if the bound does not fit the model or `path` exists; [`Error::Refused`] if
    /// the server keeps no pools, has too many, will not do as much or cannot write its file. The client has no file
    /// then.
    pub fn fill(self, bound: Lengths, path: &Path, watch: &mut Watch) -> Result<Outcome, Error> {
        self.fill_part(bound, Part::WHOLE, path, watch)
    }

    /// [`ClientSession::fill`] for `part` of the correlations alone.
    ///
    /// # Errors
    /// As [`ClientSession::fill`].
    pub fn fill_part(self, bound: Lengths, part: Part, path: &Path, watch: &mut Watch) -> Result<Outcome, Error> {
        let unfinished = UnfinishedPool::create(path).map_err(|e| e.at(path))?;
        watch(Event::Setup);
        let ClientSession { mut channel, server, mut terms, model: public, base, .. } = self;
        let ClientSession { kept, texts, all_positions, to_helper, .. } = self;
        let (request, kind) = (Request { texts, all_positions, ..bound.into() }, SessionKind::Fill { part, kept });
        kind.validate(&request, &public.spec, &terms, &Limits::NONE)?;
        opening::ask(&mut channel, &public, &mut terms, &request, &kind)?;
        let purpose = Purpose::new(&public, &terms, bound, texts, None, server.key.as_deref(), watch)?;
        let purpose = purpose.part(part)?;
        let id = opening::learn_pool(&mut channel)?;
        let model = public.shapes(&terms, Base::known(base.as_ref()))?;
        let mut engine = Secure::new(channel, terms.protocol)?;
        let source = Source { stock: None, peer: &server, to_helper: to_helper.as_ref(), halves: None };
        let (stock, helped) = correlations::make(&mut engine, &model.weights(), &terms, &purpose, &source, watch)?;
        engine.channel().confirm_transcript()?;
        let written = unfinished.write(id, Role::Client, &purpose, stock).map_err(|e| e.at(path));
        let publish = written.map(|written| || Ok(written.publish()?));
        correlations::keep(engine.channel(), publish).map_err(|e| e.pool_at(path))?;
        let outcome = finish(&mut engine, &terms, &request, Generation::default(), Recorder::new(watch));
        Ok(Outcome { filled: Some(Filled { id, part }), helper: [helped, None], ..outcome })
    }
}

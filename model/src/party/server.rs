//! The party with the model.

use std::sync::OnceLock;

use net::{Channel, Role};
use protocols::{Fixed, FixedWeight, Secure, Stock};

use super::opening::Errand;
use super::recorder::{Booked, Recorder, finish};
use super::{Caller, Limits, Observer, Outcome, PublicModel, Request, Terms, correlations, opening};
use crate::pool::{Bound, Draft, Pool, PoolError, PoolId, Pools, Purpose, digest};
use crate::{Error, Generation, Input, Model, ModelFiles, Next, Reveal, Sampler, generate};

/// A model in fixed point, ready for any number of sessions, one after another or at once.
pub struct Hosted {
    model: Model<FixedWeight>,
    public: PublicModel,
    pools: Option<Pools>,
    /// Of the weights; made when a pool first asks for it.
    digest: OnceLock<String>,
}

/// What a session was granted.
enum Grant {
    /// A generation, with this stock if it comes from a pool.
    Generate(Option<Stock>),
    /// A new pool.
    Fill(Box<Purpose>),
}

impl Hosted {
    /// Reads and prepares the weights of `files`.
    ///
    /// # Errors
    /// By the tensor's name: what is missing, has another shape, is not finite or does not fit the fixed point.
    pub fn load(files: ModelFiles) -> Result<Self, Error> {
        let ModelFiles { name, spec, mut checkpoint, tokenizer } = files;
        let mut engine = Fixed::new();
        let model = Model::load(&mut engine, &spec, Some(&mut checkpoint))?;
        let scales = engine.scales().to_vec();
        let public = PublicModel { name, spec, scales, tokenizer };
        Ok(Hosted { model, public, pools: None, digest: OnceLock::new() })
    }

    /// Lets clients fill and spend pools, of which the server keeps its part in `pools`.
    pub fn with_pools(self, pools: Pools) -> Self {
        Hosted { pools: Some(pools), ..self }
    }

    /// What clients may know.
    pub fn public(&self) -> &PublicModel {
        &self.public
    }

    /// Runs one session over `channel`, whose role is server, with the client `caller`, who chooses the number of phases
    /// within the `limits`.
    ///
    /// # Errors
    /// [`net::NetError::Disagreement`] if the parties differ; [`Error::Limit`], [`Error::Phases`], [`Error::Planning`], [`Error::Quota`],
    /// [`Error::TooLong`], [`Error::Nothing`], [`Error::Pool`] or [`Error::PoolFile`] for a request that is refused; an
    /// error that names the step if the client vanishes or sends nonsense. None of them affects the next session.
    pub fn serve(
        &self,
        mut channel: Channel,
        caller: &Caller,
        terms: &Terms,
        limits: &Limits,
        observer: &mut dyn Observer,
    ) -> Result<Outcome, Error> {
        let accept = |request: &Request, errand: Errand, terms: &Terms| {
            // What is cheap to refuse comes before what takes time.
            request.check_planning(&self.public.spec, terms)?;
            let learns = errand != Errand::Fill && terms.reveal == Reveal::Logits;
            observer.ask(if learns { request.tokens as u64 } else { 0 })?;
            self.accept(caller, request, errand, terms)
        };
        let (request, terms, grant) = opening::receive_client(&mut channel, &self.public, terms, limits, accept)?;
        let terms = &terms;
        let stock = match grant {
            Grant::Generate(stock) => stock,
            Grant::Fill(purpose) => return self.fill(channel, terms, &request, &purpose, observer),
        };
        observer.setup();
        let mut engine = Secure::new(channel, terms.protocol)?;
        let weights = self.model.weights();
        correlations::ready(&mut engine, &self.public, &weights, terms, &request, stock, observer)?;
        let input = Input { ids: None, count: request.prompt };
        // The server picks nothing: it never sees logits.
        let mut unused = Sampler::greedy();
        let mut recorder = Recorder::new(observer);
        let options = request.options(terms);
        let next = Next::Pick(&mut unused);
        let generation = generate(&mut engine, &self.model, input, &options, next, &mut recorder)?;
        engine.confirm_transcript()?;
        Ok(finish(&mut engine, terms, &request, generation, recorder))
    }

    /// Grants or refuses an errand within the limits. The pool of an [`Errand::Spend`] is used up when this returns it.
    fn accept(&self, _caller: &Caller, request: &Request, errand: Errand, terms: &Terms) -> Result<Grant, Error> {
        let pools = || self.pools.as_ref().ok_or(PoolError::NoPools);
        match errand {
            Errand::Generate => Ok(Grant::Generate(None)),
            Errand::Fill => {
                pools()?.room()?;
                Ok(Grant::Fill(Box::new(self.purpose(terms, Bound::of(request))?)))
            }
            Errand::Spend(id) => {
                let path = pools()?.path(id);
                let at = |error: PoolError| match error {
                    PoolError::Gone => PoolError::Unknown { id }.into(),
                    other => other.at(&path),
                };
                let pool = Pool::open(&path, Role::Server).map_err(at)?;
                if pool.id() != id {
                    return Err(at(PoolError::Replaced { expected: id, found: pool.id() }));
                }
                pool.bound().check(request).map_err(at)?;
                let purpose = self.purpose(terms, pool.bound())?;
                pool.check(&purpose, request).map_err(at)?;
                Ok(Grant::Generate(Some(pool.claim(&purpose).map_err(at)?)))
            }
        }
    }

    fn purpose(&self, terms: &Terms, bound: Bound) -> Result<Purpose, Error> {
        let digest = self.digest.get_or_init(|| digest(&self.model.weights()));
        Purpose::new(&self.public, terms, bound, Some(digest))
    }

    /// The session of a client that fills a pool.
    fn fill(
        &self,
        mut channel: Channel,
        terms: &Terms,
        request: &Request,
        purpose: &Purpose,
        observer: &mut dyn Observer,
    ) -> Result<Outcome, Error> {
        let id = PoolId::random();
        let pools = self.pools.as_ref().ok_or(PoolError::NoPools)?;
        let path = pools.path(id);
        opening::name_pool(&mut channel, id)?;
        observer.setup();
        let mut engine = Secure::new(channel, terms.protocol)?;
        let stock = correlations::make(&mut engine, &self.model.weights(), purpose, observer)?;
        engine.confirm_transcript()?;
        let written = Draft::write(&path, id, Role::Server, purpose, stock).and_then(Draft::publish);
        correlations::confirm(engine.channel(), written.map_err(|e| e.at(&path)))?;
        let outcome = finish(&mut engine, terms, request, Generation::default(), Recorder::new(observer));
        Ok(Outcome { filled: Some(id), ..outcome })
    }
}

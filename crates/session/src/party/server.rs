//! The server's side of a session: the party with the model.

use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use rand::rngs::StdRng;
use waggle_model::{
    Disclosed, Generation, Known, Lengths, Model, ModelFiles, Next, PartDigests, Parts, Sampler, generate,
};
use waggle_mpcache::PolicySpec;
use waggle_net::{Channel, Role};
use waggle_protocols::halves::HalvesOwner;
use waggle_protocols::{FixedLoader, FixedWeight, Secure, Spread, Stock, WeightCache};
use waggle_tokenizer::ChatTemplate;

use super::opening::SessionKind;
use super::recorder::{Recorder, finish};
use super::source::Source;
use super::{
    Event, Filled, Limits, Outcome, Peer, PublicModel, Request, Terms, ToHelper, Watch, chat, correlations, helper,
    opening,
};
use crate::event;
use crate::pool::{Place, PoolError, PoolId, PoolSet, Pools, Purpose, digest};
use crate::prefix::Prefixes;
use crate::{Disclosure, Error, PublicPrefix, RangeCheck, check_ranges};

/// A model in fixed point, ready for any number of sessions, one after another or at once.
pub struct ModelServer {
    model: Model<FixedWeight>,
    public: PublicModel,
    pools: Option<Pools>,
    to_helper: Option<ToHelper>,
    /// The owner of the seeds from which clients expand their halves of the weights, where a helper has the other
    /// halves.
    halves: HalvesOwner,
    /// Whether each client's key has halves of its own.
    halves_by_client: bool,
    /// Digest of the weights, computed when a pool first needs it.
    digest: OnceLock<String>,
    /// Public tokens that were read for sessions.
    prefixes: Prefixes,
}

/// Loads a server's model; [`ServerBuilder::default`] serves policies without learned columns, keeps no transforms
/// and computes in one process.
#[derive(Clone, Default)]
pub struct ServerBuilder {
    policy: PolicySpec,
    public: Parts,
    weight_cache: usize,
    spread: Option<Arc<dyn Spread>>,
}

impl ServerBuilder {
    /// Serves sessions under `policy`, and under policies that need the same columns of the model
    /// ([`Model::load_for`]). Other policies are refused.
    pub fn policy(self, policy: &PolicySpec) -> Self {
        ServerBuilder { policy: policy.clone(), ..self }
    }

    /// Takes `parts` of the model as public: clients have them, and take part in the products with them. By default
    /// no part is public.
    pub fn public(self, parts: &Parts) -> Self {
        ServerBuilder { public: parts.clone(), ..self }
    }

    /// Keeps transforms of weights in memory, up to `bytes` of them, once a product under encryption has made them.
    pub fn weight_cache(self, bytes: usize) -> Self {
        ServerBuilder { weight_cache: bytes, ..self }
    }

    /// Shares products in the clear, and answers to requests of the preparation, among all processes of `spread`. The
    /// other processes load the files at the same time with [`all_matrices`](crate::all_matrices).
    pub fn spread(self, spread: impl Into<Option<Arc<dyn Spread>>>) -> Self {
        ServerBuilder { spread: spread.into(), ..self }
    }

    /// Reads the weights of `files` and prepares them.
    ///
    /// # Errors
    /// [`waggle_model::PartsError`] for public parts that the model does not have. An error with the name of a tensor
    /// that is missing, has another shape, is not finite or does not fit the fixed point;
    /// [`CheckpointError`](waggle_model::CheckpointError) for a file of learned columns that is missing or does not
    /// fit; [`waggle_protocols::Error::Spread`].
    pub fn load(self, files: ModelFiles) -> Result<ModelServer, Error> {
        let ServerBuilder { policy, public: parts, weight_cache, spread } = self;
        let ModelFiles { name, spec, checkpoint, tokenizer, .. } = files;
        let mut loader = match weight_cache {
            0 => FixedLoader::default(),
            limit => FixedLoader::keeping(WeightCache::new(limit)),
        };
        if let Some(spread) = spread {
            loader = loader.spread_over(spread);
        }
        let disclosed = Disclosed { parts, ranks: checkpoint.ranks() };
        let model = Model::load_disclosed(&disclosed, &policy, &mut loader, &spec, Known::All(&checkpoint))?;
        let digests = match disclosed.parts.is_empty() {
            true => PartDigests::default(),
            false => checkpoint.digests(&spec)?.of(&disclosed.parts),
        };
        let (frac_bits, disclosure) = (loader.frac_bits().to_vec(), Disclosure { disclosed, digests });
        let public = PublicModel { name, spec, frac_bits, disclosure, tokenizer, template: None, offer: None };
        let halves = HalvesOwner::new(&mut rand::make_rng::<StdRng>());
        let (digest, prefixes) = (OnceLock::new(), Prefixes::default());
        let (pools, to_helper, halves_by_client) = (None, None, false);
        Ok(ModelServer { model, public, pools, to_helper, halves, halves_by_client, digest, prefixes })
    }
}

/// The session that a client was granted.
enum Grant {
    /// A generation.
    Generate,
    /// A generation from this pool, whose parts were made for these purposes.
    Spend(Box<(PoolSet, Vec<Purpose>)>),
    /// A new pool, or a part of one.
    Fill(Box<(Filled, Place, Purpose)>),
    /// A chat.
    Chat,
}

impl ModelServer {
    /// Loads a model: `ModelServer::builder().policy(&policy).load(files)`.
    pub fn builder() -> ServerBuilder {
        ServerBuilder::default()
    }

    /// Puts a short text through the model in the clear, see [`check_ranges()`].
    ///
    /// # Errors
    /// [`Error::Ranges`] if a value leaves the range of an operation; [`Error::Tokenizer`] if clients would
    /// refuse the tokenizer.
    pub fn check_ranges(&self) -> Result<RangeCheck, Error> {
        check_ranges(&self.model, self.public.tokenizer.as_deref())
    }

    /// Lets clients fill and spend pools. The server keeps its own files of them in `pools`.
    pub fn with_pools(self, pools: Pools) -> Self {
        ModelServer { pools: Some(pools), ..self }
    }

    /// Uses `to_helper` to reach the helper that the terms name.
    pub fn with_helper(self, to_helper: ToHelper) -> Self {
        ModelServer { to_helper: Some(to_helper), ..self }
    }

    /// With `by_client` every client's key gets a seed of its own, and the helper a set of halves for each key.
    /// Otherwise all clients have one seed, and the helper one set of halves: any client's seed together with the
    /// halves that the helper has for another client then gives all weights.
    pub fn with_halves(self, by_client: bool) -> Self {
        ModelServer { halves_by_client: by_client, ..self }
    }

    /// Sends `template` to clients that ask for one.
    ///
    /// # Errors
    /// Errors of [`ChatTemplate::to_bytes`].
    pub fn with_template(mut self, template: Option<&ChatTemplate>) -> Result<Self, Error> {
        self.public.template = template.map(ChatTemplate::to_bytes).transpose()?;
        Ok(self)
    }

    /// Offers `prefix` to clients, and reads it.
    ///
    /// # Errors
    /// As for a client's own prefix.
    pub fn with_offer(mut self, prefix: Option<PublicPrefix>) -> Result<Self, Error> {
        if let Some(prefix) = &prefix {
            let mut terms = Terms { prefix: Some(prefix.clone()), ..Terms::default() };
            prefix.check(&self.public.spec, &terms)?;
            self.model(&mut terms)?;
        }
        self.public.offer = prefix;
        Ok(self)
    }

    /// The model behind the public tokens of `terms`, which learn the fractional bits of its matrices.
    fn model(&self, terms: &mut Terms) -> Result<Model<FixedWeight>, Error> {
        match &mut terms.prefix {
            Some(prefix) => self.prefixes.after(&self.model, prefix),
            None => Ok(self.model.clone()),
        }
    }

    /// The public facts of the model, which clients may know.
    pub fn public(&self) -> &PublicModel {
        &self.public
    }

    /// Runs one session over `channel`, whose role is server, with the client `peer`, who chooses the number of
    /// phases within the `limits`.
    ///
    /// # Errors
    /// [`Error::OtherColumns`] if the model was loaded for other policies than that of the terms;
    /// [`waggle_net::NetError::Disagreement`] if the parties differ; errors of [`Request::validate`],
    /// [`Error::NoChats`], [`Error::TalkPolicy`], [`Error::Quota`], [`Error::Pool`] or [`Error::PoolFile`] for a
    /// request that is refused; an error that names the step if the client vanishes or sends nonsense. None of them
    /// affects the next session.
    pub fn serve(
        &self,
        mut channel: Channel,
        peer: &Peer,
        terms: &Terms,
        limits: &Limits,
        watch: &mut Watch,
    ) -> Result<Outcome, Error> {
        let begun = SystemTime::now();
        let learned = self.model.scoring_head();
        if let Some(policy) = terms.policies().find(|policy| policy.scoring_head() != learned) {
            return Err(Error::OtherColumns { learned, policy: policy.to_string() });
        }
        let accept = |request: &Request, kind: SessionKind, terms: &mut Terms| {
            // This check is cheap, so it precedes what takes time.
            kind.validate(request, &self.public.spec, terms, limits)?;
            // A chat asks at each of its turns, and a pool when it is spent.
            let reads = !matches!(kind, SessionKind::Fill { .. } | SessionKind::Chat);
            event::ask(watch, if reads { request.positions() } else { 0 })?;
            let model = self.model(terms)?;
            Ok((model, self.accept(peer, request, kind, terms, begun, watch)?))
        };
        let received = opening::receive_client(&mut channel, &self.public, terms, accept);
        let (request, terms, (model, grant)) = opening::complaining(&mut channel, received)?;
        let (terms, model) = (&terms, &model);
        let stock = match grant {
            Grant::Generate => None,
            Grant::Spend(spent) => {
                let (pool, purposes) = *spent;
                Some(correlations::spend_for_client(&mut channel, pool, &purposes)?)
            }
            Grant::Chat => {
                let setting = chat::Setting { public: &self.public, model, terms, bound: &request };
                return chat::talk(channel, &setting, limits, watch);
            }
            Grant::Fill(place) => return self.fill(channel, peer, model, (terms, &request), *place, watch),
        };
        watch(Event::Setup);
        let mut engine = Secure::new(channel, terms.protocol)?;
        let weights = model.weights();
        let source = self.source(stock, peer);
        let ready = correlations::ready(&mut engine, &self.public, &weights, terms, &request, source, watch)?;
        // The server picks nothing: it never sees logits.
        let mut unused = Sampler::greedy();
        let correlations::Ready { helped, passes } = ready;
        let mut recorder = Recorder::new(watch).showing(&request).dealing(passes);
        let options = request.options(terms);
        let next = Next::Pick(&mut unused);
        let generation = generate(&mut engine, model, request.input(), &options, next, &mut recorder);
        let generation = opening::complaining(engine.channel(), generation.map_err(Error::from))?;
        let helped = helper::leave(&mut engine)?.or(helped);
        engine.channel().confirm_transcript()?;
        Ok(Outcome { helper: [None, helped], ..finish(&mut engine, terms, &request, generation, recorder) })
    }

    /// Grants or refuses a session of this `kind`, which began at `begun`. If a client that fills a pool says which
    /// parts it has, its other files are removed first. The parts of a pool that is to be spent become pending. A
    /// grant uses no correlations up.
    fn accept(
        &self,
        peer: &Peer,
        request: &Request,
        kind: SessionKind,
        terms: &Terms,
        begun: SystemTime,
        watch: &mut Watch,
    ) -> Result<Grant, Error> {
        let key = peer.key.as_deref();
        let pools = || self.pools.as_ref().ok_or(PoolError::NoPools);
        match kind {
            SessionKind::Generate | SessionKind::Score | SessionKind::Behind(..) => Ok(Grant::Generate),
            SessionKind::Chat => Ok(Grant::Chat),
            SessionKind::Fill { part, kept } => {
                let filled = Filled { id: PoolId::random(), part };
                if let Some(kept) = kept {
                    pools()?.forget(key, &kept, begun)?;
                }
                let place = pools()?.reserve(filled.id, key, request.lengths, part)?;
                let purpose = self.purpose(key, terms, request.lengths, request.texts, watch)?.part(part)?;
                Ok(Grant::Fill(Box::new((filled, place, purpose))))
            }
            SessionKind::Spend(ids) => {
                let pool = pools()?.set(&ids)?;
                pool.check_bound(request)?;
                let purposes = self.purpose(key, terms, pool.bound(), request.texts, watch)?.parts(pool.last())?;
                pool.check(&purposes, request)?;
                Ok(Grant::Spend(Box::new((pools()?.set_aside(pool)?, purposes))))
            }
        }
    }

    fn purpose(
        &self,
        peer: Option<&str>,
        terms: &Terms,
        bound: Lengths,
        texts: usize,
        watch: &mut Watch,
    ) -> Result<Purpose, Error> {
        let digest = self.digest.get_or_init(|| digest(&self.model.weights()));
        Purpose::new(&self.public, terms, bound, texts, Some(digest), peer, watch)
    }

    /// Where the correlations of a session with `peer` come from.
    fn source<'a>(&'a self, stock: Option<Stock>, peer: &'a Peer) -> Source<'a> {
        let halves = match self.halves_by_client {
            true => self.halves.of_client(&helper::digest(peer.key.as_deref())),
            false => self.halves.clone(),
        };
        let (to_helper, halves) = (self.to_helper.as_ref(), Some(halves));
        Source { stock, peer, to_helper, halves }
    }

    /// Runs the session of a client that was allowed to fill a pool.
    fn fill(
        &self,
        mut channel: Channel,
        peer: &Peer,
        model: &Model<FixedWeight>,
        (terms, request): (&Terms, &Request),
        (filled, place, purpose): (Filled, Place, Purpose),
        watch: &mut Watch,
    ) -> Result<Outcome, Error> {
        let (unfinished, waiting) = place.split();
        opening::name_pool(&mut channel, filled.id)?;
        watch(Event::Setup);
        let mut engine = Secure::new(channel, terms.protocol)?;
        let source = self.source(None, peer);
        let (stock, helped) = correlations::make(&mut engine, &model.weights(), terms, &purpose, &source, watch)?;
        engine.channel().confirm_transcript()?;
        let written = unfinished.write(filled.id, Role::Server, &purpose, stock).map_err(Error::from);
        correlations::keep_for_client(engine.channel(), written, &waiting)?;
        let outcome = finish(&mut engine, terms, request, Generation::default(), Recorder::new(watch));
        Ok(Outcome { filled: Some(filled), helper: [None, helped], ..outcome })
    }
}

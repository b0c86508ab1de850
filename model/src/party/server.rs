//! The party with the model.

use net::Channel;
use protocols::{Fixed, FixedWeight, Secure};

use super::recorder::{Recorder, finish};
use super::{Limits, Observer, Outcome, PublicModel, Terms, needs, opening};
use crate::{Error, Input, Model, ModelFiles, Next, Sampler, generate};

/// A model in fixed point, ready for any number of sessions, one after another or at once.
pub struct Hosted {
    model: Model<FixedWeight>,
    public: PublicModel,
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
        Ok(Hosted { model, public: PublicModel { name, spec, scales, tokenizer } })
    }

    /// What clients may know.
    pub fn public(&self) -> &PublicModel {
        &self.public
    }

    /// Runs one session over `channel`, whose role is server.
    ///
    /// # Errors
    /// [`net::NetError::Disagreement`] if the parties differ; [`Error::Limit`], [`Error::TooLong`] or
    /// [`Error::Nothing`] for a request that is refused; an error that names the step if the client vanishes or sends
    /// nonsense. None of them affects the next session.
    pub fn serve(
        &self,
        mut channel: Channel,
        terms: &Terms,
        limits: &Limits,
        observer: &mut dyn Observer,
    ) -> Result<Outcome, Error> {
        let request = opening::receive_client(&mut channel, &self.public, terms, limits)?;
        observer.setup();
        let mut engine = Secure::new(channel, terms.protocol)?;
        if terms.protocol.preprocess {
            let PublicModel { spec, scales, .. } = &self.public;
            let needs = needs(spec, scales, terms, &request)?;
            engine.prepare(&needs, &self.model.weights(), &mut |done, total| observer.prepare(done, total))?;
        }
        let input = Input { ids: None, count: request.prompt };
        // The server picks nothing: it never sees logits.
        let mut unused = Sampler::greedy();
        let mut recorder = Recorder::new(observer);
        let options = request.options(terms);
        let next = Next::Pick(&mut unused);
        let generation = generate(&mut engine, &self.model, input, &options, next, &mut recorder)?;
        Ok(finish(&mut engine, &request, generation, recorder))
    }
}

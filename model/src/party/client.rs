//! The party with the prompt.

use net::Channel;
use protocols::{Fixed, Secure};

use super::recorder::{Recorder, finish};
use super::{Observer, Outcome, PublicModel, Request, Terms, check_ids, needs, opening};
use crate::{Error, Input, Model, ModelSpec, Next, generate};

/// What a client wants from a server beyond the terms.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wishes<'a> {
    /// The shape that the model must have; both parties report a difference.
    pub expected: Option<&'a ModelSpec>,
    /// Whether to send the tokenizer.
    pub tokenizer: bool,
}

/// A session that is open: the parties agree, and the client knows what is public about the model.
pub struct Opened {
    channel: Channel,
    terms: Terms,
    model: PublicModel,
}

impl Opened {
    /// Shakes hands over `channel`, whose role is client, and receives the description of the model.
    ///
    /// # Errors
    /// [`net::NetError::Disagreement`] if the parties differ, or another [`net::NetError`] that names the step.
    pub fn open(mut channel: Channel, terms: &Terms, wishes: &Wishes) -> Result<Self, Error> {
        let model = opening::meet_server(&mut channel, terms, wishes)?;
        Ok(Opened { channel, terms: terms.clone(), model })
    }

    /// What the server says about its model.
    pub fn model(&self) -> &PublicModel {
        &self.model
    }

    /// Generates up to `tokens` tokens after the ids `prompt`, of which the server learns the number alone.
    ///
    /// # Errors
    /// Before anything is sent if prompt or length do not fit the model; [`Error::Refused`] if the server will not
    /// do as much; an error that names the step if the peer vanishes or sends nonsense.
    pub fn generate(
        self,
        prompt: &[u32],
        tokens: usize,
        stop_at_eos: bool,
        next: Next,
        observer: &mut dyn Observer,
    ) -> Result<Outcome, Error> {
        let Opened { mut channel, terms, model: PublicModel { spec, scales, .. } } = self;
        check_ids(&spec, prompt)?;
        let request = Request { prompt: prompt.len(), tokens, stop_at_eos };
        observer.setup();
        opening::ask(&mut channel, &spec, &request)?;
        let mut shapes = Fixed::new();
        shapes.expect_scales(scales.clone())?;
        let model = Model::load(&mut shapes, &spec, None)?;
        let mut engine = Secure::new(channel, terms.protocol)?;
        if terms.protocol.preprocess {
            let needs = needs(&spec, &scales, &terms, &request)?;
            engine.prepare(&needs, &model.weights(), &mut |done, total| observer.prepare(done, total))?;
        }
        let input = Input { ids: Some(prompt), count: prompt.len() };
        let mut recorder = Recorder::new(observer);
        let generation = generate(&mut engine, &model, input, &request.options(&terms), next, &mut recorder)?;
        Ok(finish(&mut engine, &request, generation, recorder))
    }
}

//! What a client may know of a model.

use waggle_model::{Disclosed, Known, Model, ModelSpec};
use waggle_protocols::{FixedLoader, FixedWeight};
use waggle_tokenizer::ChatTemplate;

use crate::base::Disclosure;
use crate::fingerprint::Fingerprint;
use crate::terms::Terms;
use crate::{Error, PublicPrefix};

/// The public facts of a model, which a client may know.
#[derive(Clone, Debug, PartialEq)]
pub struct PublicModel {
    /// Name, for reports.
    pub name: String,
    /// Architecture and shape.
    pub spec: ModelSpec,
    /// Fractional bits of each weight, in the order of [`Model::load`](waggle_model::Model::load). The number tells
    /// about the logarithm of the weight's largest entry.
    pub frac_bits: Vec<u32>,
    /// Which parts are public, and what the server adds to the matrices of its layers.
    pub disclosure: Disclosure,
    /// Text of `tokenizer.json`, or of `preprocessor_config.json` where the model reads images, if there is one and
    /// the client asked for it.
    pub tokenizer: Option<Vec<u8>>,
    /// The chat template as JSON, empty if there is none; `None` unless the client asked for it.
    pub template: Option<Vec<u8>>,
    /// The public tokens that the server offers, if it offers some and the client has a use for them.
    pub offer: Option<PublicPrefix>,
}

impl PublicModel {
    /// The model of a shape alone, whose weights are assumed to be below 16.
    ///
    /// # Errors
    /// [`waggle_model::PartsError`] for parts that the model does not have.
    pub fn of_shape(name: String, spec: ModelSpec, disclosed: Disclosed) -> Result<Self, Error> {
        let frac_bits = vec![waggle_protocols::DEFAULT_WEIGHT_FRAC; spec.weight_specs_of(&disclosed)?.len()];
        let disclosure = Disclosure::planned(disclosed, &spec);
        Ok(PublicModel { name, spec, frac_bits, disclosure, tokenizer: None, template: None, offer: None })
    }

    /// The fingerprint of the model; it lacks the tokenizer or the chat template if the server was not asked for it,
    /// and the offer of public tokens if this party has no use for it.
    ///
    /// # Errors
    /// See [`Fingerprint::new`].
    pub fn fingerprint(&self) -> Result<Fingerprint, Error> {
        let fingerprint = Fingerprint::new(&self.spec, self.tokenizer.as_deref(), self.template.as_deref())?;
        let offer = self.offer.as_ref().map(PublicPrefix::digest);
        Ok(fingerprint.with_public(self.disclosure.stated()?.as_deref()).with_offer(offer.as_deref()))
    }

    /// The model's chat template, if it has one.
    ///
    /// # Errors
    /// See [`ChatTemplate::from_bytes`].
    pub fn chat_template(&self) -> Result<Option<ChatTemplate>, Error> {
        let bytes = self.template.as_deref().filter(|bytes| !bytes.is_empty());
        Ok(bytes.map(ChatTemplate::from_bytes).transpose()?)
    }

    /// The model under `terms` as a party without its values knows it: shapes, and what is `known` of public parts.
    pub(crate) fn shapes(&self, terms: &Terms, known: Known) -> Result<Model<FixedWeight>, Error> {
        let mut loader = FixedLoader::announced(&self.frac_bits)?;
        let (parts, spec) = (&self.disclosure.disclosed, &self.spec);
        let model = Model::load_disclosed(parts, &terms.policy, &mut loader, spec, known)?;
        let Some(prefix) = &terms.prefix else { return Ok(model) };
        Ok(model.after(prefix.shapes(&model, terms)?))
    }
}

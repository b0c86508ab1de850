//! The public parts of a model, which the client has itself.
//!
//! The server says which parts are public, and the client has its parts in a directory of its own. So each party
//! states digests in the handshake: the server states those of its public parts, and the client those of all parts in
//! its directory. Both parties compare the digests of the public parts. If one differs, they end the session before
//! anything else is sent ([`BaseError`]).

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use thiserror::Error;
use waggle_model::{Checkpoint, Disclosed, Known, ModelFiles, ModelPart, ModelSpec, PartDigests};
use waggle_net::{Field, Handshake};

use crate::Error;

/// The field of the handshake in which a server states its public parts.
const PUBLIC: &str = "public";
/// The field of the handshake in which a client states the digests of its parts.
const BASE: &str = "base";
/// The step of the handshake, which errors about both fields name.
const STEP: &str = "handshake";

/// Why two parties do not agree on the public parts of a model.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum BaseError {
    /// The server's model has public parts, and the client has none of them.
    #[error("`{parts}` of the server's model is public, and the client has none of it")]
    Missing {
        /// The public parts that the client lacks.
        parts: String,
    },
    /// The client has a directory of public parts, and the server's model has no public part.
    #[error("the server's model has no public part, and the client has a base")]
    Unused,
    /// A public part is not the same at both parties.
    #[error("the {part} is public and differs: the client has {client}, the server has {server}")]
    Differs {
        /// The part that differs.
        part: ModelPart,
        /// The digest of the client's part.
        client: String,
        /// The digest of the server's part.
        server: String,
    },
    /// The client's directory holds a model of another shape than the server's.
    #[error("the shape of the client's base is not that of the server's model")]
    Shape,
}

/// What a server says of its public parts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Disclosure {
    /// The public parts, and the ranks of what the server adds to the matrices of its layers.
    #[serde(flatten)]
    pub disclosed: Disclosed,
    /// The digests of the public parts.
    pub digests: PartDigests,
}

impl Disclosure {
    /// The disclosure for a plan, where the weights of the model are not known.
    pub fn planned(disclosed: Disclosed, spec: &ModelSpec) -> Self {
        let digests = PartDigests::unknown(spec.layers()).of(&disclosed.parts);
        Disclosure { disclosed, digests }
    }

    /// The disclosure as JSON; `None` if it discloses nothing.
    pub(crate) fn stated(&self) -> Result<Option<String>, Error> {
        let json = || serde_json::to_string(self).map_err(|e| waggle_model::ConfigError::Json(e.to_string()));
        Ok((!self.disclosed.is_nothing()).then(json).transpose()?)
    }

    /// Adds the disclosure to a server's handshake.
    pub(crate) fn tell(&self, hello: Handshake) -> Result<Handshake, Error> {
        Ok(match self.stated()? {
            Some(text) => hello.tell(PUBLIC, text),
            None => hello,
        })
    }

    /// Compares the digests `base` of what a client has with those of the public parts. `base` is `None` for a client
    /// without a directory.
    fn compare(&self, base: Option<&PartDigests>) -> Result<(), BaseError> {
        let parts = &self.disclosed.parts;
        let base = match base {
            Some(_) if parts.is_empty() => return Err(BaseError::Unused),
            None if parts.is_empty() => return Ok(()),
            None => return Err(BaseError::Missing { parts: waggle_tokenizer::printable(&parts.to_string(), 200) }),
            Some(base) => base,
        };
        // A list that is shorter lacks a digest.
        let layers = base.layers.len().max(self.digests.layers.len());
        let all = [ModelPart::Embedding, ModelPart::Head].into_iter().chain((0..layers).map(ModelPart::Layer));
        for part in all.filter(|part| parts.hold(*part)) {
            let [client, server] = [base, &self.digests].map(|digests| digests.get(part));
            if client != server {
                let shown = |digest: &str| waggle_tokenizer::printable(digest, 64);
                return Err(BaseError::Differs { part, client: shown(client), server: shown(server) });
            }
        }
        Ok(())
    }

    /// On the server: compares the digests in a client's fields with the disclosure.
    pub(crate) fn check_client(&self, theirs: &[Field]) -> Result<(), Error> {
        Ok(self.compare(read::<PartDigests>(theirs, BASE)?.as_ref())?)
    }
}

/// A client's own directory of a model that has public parts.
#[derive(Clone)]
pub struct Base {
    pub(crate) spec: ModelSpec,
    /// The parts in the directory; `None` in a plan.
    checkpoint: Option<Arc<Checkpoint>>,
    digests: PartDigests,
}

impl Base {
    /// The base whose model is in `files`. The whole model is read once, for its digests.
    ///
    /// # Errors
    /// An error that names the tensor, if one is missing or has another shape.
    pub fn new(files: ModelFiles) -> Result<Self, Error> {
        let ModelFiles { spec, checkpoint, .. } = files;
        let digests = checkpoint.digests(&spec)?;
        Ok(Base { spec, checkpoint: Some(Arc::new(checkpoint)), digests })
    }

    /// The base of the client in a rehearsed opening: that of a model of the shape `spec` with this `disclosure`.
    /// `None` if no part is public, because the client then needs no base.
    pub(crate) fn rehearsed(spec: &ModelSpec, disclosure: &Disclosure) -> Option<Self> {
        let Disclosure { disclosed, digests } = disclosure;
        // All digests have one length, and the digest of a part that is not public does not matter.
        let fill = |digest: &str| if digest.is_empty() { "0".repeat(64) } else { digest.to_owned() };
        let PartDigests { embedding, head, layers } = digests;
        let layers = layers.iter().map(|digest| fill(digest)).collect();
        let digests = PartDigests { embedding: fill(embedding), head: fill(head), layers };
        (!disclosed.parts.is_empty()).then(|| Base { spec: spec.clone(), checkpoint: None, digests })
    }

    /// Adds the digests of the base to a client's handshake.
    pub(crate) fn tell(base: Option<&Self>, hello: Handshake) -> Result<Handshake, Error> {
        let Some(base) = base else { return Ok(hello) };
        let text =
            serde_json::to_string(&base.digests).map_err(|e| waggle_model::ConfigError::Json(e.to_string()))?;
        Ok(hello.tell(BASE, text))
    }

    /// On the client: reads the server's disclosure from its fields, and compares `base` with it.
    pub(crate) fn check_server(base: Option<&Self>, theirs: &[Field]) -> Result<Disclosure, Error> {
        let disclosure: Disclosure = read(theirs, PUBLIC)?.unwrap_or_default();
        disclosure.compare(base.map(|base| &base.digests))?;
        Ok(disclosure)
    }

    /// The values of the model that the client knows.
    pub(crate) fn known(base: Option<&Self>) -> Known<'_> {
        base.and_then(|base| base.checkpoint.as_deref()).map_or(Known::Nothing, Known::Public)
    }
}

/// The value of the field `name`, if there is one.
fn read<T: for<'de> Deserialize<'de>>(fields: &[Field], name: &str) -> Result<Option<T>, Error> {
    let Some(field) = fields.iter().find(|field| field.name == name) else { return Ok(None) };
    let malformed = |e: serde_json::Error| {
        let what = waggle_tokenizer::printable(&format!("`{name}` is not possible: {e}"), 200);
        waggle_net::NetError::Malformed { step: STEP, what }
    };
    Ok(Some(serde_json::from_str(&field.value).map_err(malformed)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A part without a digest is never the client's, whatever a server states.
    #[test]
    fn a_part_without_a_digest_differs() {
        let base = PartDigests::unknown(3);
        let stated = |parts: &str, digests| Disclosure {
            disclosed: Disclosed { parts: parts.parse().unwrap(), ..Disclosed::default() },
            digests,
        };
        assert_eq!(stated("all", base.clone()).compare(Some(&base)), Ok(()));
        assert_eq!(stated("layers=1", PartDigests::unknown(2)).compare(Some(&base)), Ok(()));
        for digests in [PartDigests::default(), PartDigests::unknown(1), PartDigests::unknown(4)] {
            let differs = stated("embedding,layers=2-3", digests).compare(Some(&base));
            assert!(matches!(differs, Err(BaseError::Differs { .. })), "{differs:?}");
        }
        assert!(matches!(stated("head", base.clone()).compare(None), Err(BaseError::Missing { .. })));
        assert_eq!(stated("", base.clone()).compare(Some(&base)), Err(BaseError::Unused));
    }
}

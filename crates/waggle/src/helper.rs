//! The helper of a session: its address, its key, and how a party connects to it.

use std::time::Duration;

use waggle_net::tcp::{self, ConnectOptions};
use waggle_net::{Channel, Link, NetError, PublicKey, Role, Shaped, tls};
use waggle_protocols::HelperDeals;
use waggle_session::party::ToHelper;
use waggle_study::cost::Phases;

use crate::error::OptionsError;
use crate::{Error, Network, Proof};

/// Text that stands for the helper's key where nothing is encrypted.
const NO_KEY: &str = "plaintext";

/// A third machine that deals prepared correlations to both parties. It sees shapes and lengths, but no value. It
/// must not collude with either party.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Helper {
    /// The helper's address.
    pub address: String,
    /// The helper's key; `None` without encryption.
    pub key: Option<PublicKey>,
    /// The correlations that the helper deals.
    pub deals: HelperDeals,
}

impl Helper {
    /// A helper without an address, for plans.
    pub fn assumed(deals: HelperDeals) -> Self {
        Helper { address: String::new(), key: Some(PublicKey::from_bytes([0; 32])), deals }
    }

    /// A helper without an address, for plans of sessions with these `phases`. `None` if they have no helper.
    pub fn for_phases(phases: Phases) -> Option<Self> {
        Some(phases.deals()).filter(|deals| *deals != HelperDeals::Nothing).map(Helper::assumed)
    }

    /// The text by which a party names this helper in its terms: the helper's key.
    pub(crate) fn name(&self) -> String {
        self.key.map_or_else(|| NO_KEY.into(), |key| key.to_string())
    }

    /// The connection settings by which a party with `proof` reaches this helper. It is an error if only one of the
    /// two has a key.
    pub(crate) fn way(&self, proof: &Proof, network: Network, timeout: Duration) -> Result<ToHelper, Error> {
        let identity = proof.identity()?;
        if identity.is_some() != self.key.is_some() {
            return Err(OptionsError::HelperKey { given: self.key.is_some() }.into());
        }
        let Helper { address, key, .. } = self.clone();
        let options = ConnectOptions { connect_timeout: timeout, read_timeout: timeout };
        let own = identity.as_ref().map(|identity| identity.public().to_string());
        Ok(ToHelper::new(own, move || {
            let link: Box<dyn Link> = match (&identity, key) {
                (Some(identity), Some(key)) => {
                    Box::new(tls::connect(&*address, identity, move |proved| *proved == key, options)?)
                }
                _ => Box::new(tcp::connect(&*address, options)?),
            };
            let Some(shape) = network.shape() else { return Ok(Channel::new(Role::Client, link)) };
            let shaped = Shaped::new(link, shape);
            let shaped = shaped.map_err(|source| NetError::Io { step: "shape the link to the helper", source })?;
            Ok(Channel::new(Role::Client, shaped))
        }))
    }
}

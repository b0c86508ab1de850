//! The terms that two parties state before a session.

use std::num::NonZeroUsize;

use serde::{Deserialize, Serialize};
use waggle_engine::LogitBits;
use waggle_model::{ModelSpec, Reveal};
use waggle_mpcache::PolicySpec;
use waggle_net::LinkShape;

use crate::{Base, PublicPrefix};

/// The facts that both parties state before a session and must state alike. The client alone chooses the number of
/// phases ([`waggle_protocols::Options::preprocess`]); the server adopts it or refuses. Cores and link may be left
/// open: the parties then find them out, and the [outcome](crate::party::Outcome::terms) has them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    /// Choices of the protocols.
    pub protocol: waggle_protocols::Options,
    /// The outputs that the client learns of each position. In a server's terms, the most that it permits.
    pub reveal: Reveal,
    /// Fractional bits of the logits that the client learns.
    pub logit_bits: LogitBits,
    /// Which part of the cache a token looks at.
    pub policy: PolicySpec,
    /// Other policies that a server lets its clients choose.
    pub others: Vec<PolicySpec>,
    /// Tokens of the prompt that go through the model together; `None` lets memory decide, which is the same for both
    /// parties.
    pub prefill_chunk: Option<NonZeroUsize>,
    /// Public tokens before every text, if there are some. A server learns them with the request.
    pub prefix: Option<PublicPrefix>,
    /// The text of the helper's key, if the session has a helper ([`waggle_protocols::Options::helper`]); empty
    /// without encryption.
    pub helper: Option<String>,
    /// The network that this party imitates by slowing what it sends. Both parties imitate the same network, or
    /// neither imitates one.
    pub imitated: Option<LinkShape>,
    /// Which of the terms this party was not given.
    pub open: Open,
    /// What the parties found out; `None` before a session.
    pub found: Option<Findings>,
}

impl Terms {
    /// The policy, then the other policies.
    pub fn policies(&self) -> impl Iterator<Item = &PolicySpec> {
        std::iter::once(&self.policy).chain(&self.others)
    }
}

/// Which terms a party was not given: it takes those of its peer, or what both parties find out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Open {
    /// Whether the cores are open. [`Terms::protocol`] then states the party's own cores.
    pub cores: bool,
    /// Whether the link is open. [`Terms::protocol`] then states a guess.
    pub link: bool,
    /// Whether a client leaves open what is revealed: it takes what the server permits.
    pub reveal: bool,
}

/// What parties found out about each other and the link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Findings {
    /// The number of bursts by which the parties measured the link ([`waggle_net::Measured::bursts`]); `None` if the
    /// link was given.
    pub bursts: Option<usize>,
    /// The families of kernels of the client and the server, in this order.
    pub kernels: [String; 2],
}

/// The party at the other end of a session, as far as the link has proved it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Peer {
    /// The text of its public key; `None` on a link that proves none.
    pub key: Option<String>,
}

/// A client's wishes beyond the terms.
#[derive(Clone, Copy, Default)]
pub struct ClientOptions<'a> {
    /// The shape that the model must have; both parties report a difference.
    pub expected: Option<&'a ModelSpec>,
    /// The client's own directory of the model, if parts of the model are public.
    pub base: Option<&'a Base>,
    /// Whether the server is to send the tokenizer.
    pub tokenizer: bool,
    /// Whether the server is to send the chat template.
    pub template: bool,
    /// Whether this party has no use for public tokens that the server offers. It then forgets them, so that they are
    /// not compared either.
    pub without_offer: bool,
}

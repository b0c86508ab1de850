//! State that all sessions of a server share: the model, and the limits of clients.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::Sender;

use waggle_model::Reveal;
use waggle_session::party::{self, Limits, ModelServer, Open, Outcome, Peer};
use waggle_session::pool::{count, find};

use super::accounts::Book;
use super::config::{Reveals, ServerConfig};
use super::desk::Desk;
use super::door::Door;
use super::host::Host;
use super::metrics::{Metrics, Now};
use super::watch::Watch;
use crate::Error;

/// An event for which the server's main thread waits.
pub(super) enum Happened {
    Begun,
    Ended(Box<Result<Outcome, Error>>),
    Stop(&'static str),
}

/// The state that all sessions share.
pub(super) struct Service {
    pub(super) config: ServerConfig,
    pub(super) hosted: ModelServer,
    pub(super) terms: party::Terms,
    pub(super) limits: Limits,
    pub(super) host: Host,
    pub(super) accounts: Option<Book>,
    pub(super) desk: Arc<Desk>,
    pub(super) door: Arc<Door>,
    pub(super) watch: Arc<Watch>,
    pub(super) metrics: Arc<Metrics>,
    /// Whether the server accepts no connection any more.
    pub(super) over: AtomicBool,
    pub(super) events: Sender<Happened>,
}

impl Service {
    /// Whether a client is this server's own: it proves the same key, or neither party proves any.
    pub(super) fn owns(&self, peer: &Peer) -> bool {
        self.host.key().map(|key| key.to_string()) == peer.key
    }

    /// The terms for a client. A client with another key than the server's learns tokens alone, unless the server's
    /// terms say otherwise.
    pub(super) fn terms_for(&self, peer: &Peer) -> party::Terms {
        let of_key = if self.owns(peer) { Reveal::Logits } else { Reveal::Token };
        let reveal = self.config.terms.reveal.unwrap_or(of_key);
        let open = Open { reveal: false, ..self.terms.open };
        party::Terms { reveal, open, ..self.terms.clone() }
    }

    /// The accounts in which a client's positions are counted; `None` if this client's positions are not counted.
    pub(super) fn accounts_of(&self, peer: &Peer) -> Option<&Book> {
        let counted = self.config.max_reveals != Reveals::OfModel || !self.owns(peer);
        self.accounts.as_ref().filter(|_| counted)
    }

    pub(super) fn tell(&self, event: Happened) {
        // If the server has ended, nobody waits for the event.
        let _ = self.events.send(event);
    }

    /// The current numbers for the page of counters. A directory that cannot be read counts as 0 pools.
    pub(super) fn now(&self) -> Now {
        let (running, waiting) = self.desk.counts();
        let pools = self.config.pools.as_deref().and_then(|dir| find(dir).ok()).map_or(0, |files| count(&files));
        Now { running, waiting, pools }
    }
}

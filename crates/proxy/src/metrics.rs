//! Counters, in the text format of Prometheus.

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

use crate::spent::{ReadIn, Spent};

type Label = [(&'static str, String); 1];

pub(super) struct Metrics {
    registry: Registry,
    answers: Family<Label, Counter>,
    sessions: Family<Label, Counter>,
    pub(super) waiting: Gauge,
    pub(super) tokens: Counter,
    texts: Counter,
    bytes: Counter,
    flows: Counter,
    seconds: Counter<f64, std::sync::atomic::AtomicU64>,
}

impl Metrics {
    pub(super) fn new() -> Self {
        let mut registry = Registry::with_prefix("waggle_proxy");
        let (answers, sessions) = (Family::default(), Family::default());
        let (waiting, tokens) = (Gauge::default(), Counter::default());
        let (texts, bytes) = (Counter::default(), Counter::default());
        let (flows, seconds) = (Counter::default(), Counter::default());
        registry.register("responses", "Answers by their code of HTTP", answers.clone());
        registry.register("passes", "Passes and turns, by the session that they are in", sessions.clone());
        registry.register("requests_waiting", "Requests that wait for the server", waiting.clone());
        registry.register("tokens", "Tokens generated", tokens.clone());
        registry.register("texts", "Texts that went through the model", texts.clone());
        registry.register_with_unit(
            "protocol",
            "Bytes of the protocol, preparation included",
            Unit::Bytes,
            bytes.clone(),
        );
        registry.register("flows", "Flows of the protocol", flows.clone());
        registry.register_with_unit("server", "Time of passes and turns", Unit::Seconds, seconds.clone());
        Metrics { registry, answers, sessions, waiting, tokens, texts, bytes, flows, seconds }
    }

    pub(super) fn answered(&self, status: u16) {
        self.answers.get_or_create(&[("code", status.to_string())]).inc();
    }

    /// Counts the cost of a finished pass or turn with this number of texts.
    pub(super) fn spent(&self, spent: &Spent, texts: usize) {
        let session = match spent.session {
            ReadIn::Own => "own",
            ReadIn::Shared => "shared",
            ReadIn::New => "new",
            ReadIn::Kept => "kept",
        };
        self.sessions.get_or_create(&[("session", session.into())]).inc();
        self.texts.inc_by(texts as u64);
        self.bytes.inc_by(spent.bytes + spent.prepared_bytes);
        self.flows.inc_by(spent.flows);
        self.seconds.inc_by(spent.seconds);
    }

    pub(super) fn page(&self) -> String {
        let mut page = String::new();
        encode(&mut page, &self.registry).expect("a string takes all text");
        page
    }
}

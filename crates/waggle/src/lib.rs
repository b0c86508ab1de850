//! Private text generation between two parties: a server with a language model, and a client with a prompt. The
//! server learns neither the prompt nor the text, and the client does not learn the weights.
//!
//! | name | what it is |
//! |---|---|
//! | [`Client`] | generates and talks with the model of a server |
//! | [`Chat`] | a conversation |
//! | [`Server`] | serves a model to many clients |
//! | [`Local`] | both parties in one process |
//! | [`Plan`] | what a session would send, from shapes alone |
//! | [`Study`] | what cache policies cost in accuracy |
//! | [`GlueStudy`] | how often an encoder is right |
//! | [`register_policy`], [`register_activation`] | add policies and activations of other crates by name |
//! | [`engine`], [`mpcache`], [`model`], … | the crates on which policies, activations and families of models build |
//!
//! ```no_run
//! use waggle::{Client, Request, on_text};
//!
//! fn main() -> Result<(), waggle::Error> {
//!     waggle::init();
//!     let client = Client::new("example.org");
//!     println!("{}", client.generate("Once upon a time")?.text());
//!     let request = Request::after("Once upon a time").tokens(20);
//!     let text = client.generate_with(&request, &mut on_text(|piece| print!("{piece}")))?;
//!     println!("\n{} seconds", text.report.phases.decode.total.seconds);
//!     Ok(())
//! }
//! ```
//!
//! The crate `waggle-cli` is the command line, and the crate `waggle-proxy` an HTTP server with OpenAI's interface. A
//! program of another crate registers its own policies and activations, then calls `waggle_cli::run()`: it has all
//! commands, which know the new names. `examples/outside` is a crate with such programs, to copy.
#![deny(missing_docs)]
#![forbid(unsafe_code)]

mod chat;
mod client;
mod error;
mod generated;
mod heard;
mod helper;
mod keys;
mod local;
mod models;
mod options;
mod pixels;
mod plan;
mod prompt;
mod public;
mod reader;
mod ready;
mod request;
mod server;
mod study;
mod summary;
mod terms;
mod worker;

pub use {
    waggle_engine as engine, waggle_model as model, waggle_mpcache as mpcache, waggle_net as net,
    waggle_planner as planner, waggle_protocols as protocols, waggle_report as report, waggle_session as session,
    waggle_tokenizer as tokenizer,
};

pub use waggle_engine::LogitBits;
pub use waggle_model::{Lengths, Parts, Reveal};
pub use waggle_mpcache::PolicySpec;
pub use waggle_net::{Identity, LinkShape, PublicKey};
pub use waggle_ot::CotKind;
pub use waggle_planner::Profile;
pub use waggle_protocols::{Cores, HelperDeals, Made, Masks, Packing, Part};
pub use waggle_report::{Phases, Report};
pub use waggle_session::names;
pub use waggle_session::party::chat::TurnCost;
pub use waggle_session::party::{Event, Filled, Findings, Flow, Outcome, Watch, nobody};
pub use waggle_session::{RegisterError, register_activation, register_policy};
pub use waggle_study::eval::{StudyEngine, StudyReport};
pub use waggle_study::glue::GlueReport;
pub use waggle_tokenizer::ChatTemplate;

pub use chat::{
    BackgroundChat, Chat, ChatOptions, ChatReport, LOOKS, Readiness, Role, Said, Template, Transcript, TurnReport,
    template_note,
};
pub use client::{Client, Fill, Prepared};
pub use error::{
    ChatError, Error, Full, NameError, OptionsError, PromptError, Refusal, ServeError, TrustError, describe,
};
pub use generated::{Answer, Generated};
pub use heard::on_text;
pub use helper::Helper;
pub use keys::{KeyFile, Proof, identity};
pub use local::{Local, LocalOptions};
pub use pixels::{ImageError, Pixels};
pub use plan::{Machines, Plan};
pub use prompt::Prompt;
pub use public::{Public, offer_note};
pub use request::{Draft, Guesser, Pads, Request, Sampling, TokenizerOf};
pub use server::{Allow, HelperConfig, HelperServer, Job, Reveals, Server, ServerConfig, Stop};
pub use study::{GlueStudy, Study};
pub use terms::{Network, Terms};
pub use worker::{init, init_as};

/// Name of the bundled model that is used where a caller names none.
pub const DEFAULT_MODEL: &str = "stories260k";

/// Items that the command line and the proxy use, and that other programs hardly need. They may change with any
/// version.
pub mod program {
    pub use crate::chat::Words;
    pub use crate::client::{address, pools_at, with_port};
    pub use crate::generated::check_comparable;
    pub use crate::keys::{file, make_home};
    pub use crate::models::{Stated, mapped_bytes, open_adapted, open_model, public_model};
    pub use crate::pixels::Preprocessor;
    pub use crate::plan::LAN;
    pub use crate::prompt::{ids_of, read_text, texts, utf8};
    pub use crate::public::named as public_facts;
    pub use crate::reader::{Reader, harmless, text_of, tokenizer};
    pub use crate::server::{network_of, on_signal};
    pub use crate::study::again;
    pub use crate::summary::{PROGRAM, built, provenance};
    pub use crate::terms::{ASSUMED_CORES, by_name};
    pub use crate::worker::{called, foreign, words};
}

pub use waggle_model::{bundled_names as models, bundled_texts as texts};
pub use waggle_mpcache::catalogue as policies;

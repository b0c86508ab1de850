//! Both parties in one process.

use std::path::PathBuf;
use std::time::Duration;

use waggle_model::{Lengths, ModelSpec, Parts};
use waggle_session::Base;
use waggle_session::party::{ClientOptions, Limits, ModelServer, Terms as Agreed, Watch, in_one_process, nobody};

use crate::error::OptionsError;
use crate::generated::Generated;
use crate::heard::Heard;
use crate::models::{open_adapted, open_model};
use crate::options::options;
use crate::reader::Reader;
use crate::ready::Ready;
use crate::request::Request;
use crate::{Error, Network, Terms};

options! {
    /// Options of a session of both parties in one process.
    LocalOptions {
        /// Terms that both parties would state.
        terms: Terms = Terms::default(),
        /// Parts of the model that both parties have.
        public: Parts = Parts::default(),
        /// Directory of a LoRA in PEFT's form that the server adds to the model's matrices.
        adapter: Option<PathBuf> as impl Into<Option<PathBuf>> = None,
        /// Bytes of transformed weights that the server may keep in memory.
        weight_cache: usize = 0,
        /// Whether the model first reads a text in the clear. This finds models whose values leave the ranges of
        /// operations.
        range_check: bool = true,
        /// Time that a party waits for the other one.
        timeout: Duration = Duration::from_secs(3600),
    }
}

/// Both parties of sessions with one model, in one process. They run the whole protocol, over memory.
pub struct Local {
    name: String,
    options: LocalOptions,
    spec: ModelSpec,
    reader: Reader,
}

impl Local {
    /// Opens `model`, a directory or a bundled name.
    ///
    /// # Errors
    /// If there is no such model, or it is damaged.
    pub fn open(model: &str, options: LocalOptions) -> Result<Self, Error> {
        let files = open_model(model)?;
        let reader = Reader::of(&files)?;
        Ok(Local { name: model.into(), options, spec: files.spec, reader })
    }

    /// Positions that the model has.
    pub fn positions(&self) -> usize {
        self.spec.max_positions()
    }

    /// Whether the model is an encoder, which reads a text at once and gives its class.
    pub fn is_encoder(&self) -> bool {
        self.spec.is_encoder()
    }

    /// Lengths of the prompt and the text as the server sees them.
    ///
    /// # Errors
    /// If the generation cannot work with the model.
    pub fn lengths(&self, request: &Request) -> Result<Lengths, Error> {
        let terms = self.terms()?;
        let own = request.reader()?;
        Ok(self.ready(request, &terms, own.as_ref().unwrap_or(&self.reader))?.lengths())
    }

    fn terms(&self) -> Result<Agreed, Error> {
        if self.options.terms.helper.is_some() {
            return Err(OptionsError::HelperNeedsLinks.into());
        }
        self.options.terms.together(Network::Memory).over(Network::Memory)
    }

    /// Prepares a generation, and refuses one that cannot work with the model.
    fn ready(&self, request: &Request, terms: &Agreed, reader: &Reader) -> Result<Ready, Error> {
        if request.pool.is_some() {
            return Err(OptionsError::PoolNeedsServer.into());
        }
        let prefix = request.public.as_ref().map(|public| public.encoded(reader.tokenizer())).transpose()?;
        Ready::new(request.read(terms)?, prefix, terms, &self.spec, reader)
    }

    /// Generates text.
    ///
    /// # Errors
    /// If the generation cannot work with the model, or the model leaves the ranges of operations.
    pub fn generate(&self, request: impl Into<Request>) -> Result<Generated, Error> {
        self.generate_with(&request.into(), &mut nobody)
    }

    /// [`Local::generate`], watched.
    ///
    /// # Errors
    /// As [`Local::generate`].
    pub fn generate_with(&self, request: &Request, watch: &mut Watch) -> Result<Generated, Error> {
        let LocalOptions { public, adapter, weight_cache, range_check, timeout, .. } = &self.options;
        let terms = self.terms()?;
        let own = request.reader()?;
        let reader = own.as_ref().unwrap_or(&self.reader);
        let tokenizer = reader.tokenizer();
        let mut ready = self.ready(request, &terms, reader)?;
        let files = open_adapted(&self.name, adapter.as_deref())?;
        let server = ModelServer::builder().policy(&terms.policy).public(public).weight_cache(*weight_cache);
        let server = server.load(files)?;
        if *range_check {
            server.check_ranges()?;
        }
        let base = (!public.is_empty()).then(|| Ok::<_, Error>(Base::new(open_model(&self.name)?)?)).transpose()?;
        let wanted = ClientOptions { base: base.as_ref(), ..ClientOptions::default() };
        let mut heard = Heard::new(self.spec.labels(), tokenizer, ready.ids(), watch).of_texts(ready.texts());
        let outcomes = in_one_process(&server, &terms, &Limits::NONE, &wanted, *timeout, |session| {
            ready.run(session, None, &mut heard)
        });
        let [outcome, _] = heard.finish(outcomes)?;
        let chosen = [("link", Network::Memory.to_string().into()), ("processes", 1.into())];
        let mut generated = ready.report(server.public(), tokenizer, outcome, chosen)?;
        let memory = &mut generated.report.peak_memory_bytes;
        memory.server = memory.client;
        Ok(generated)
    }
}

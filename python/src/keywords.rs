//! Keyword arguments, each with its type.

use std::fmt::Display;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use pyo3::conversion::FromPyObjectOwned;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use waggle::{
    Allow, ChatOptions, Client, Cores, Draft, LinkShape, Pads, Plan, PolicySpec, Prompt, Proof, Public, PublicKey,
    Request, Reveals, Sampling, ServerConfig, Template, Terms, TokenizerOf, names,
};

use crate::{Input, Words, failed, said};

/// The value of the keyword `batch`: the number of texts that a model reads side by side. 0 is refused.
fn places(batch: usize) -> PyResult<NonZeroUsize> {
    NonZeroUsize::new(batch).ok_or_else(|| failed("batch: give 1 or more"))
}

/// Keyword arguments that are taken one by one. An argument `None` counts as not given.
pub(crate) struct Keywords<'py>(Bound<'py, PyDict>);

/// Sets options from keywords, by the methods of the same names.
macro_rules! set {
    ($options:ident, $keywords:ident: $($name:ident $(= $from:literal)? $how:ident $(($of:expr))?),* $(,)?) => {
        $(
            let keyword = [$($from,)? stringify!($name)][0];
            if let Some(value) = $keywords.$how(keyword $(, $of)?)? {
                $options = $options.$name(value);
            }
        )*
    };
}

impl<'py> Keywords<'py> {
    pub(crate) fn new(py: Python<'py>, given: Option<&Bound<'py, PyDict>>) -> PyResult<Self> {
        given.map_or_else(|| Ok(PyDict::new(py)), |given| given.copy()).map(Keywords)
    }

    /// Refuses keywords that were not taken.
    pub(crate) fn finish(self) -> PyResult<()> {
        match self.0.keys().iter().next() {
            Some(name) => Err(failed(format!("there is no option `{name}`"))),
            None => Ok(()),
        }
    }

    fn any(&self, name: &str) -> PyResult<Option<Bound<'py, PyAny>>> {
        let Some(value) = self.0.get_item(name)? else { return Ok(None) };
        self.0.del_item(name)?;
        if value.is_callable() {
            return Err(PyTypeError::new_err(format!("{name}: only evaluate() runs a function of Python")));
        }
        Ok(Some(value).filter(|value| !value.is_none()))
    }

    /// Takes the keyword `name`, with a value of this type.
    pub(crate) fn take<T: FromPyObjectOwned<'py>>(&self, name: &str) -> PyResult<Option<T>> {
        let Some(value) = self.any(name)? else { return Ok(None) };
        match value.extract() {
            Ok(value) => Ok(Some(value)),
            Err(error) => {
                let error: PyErr = error.into();
                Err(PyTypeError::new_err(format!("{name}: {error}")))
            }
        }
    }

    /// Takes a keyword whose value is parsed from a text, or from a number's text.
    fn read<T: FromStr<Err: Display>>(&self, name: &str) -> PyResult<Option<T>> {
        let Some(value) = self.any(name)? else { return Ok(None) };
        let value = value.str()?.to_string().parse().map_err(|error| failed(format!("{name}: {error}")))?;
        Ok(Some(value))
    }

    /// Takes a keyword whose value is a name in `table`, and returns the name's entry.
    fn named<T: Copy>(&self, name: &str, table: &[(&'static str, T)]) -> PyResult<Option<T>> {
        let Some(text) = self.take::<String>(name)? else { return Ok(None) };
        let known = table.iter().find(|(known, _)| *known == text);
        let names = || table.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
        let value = known.ok_or_else(|| failed(format!("{name}: `{text}` is none of {}", names())))?;
        Ok(Some(value.1))
    }

    fn seconds(&self, name: &str) -> PyResult<Option<Duration>> {
        let Some(seconds) = self.take::<f64>(name)? else { return Ok(None) };
        // No step of a protocol takes a day.
        match (0.001..=86_400.0).contains(&seconds) {
            true => Ok(Some(Duration::from_secs_f64(seconds))),
            false => Err(failed(format!("{name}: give 0.001 to 86400 seconds"))),
        }
    }

    /// Takes the keyword `name`, which is true or false, and returns its opposite; `None` if it is not given.
    fn not(&self, name: &str) -> PyResult<Option<bool>> {
        Ok(self.take::<bool>(name)?.map(|given| !given))
    }

    fn is(&self, name: &str) -> PyResult<bool> {
        Ok(self.take(name)?.unwrap_or(false))
    }

    pub(crate) fn terms(&self) -> PyResult<Terms> {
        let mut terms = Terms::default();
        let mut policy: PolicySpec = self.read("policy")?.unwrap_or_default();
        if let Some(select) = self.take::<String>("select")? {
            policy = policy.with("select", &select).map_err(failed)?;
        }
        set!(terms, self: reveal named(&names::REVEALS), logit_bits read, ot named(&names::OT_SOURCES),
            packing named(&names::PACKINGS), masks named(&names::MASKS));
        Ok(terms
            .policy(policy)
            .preprocess(self.take::<bool>("preprocess")?)
            .cores(self.read::<Cores>("cores")?)
            .plan_for(self.read::<LinkShape>("plan_for")?)
            .prefill_chunk(self.read::<NonZeroUsize>("prefill_chunk")?))
    }

    fn sampling(&self) -> PyResult<Sampling> {
        let mut sampling = Sampling::default();
        set!(sampling, self: temperature take, top_p take);
        Ok(sampling.seed(self.take::<u64>("seed")?))
    }

    pub(crate) fn plan(&self, model: String) -> PyResult<Plan> {
        let mut plan = Plan::of(model).terms(self.terms()?);
        set!(plan, self: prompt = "prompt_len" take, texts take, network = "link" read, stop_at_eos take,
            pad_prompt take);
        Ok(plan.tokens(self.take::<usize>("tokens")?).cached(self.take::<usize>("cached")?))
    }

    fn proof(&self) -> PyResult<Proof> {
        let identity = self.take::<PathBuf>("identity")?;
        Ok(match self.is("insecure_plaintext")? {
            true => Proof::Plaintext,
            false => identity.map_or(Proof::User, Proof::File),
        })
    }

    pub(crate) fn client(&self, address: String) -> PyResult<Client> {
        let mut client = Client::new(address).terms(self.terms()?).proof(self.proof()?);
        set!(client, self: network = "link" read, timeout seconds, connect_timeout seconds);
        // Nobody is there to whom an offer could be shown.
        let client = client.offers(false);
        Ok(client.expect(self.text("expect")?).server_key(self.read::<PublicKey>("server_key")?))
    }

    /// Public tokens before texts: a text or ids, and the policy by which the server prunes them.
    fn public(&self) -> PyResult<Option<Public>> {
        let policy = self.read::<PolicySpec>("prefix_policy")?;
        match self.take::<Words>("public_prefix")? {
            Some(text) => Ok(Some(Public::of(text).policy(policy.unwrap_or_default()))),
            None if policy.is_some() => Err(failed("prefix_policy needs a public_prefix")),
            None => Ok(None),
        }
    }

    /// Takes a text or a path.
    fn text(&self, name: &str) -> PyResult<Option<String>> {
        Ok(self.take::<PathBuf>(name)?.map(|path| path.to_string_lossy().into_owned()))
    }

    pub(crate) fn generate(&self, prompt: Words, tokens: usize) -> PyResult<Request> {
        let mut request = Request::after(prompt).tokens(tokens).sampling(self.sampling()?);
        let mut draft: Option<Draft> = self.read("draft")?;
        if let Some(rate) = self.take("draft_rate")? {
            draft = draft.map(|draft| draft.rate(rate));
        }
        let tokenizer = self.take::<PathBuf>("tokenizer")?.map_or(TokenizerOf::Server, TokenizerOf::File);
        set!(request, self: samples take, stop_at_eos take, pad_answer take);
        Ok(request
            .public(self.public()?)
            .pad_prompt(self.read::<Pads>("pad_prompt")?)
            .draft(draft)
            .pool(self.take::<PathBuf>("pool")?)
            .tokenizer(tokenizer))
    }

    /// The requests for `inputs`, one for each session of `batch` inputs.
    pub(crate) fn classify(&self, inputs: Vec<Input>, batch: usize) -> PyResult<Vec<Request>> {
        let reader = match (self.take::<PathBuf>("tokenizer")?, self.take::<PathBuf>("preprocessor")?) {
            (Some(_), Some(_)) => return Err(failed("tokenizer and preprocessor exclude each other")),
            (tokenizer, preprocessor) => tokenizer.or(preprocessor),
        };
        let request = Request::default()
            .tokens(1)
            .pad_prompt(self.read::<Pads>("pad")?)
            .pool(self.take::<PathBuf>("pool")?)
            .tokenizer(reader.map_or(TokenizerOf::Server, TokenizerOf::File));
        let inputs: Vec<Prompt> = inputs.into_iter().map(Prompt::from).collect();
        request.batches(&inputs, places(batch)?).map_err(said)
    }

    pub(crate) fn chat(&self) -> PyResult<ChatOptions> {
        let mut options = ChatOptions::default().sampling(self.sampling()?);
        let (stops, never) = (self.is("stop_at_eos")?, self.is("no_stop_at_eos")?);
        if stops && never {
            return Err(failed("stop_at_eos and no_stop_at_eos exclude each other"));
        }
        let template = match (self.is("no_template")?, self.take::<PathBuf>("template")?) {
            (true, Some(_)) => return Err(failed("template and no_template exclude each other")),
            (true, None) => Template::Raw,
            (false, file) => file.map_or(Template::Server, Template::File),
        };
        set!(options, self: turn_tokens take, public_system take);
        let never_padded = self.not("no_pad_answer")?;
        Ok(options
            .stop_at_eos(!never)
            .template(template)
            .system(self.take::<String>("system")?)
            .public(self.public()?)
            .check(self.text("check")?)
            .pad_answer(self.take::<bool>("pad_answer")?.or(never_padded))
            .transcript(self.take::<PathBuf>("transcript")?)
            .tokenizer(self.take::<PathBuf>("tokenizer")?))
    }

    pub(crate) fn server(&self, model: String, listen: String) -> PyResult<ServerConfig> {
        let mut config =
            ServerConfig::default().model(model).listen(listen).terms(self.terms()?).proof(self.proof()?);
        set!(config, self: network = "link" read, max_prompt take, max_public take, max_tokens take, conversations = "no_chat" not,
            max_draft take, weight_cache take, max_pools take, max_pools_total take, queue take,
            range_check = "skip_range_check" not, halves_by_client take, timeout seconds, session_limit seconds, handshake_timeout seconds,
            max_idle take, max_idle_per_address take);
        if let Some(text) = self.any("max_reveals")? {
            let limit: Reveals = text.str()?.to_str()?.parse().map_err(failed)?;
            config = config.max_reveals(limit);
        }
        let allow = match (self.is("allow_any")?, self.take::<PathBuf>("allow")?) {
            (true, Some(_)) => return Err(failed("allow and allow_any exclude each other")),
            (true, None) => Allow::Any,
            (false, list) => list.map_or(Allow::Known, Allow::List),
        };
        Ok(config
            .allow(allow)
            .offer(self.public()?)
            .max_positions(self.take::<usize>("max_positions")?)
            .sessions(self.take::<usize>("sessions")?)
            .max_sessions_per_key(self.take::<usize>("max_sessions_per_key")?)
            .pools(self.take::<PathBuf>("pools")?)
            .report(self.take::<PathBuf>("json")?)
            .metrics(self.take::<String>("metrics")?))
    }
}

//! A conversation with the model of a server.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::prelude::*;
use pyo3::types::PyDict;
use waggle::{BackgroundChat, Event, Flow, LOOKS, template_note};

use crate::interrupt::{Flag, interruptible};
use crate::keywords::Keywords;
use crate::{document, said};

/// A conversation. A thread of the program keeps its session open.
#[pyclass(frozen, module = "waggle._waggle")]
pub(crate) struct Chat {
    /// The conversation. Interrupted calls share it, so that nobody waits for them in a destructor while holding the
    /// interpreter's lock.
    chat: Arc<BackgroundChat>,
    /// Most tokens of an answer.
    tokens: usize,
    /// The note to the user on the server's chat template, if the template is new.
    #[pyo3(get)]
    template: Option<String>,
}

#[pymethods]
impl Chat {
    #[new]
    #[pyo3(signature = (address, tokens=64, **options))]
    fn new<'py>(
        py: Python<'py>,
        address: String,
        tokens: usize,
        options: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Self> {
        let options = Keywords::new(py, options)?;
        let (client, conversation) = (options.client(address)?, options.chat()?.tokens(tokens));
        options.finish()?;
        let heard = Arc::new(Heard::default());
        let theirs = Arc::clone(&heard);
        let chat = interruptible(py, None, move |flag| {
            let mut stream = Stream::new(flag, None, theirs, 0);
            client.chat_with(conversation, &mut |event| stream.hear(event))?.in_background()
        })?;
        let chat = Arc::new(chat.map_err(said)?);
        let template = heard.template.lock().unwrap_or_else(PoisonError::into_inner).take();
        Ok(Chat { chat, tokens, template })
    }

    /// Says words in a turn. Returns the turn's report, and whether the model read the conversation again from its
    /// beginning. `stream` is called with the pieces of the answer, `progress` with the progress of the turn.
    fn say<'py>(
        &self,
        py: Python<'py>,
        words: String,
        stream: Option<Py<PyAny>>,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<(Bound<'py, PyAny>, bool)> {
        let heard = Arc::new(Heard::default());
        let (theirs, chat, tokens) = (Arc::clone(&heard), Arc::clone(&self.chat), self.tokens);
        let turn = interruptible(py, progress, move |flag| {
            let mut stream = Stream::new(flag, stream, theirs, tokens);
            chat.say(&words, Box::new(move |event| stream.hear(event)))
        })?;
        let turn = turn.map_err(said)?;
        match heard.raised() {
            Some(raised) => Err(raised),
            None => Ok((document(py, &turn)?, heard.rereads.load(Ordering::Relaxed))),
        }
    }

    /// Begins another conversation.
    fn reset(&self, py: Python<'_>) -> PyResult<()> {
        let chat = Arc::clone(&self.chat);
        interruptible(py, None, move |_| chat.reset())?.map_err(said)
    }

    /// Ends the session. Returns its report, or `None` if it was over before.
    fn close<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let chat = Arc::clone(&self.chat);
        let report = interruptible(py, None, move |_| chat.close())?.map_err(said)?;
        report.map(|report| document(py, &report)).transpose()
    }

    /// Tokens of the next turn for which correlations are ready, and tokens for which they will be made.
    fn prepared(&self) -> (usize, usize) {
        let prepared = self.chat.prepared();
        (prepared.tokens, prepared.of)
    }

    /// The conversation so far.
    fn transcript<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        document(py, &self.chat.transcript())
    }
}

/// What a session told beside its report: an exception, whether the model read the conversation again, and a note on
/// the chat template.
#[derive(Default)]
pub(crate) struct Heard {
    raised: Mutex<Option<PyErr>>,
    rereads: AtomicBool,
    template: Mutex<Option<String>>,
}

impl Heard {
    /// Takes the error that the Python function or a warning raised, if there is one.
    pub(crate) fn raised(&self) -> Option<PyErr> {
        self.raised.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Hands a text to a Python function, and tells the progress of a session.
pub(crate) struct Stream {
    flag: Flag,
    function: Option<Py<PyAny>>,
    heard: Arc<Heard>,
    /// Tokens of the text so far, and the most that it may have.
    tokens: (u64, u64),
}

impl Stream {
    /// A stream that calls `function`, if there is one, with the pieces of a text of at most `tokens` tokens. An
    /// exception that the function raises is kept in `heard`.
    pub(crate) fn new(flag: Flag, function: Option<Py<PyAny>>, heard: Arc<Heard>, tokens: usize) -> Self {
        Stream { flag, function, heard, tokens: (0, tokens as u64) }
    }

    /// A stream for a session without a text.
    pub(crate) fn silent(flag: Flag) -> Self {
        Stream::new(flag, None, Arc::default(), 0)
    }

    /// Issues a Python warning. If Python raises it as an error, the error is kept in `heard`.
    fn warn(&self, words: &str) {
        let warned = Python::attach(|py| py.import("warnings")?.call_method1("warn", (words,)).map(drop));
        if let Err(raised) = warned {
            *self.heard.raised.lock().unwrap_or_else(PoisonError::into_inner) = Some(raised);
        }
    }

    /// Handles an event of the session.
    pub(crate) fn hear(&mut self, event: Event<'_>) -> Flow {
        match event {
            Event::GoesOn if self.flag.is_up() => return Flow::Abandon,
            Event::Text(text) => self.text(text),
            Event::Template(address, template) => {
                let note = template_note(address, template);
                *self.heard.template.lock().unwrap_or_else(PoisonError::into_inner) = Some(note);
            }
            Event::NoSandbox(why) => {
                self.warn(&format!(
                    "the server's tokenizer runs under limits alone: there is no sandbox here ({why})"
                ));
            }
            Event::Looks => self.warn(LOOKS),
            Event::Rereads => self.heard.rereads.store(true, Ordering::Relaxed),
            Event::Prepared(made) => self.flag.tell("offline", made.bytes, made.all_bytes),
            Event::Layer { done, of } => match self.tokens.0 {
                0 => self.flag.tell("prefill", done as u64, of as u64),
                _ => self.flag.check(),
            },
            Event::Token(_) => {
                let (made, most) = &mut self.tokens;
                if *made < *most {
                    *made += 1;
                    self.flag.tell("decode", *made, *most);
                }
            }
            _ => (),
        }
        Flow::GoOn
    }

    fn text(&mut self, text: &str) {
        let Some(function) = self.function.as_ref().filter(|_| !self.flag.is_up()) else { return };
        if let Err(raised) = Python::attach(|py| function.call1(py, (text,)).map(drop)) {
            // The turn goes on in spite of the exception, because half a turn would end the session.
            *self.heard.raised.lock().unwrap_or_else(PoisonError::into_inner) = Some(raised);
            self.function = None;
        }
    }
}

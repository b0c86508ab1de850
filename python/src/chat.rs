//! A conversation with the model of a server.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::prelude::*;
use pyo3::types::PyDict;
use waggle::{BackgroundChat, Listener, Made, Observer};

use crate::interrupt::{Flag, interruptible};
use crate::keywords::Keywords;
use crate::{document, said};

/// A conversation, whose session a thread of the program keeps.
#[pyclass(frozen, module = "waggle._waggle")]
pub(crate) struct Chat(BackgroundChat);

#[pymethods]
impl Chat {
    #[new]
    #[pyo3(signature = (address, **options))]
    fn new<'py>(py: Python<'py>, address: String, options: Option<&Bound<'py, PyDict>>) -> PyResult<Self> {
        let options = Keywords::new(py, options)?;
        let (client, conversation) = (options.client(address)?, options.chat()?);
        options.finish()?;
        let chat = interruptible(py, move |flag| {
            let mut listener = Stream::new(flag, None, Arc::default());
            client.chat(conversation, &mut listener)?.in_background()
        })?;
        chat.map(Chat).map_err(said)
    }

    /// The report of a turn, and whether the model read the conversation from its beginning. `stream` is called with
    /// the pieces of the answer.
    fn say<'py>(
        &self,
        py: Python<'py>,
        words: String,
        stream: Option<Py<PyAny>>,
    ) -> PyResult<(Bound<'py, PyAny>, bool)> {
        let heard = Arc::new(Heard::default());
        let theirs = Arc::clone(&heard);
        let turn = interruptible(py, move |flag| self.0.say(&words, Box::new(Stream::new(flag, stream, theirs))))?;
        let turn = turn.map_err(said)?;
        match heard.raised() {
            Some(raised) => Err(raised),
            None => Ok((document(py, &turn)?, heard.rereads.load(Ordering::Relaxed))),
        }
    }

    /// Begins another conversation.
    fn reset(&self, py: Python<'_>) -> PyResult<()> {
        interruptible(py, |_| self.0.reset())?.map_err(said)
    }

    /// Ends the session; its report, unless it was over before.
    fn close<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let report = interruptible(py, |_| self.0.close())?.map_err(said)?;
        report.map(|report| document(py, &report)).transpose()
    }

    /// For how many tokens of the next turn correlations are there, and for how many there will be.
    fn prepared(&self) -> (usize, usize) {
        let prepared = self.0.prepared();
        (prepared.tokens, prepared.of)
    }

    /// The conversation so far.
    fn transcript<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        document(py, &self.0.transcript())
    }
}

/// The outcome of a text beside its report.
#[derive(Default)]
pub(crate) struct Heard {
    raised: Mutex<Option<PyErr>>,
    rereads: AtomicBool,
}

impl Heard {
    /// The error that the function raised.
    pub(crate) fn raised(&self) -> Option<PyErr> {
        self.raised.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Hands a text to a function of Python.
pub(crate) struct Stream {
    flag: Flag,
    function: Option<Py<PyAny>>,
    heard: Arc<Heard>,
}

impl Stream {
    /// Calls `function`, if there is one; what it raises is left in `heard`.
    pub(crate) fn new(flag: Flag, function: Option<Py<PyAny>>, heard: Arc<Heard>) -> Self {
        Stream { flag, function, heard }
    }
}

impl Listener for Stream {
    fn text(&mut self, text: &str) {
        let Some(function) = &self.function else { return };
        if let Err(raised) = Python::attach(|py| function.call1(py, (text,)).map(drop)) {
            // The text goes on, because half a turn would end the session.
            *self.heard.raised.lock().unwrap_or_else(PoisonError::into_inner) = Some(raised);
            self.function = None;
        }
    }

    fn rereads(&mut self) {
        self.heard.rereads.store(true, Ordering::Relaxed);
    }
}

impl Observer for Stream {
    fn prepare(&mut self, _: Made) {
        self.flag.check();
    }

    fn layer(&mut self, _: usize, _: usize) {
        self.flag.check();
    }

    fn abandoned(&self) -> bool {
        self.flag.is_up()
    }
}

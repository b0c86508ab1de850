//! A conversation with the model of a server.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::prelude::*;
use waggle::api::{self, Listener, Options};

use crate::interrupt::{Flag, interruptible};
use crate::{Watch, failed, json};

/// A conversation, whose session a thread of the program keeps.
#[pyclass(frozen, module = "waggle._waggle")]
pub(crate) struct Chat(api::Chat);

#[pymethods]
impl Chat {
    #[new]
    fn new(py: Python<'_>, options: Options) -> PyResult<Self> {
        let chat = interruptible(py, move |flag| api::Chat::open(&options, &mut Watch(flag)))?;
        chat.map(Chat).map_err(failed)
    }

    /// The report of a turn as JSON, and whether the model read the conversation from its beginning. `stream` is
    /// called with the pieces of the answer.
    fn say(&self, py: Python<'_>, words: String, stream: Option<Py<PyAny>>) -> PyResult<(String, bool)> {
        let heard = Arc::new(Heard::default());
        let theirs = Arc::clone(&heard);
        let turn = interruptible(py, move |flag| self.0.say(&words, Box::new(Stream::new(flag, stream, theirs))))?;
        let turn = turn.map_err(failed)?;
        match heard.raised() {
            Some(raised) => Err(raised),
            None => Ok((json(&turn)?, heard.rereads.load(Ordering::Relaxed))),
        }
    }

    /// Begins another conversation.
    fn reset(&self, py: Python<'_>) -> PyResult<()> {
        interruptible(py, |_| self.0.reset())?.map_err(failed)
    }

    /// Ends the session; its report as JSON, unless it was over before.
    fn close(&self, py: Python<'_>) -> PyResult<Option<String>> {
        interruptible(py, |_| self.0.close())?.map_err(failed)?.map(|report| json(&report)).transpose()
    }

    /// For how many tokens of the next turn correlations are there, and for how many there will be.
    fn prepared(&self) -> (usize, usize) {
        self.0.prepared()
    }

    /// What was said, as JSON.
    fn transcript(&self) -> PyResult<String> {
        json(&self.0.transcript())
    }
}

/// What is left of a text beside its report.
#[derive(Default)]
pub(crate) struct Heard {
    raised: Mutex<Option<PyErr>>,
    rereads: AtomicBool,
}

impl Heard {
    /// What the function raised.
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

    fn tick(&mut self) {
        self.flag.check();
    }

    fn abandoned(&self) -> bool {
        self.flag.is_up()
    }
}

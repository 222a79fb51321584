//! An object that is known for long and looked at now and then.
//!
//! JSON in maps is dear: a map of one entry has room for eleven, and a pod is a dozen maps. So an object is kept
//! as the text that it is; who it is stands beside that. Whoever asks for more has it read, once for all who ask
//! until [`LazyObject::rest`] drops what was read. That is a matter of memory alone: what an object says is the
//! same before and after.

use std::sync::{Arc, OnceLock};

use serde_json::Value;

use crate::object::ObjectView;

/// An object as its text, and as JSON since somebody asked.
#[derive(Debug)]
pub(crate) struct LazyObject {
    pub(crate) kind: Arc<str>,
    pub(crate) namespace: Arc<str>,
    pub(crate) name: Arc<str>,
    pub(crate) uid: Box<str>,
    pub(crate) text: Box<str>,
    parsed: OnceLock<Value>,
}

impl LazyObject {
    /// Keeps an object under these words for what it says itself, which many share.
    pub(crate) fn new(json: &Value, kind: Arc<str>, namespace: Arc<str>, name: Arc<str>) -> Self {
        Self {
            kind,
            namespace,
            name,
            uid: ObjectView::new(json).uid().into(),
            text: json.to_string().into(),
            parsed: OnceLock::new(),
        }
    }

    /// All that it says.
    pub(crate) fn json(&self) -> &Value {
        self.parsed.get_or_init(|| self.read())
    }

    /// All that it says, read now; nothing if it is nested deeper than JSON is read, which no API server's is.
    pub(crate) fn read(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_default()
    }

    /// Drops what was read.
    pub(crate) fn rest(&mut self) {
        self.parsed = OnceLock::new();
    }
}

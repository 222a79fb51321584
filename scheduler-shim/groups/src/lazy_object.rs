//! An object that is kept for long and read now and then.
//!
//! Parsed JSON is expensive: a map of one entry has room for eleven, and a pod is a dozen maps. So an object is
//! kept as text, with its identity beside it. The first read parses it, and all readers share the result until
//! [`LazyObject::rest`] drops it. This only saves memory: the content is the same before and after.

use std::sync::{Arc, OnceLock};

use serde_json::Value;

use crate::object::ObjectView;

/// An object as text, and as JSON after the first read.
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
    /// Keeps an object; `kind`, `namespace` and `name` are shared with other objects.
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

    /// The whole object.
    pub(crate) fn json(&self) -> &Value {
        self.parsed.get_or_init(|| self.read())
    }

    /// Parses the whole object. Null if it is nested deeper than the parser allows; no API server's object is.
    pub(crate) fn read(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_default()
    }

    /// Drops the parsed JSON.
    pub(crate) fn rest(&mut self) {
        self.parsed = OnceLock::new();
    }
}

//! Warnings about single objects: one sentence each, and the rest goes on.

use std::collections::BTreeSet;
use std::fmt;

use apportion_abi::EscapedText;
use serde::Serialize;

/// One warning about one object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct ObjectWarning {
    /// Kind and name.
    pub object: String,
    /// What is wrong, and what follows from it.
    pub message: String,
}

impl fmt::Display for ObjectWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: {}",
            EscapedText(&self.object),
            EscapedText(&self.message)
        )
    }
}

/// All warnings, each once, in order.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(transparent)]
pub struct ObjectWarnings(pub BTreeSet<ObjectWarning>);

impl ObjectWarnings {
    /// Adds a warning.
    pub fn add(&mut self, object: impl fmt::Display, message: impl Into<String>) {
        self.0.insert(ObjectWarning {
            object: object.to_string(),
            message: message.into(),
        });
    }
}

/// How warnings name an object.
pub fn called(kind: &str, namespace: &str, name: &str) -> String {
    match namespace {
        "" => format!("{kind} {name}"),
        namespace => format!("{kind} {namespace}/{name}"),
    }
}

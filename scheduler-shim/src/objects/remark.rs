//! What is wrong with single objects: one sentence each, and the rest goes on.

use std::collections::BTreeSet;
use std::fmt;

use apportion_abi::Plain;
use serde::Serialize;

/// One sentence about one object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(crate) struct Remark {
    /// Kind and name.
    pub(crate) object: String,
    /// What is wrong, and what comes of it.
    pub(crate) message: String,
}

impl fmt::Display for Remark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", Plain(&self.object), Plain(&self.message))
    }
}

/// All remarks, each once, in order.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(transparent)]
pub(crate) struct Remarks(pub(crate) BTreeSet<Remark>);

impl Remarks {
    /// Notes something.
    pub(crate) fn note(&mut self, object: impl fmt::Display, message: impl Into<String>) {
        self.0.insert(Remark {
            object: object.to_string(),
            message: message.into(),
        });
    }
}

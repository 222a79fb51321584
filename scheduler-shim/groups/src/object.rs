//! A Kubernetes object as the API server serves it, read field by field.
//!
//! Readers treat absent, null and empty alike: Kubernetes omits what is zero. No field is trusted to have the type
//! of its schema, since custom resources come from many authors.

use std::borrow::Cow;
use std::fmt;

use serde_json::{Map, Value};

use crate::error::GroupingError;
use crate::lazy_object::LazyObject;

/// A view of one object's JSON.
#[derive(Debug, Clone, Copy)]
pub struct ObjectView<'a>(ObjectSource<'a>);

/// Where an object is read from.
#[derive(Debug, Clone, Copy)]
enum ObjectSource<'a> {
    Json(&'a Value),
    /// Its identity is known without parsing it.
    Lazy(&'a LazyObject),
}

impl<'a> ObjectView<'a> {
    /// Views `json` as an object; any other value has no fields.
    pub fn new(json: &'a Value) -> Self {
        Self(ObjectSource::Json(json))
    }

    pub(crate) fn lazy(lazy: &'a LazyObject) -> Self {
        Self(ObjectSource::Lazy(lazy))
    }

    /// The JSON itself.
    pub fn json(self) -> &'a Value {
        match self.0 {
            ObjectSource::Json(json) => json,
            ObjectSource::Lazy(lazy) => lazy.json(),
        }
    }

    /// The JSON for this caller alone; a kept object is parsed again and not cached.
    pub fn read_apart(self) -> Cow<'a, Value> {
        match self.0 {
            ObjectSource::Json(json) => Cow::Borrowed(json),
            ObjectSource::Lazy(lazy) => Cow::Owned(lazy.read()),
        }
    }

    /// The JSON as text.
    pub fn to_text(self) -> Cow<'a, str> {
        match self.0 {
            ObjectSource::Json(json) => json.to_string().into(),
            ObjectSource::Lazy(lazy) => lazy.text().into(),
        }
    }

    /// `Job`, `Pod`, ...
    pub fn kind(self) -> &'a str {
        match self.0 {
            ObjectSource::Json(_) => self.text(&["kind"]).unwrap_or_default(),
            ObjectSource::Lazy(lazy) => &lazy.kind,
        }
    }

    /// Group and version together, as in manifests.
    pub fn api_version(self) -> &'a str {
        self.text(&["apiVersion"]).unwrap_or_default()
    }

    /// The API group; empty for the core group.
    pub fn api_group(self) -> &'a str {
        self.api_version()
            .rsplit_once('/')
            .map_or("", |(group, _)| group)
    }

    pub(crate) fn version(self) -> &'a str {
        let whole = self.api_version();
        whole.rsplit_once('/').map_or(whole, |(_, version)| version)
    }

    /// Its name.
    pub fn name(self) -> &'a str {
        match self.0 {
            ObjectSource::Json(_) => self.text(&["metadata", "name"]).unwrap_or_default(),
            ObjectSource::Lazy(lazy) => &lazy.name,
        }
    }

    /// Its namespace; empty if it has none.
    pub fn namespace(self) -> &'a str {
        match self.0 {
            ObjectSource::Json(_) => self.text(&["metadata", "namespace"]).unwrap_or_default(),
            ObjectSource::Lazy(lazy) => &lazy.namespace,
        }
    }

    /// Its unique id.
    pub fn uid(self) -> &'a str {
        match self.0 {
            ObjectSource::Json(_) => self.text(&["metadata", "uid"]).unwrap_or_default(),
            ObjectSource::Lazy(lazy) => &lazy.uid,
        }
    }

    /// A label's value, unless it is empty.
    pub fn label(self, key: &str) -> Option<&'a str> {
        self.text(&["metadata", "labels", key])
    }

    /// An annotation's value, unless it is empty.
    pub fn annotation(self, key: &str) -> Option<&'a str> {
        self.text(&["metadata", "annotations", key])
    }

    pub(crate) fn at(self, path: &[&str]) -> Option<&'a Value> {
        path.iter()
            .try_fold(self.json(), |json, key| json.get(*key))
            .filter(|json| !json.is_null())
    }

    pub(crate) fn part(self, path: &[&str]) -> Option<ObjectView<'a>> {
        self.at(path).map(ObjectView::new)
    }

    pub(crate) fn text(self, path: &[&str]) -> Option<&'a str> {
        self.at(path)?.as_str().filter(|text| !text.is_empty())
    }

    pub(crate) fn map(self, path: &[&str]) -> Option<&'a Map<String, Value>> {
        self.at(path)?.as_object()
    }

    /// A label's value, even an empty one: an empty label means that there is none.
    pub(crate) fn given_label(self, key: &str) -> Option<&'a str> {
        self.at(&["metadata", "labels", key])?.as_str()
    }

    /// An annotation's value, even an empty one.
    pub(crate) fn given_annotation(self, key: &str) -> Option<&'a str> {
        self.at(&["metadata", "annotations", key])?.as_str()
    }

    /// The value of a field. Absent if anything on the path is; an error if something on the path is no object.
    pub(crate) fn field(self, path: &[&str]) -> Result<Option<&'a Value>, GroupingError> {
        let mut at = self.json();
        for key in path {
            at = match at {
                Value::Object(map) => map.get(*key).unwrap_or(&Value::Null),
                Value::Null => return Ok(None),
                other => return Err(self.not_a(path, "part of an object", other)),
            };
        }
        Ok(Some(at).filter(|found| !found.is_null()))
    }

    /// The entries of a list; `None` if it is absent.
    pub(crate) fn listed(self, path: &[&str]) -> Result<Option<&'a [Value]>, GroupingError> {
        match self.field(path)? {
            None => Ok(None),
            Some(Value::Array(entries)) => Ok(Some(entries)),
            Some(other) => Err(self.not_a(path, "list", other)),
        }
    }

    /// The entries of a list; none if it is absent.
    pub(crate) fn list(self, path: &[&str]) -> Result<&'a [Value], GroupingError> {
        Ok(self.listed(path)?.unwrap_or_default())
    }

    /// A text, even an empty one.
    pub(crate) fn string(self, path: &[&str]) -> Result<Option<&'a str>, GroupingError> {
        match self.field(path)? {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(self.not_a(path, "text", other)),
        }
    }

    pub(crate) fn whole(self, path: &[&str]) -> Result<Option<i64>, GroupingError> {
        let Some(found) = self.field(path)? else {
            return Ok(None);
        };
        let whole = found.as_i64().map(Some);
        whole.ok_or_else(|| self.not_a(path, "whole number", found))
    }

    fn not_a(self, path: &[&str], wanted: &str, found: &Value) -> GroupingError {
        GroupingError::field(self, &path.join("."), format!("{found} is not a {wanted}"))
    }

    pub(crate) fn is(self, other: ObjectView<'_>) -> bool {
        self.kind() == other.kind()
            && self.name() == other.name()
            && self.namespace() == other.namespace()
    }
}

impl fmt::Display for ObjectView<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind() {
            "" => "object",
            kind => kind,
        };
        write!(f, "{kind} {}/{}", self.namespace(), self.name())
    }
}

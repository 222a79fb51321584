//! An object that is kept for long and read now and then.
//!
//! Parsed JSON is expensive: a map of one entry has room for eleven, and a pod is a dozen maps. So an object is
//! kept as text, with its identity beside it. The text is compressed: most objects of a kind and a namespace differ in
//! little more than their names, so an earlier one is the dictionary of those after it. The first read parses the
//! object, and all readers share the result until [`LazyObject::drop_cache`] drops it. This only saves memory: the content
//! is the same before and after.

use std::sync::{Arc, OnceLock};

use lz4_flex::block::{compress_with_dict, decompress_with_dict};
use serde_json::Value;

use crate::object::ObjectView;

/// An object as compressed text, and as JSON after the first read.
#[derive(Debug)]
pub(crate) struct LazyObject {
    pub(crate) kind: Arc<str>,
    pub(crate) namespace: Arc<str>,
    pub(crate) name: Arc<str>,
    pub(crate) uid: Box<str>,
    compressed: Box<[u8]>,
    /// The length of its text.
    length: usize,
    /// The text of an earlier object.
    dictionary: Arc<str>,
    parsed: OnceLock<Value>,
}

impl LazyObject {
    /// Keeps an object; `kind`, `namespace` and `name` are shared with other objects. An object that is unlike the
    /// dictionary becomes the next dictionary.
    pub(crate) fn new(
        json: &Value,
        kind: Arc<str>,
        namespace: Arc<str>,
        name: Arc<str>,
        dictionary: &mut Arc<str>,
    ) -> Self {
        let text = json.to_string();
        let compressed = compress_with_dict(text.as_bytes(), dictionary.as_bytes());
        let lazy = Self {
            kind,
            namespace,
            name,
            uid: ObjectView::new(json).uid().into(),
            compressed: compressed.into(),
            length: text.len(),
            dictionary: dictionary.clone(),
            parsed: OnceLock::new(),
        };
        if lazy.compressed.len() > lazy.length / 2 {
            *dictionary = text.into();
        }
        lazy
    }

    pub(crate) fn json(&self) -> &Value {
        self.parsed.get_or_init(|| self.read())
    }

    /// The text of the whole object.
    pub(crate) fn text(&self) -> String {
        let dictionary = self.dictionary.as_bytes();
        let text = decompress_with_dict(&self.compressed, self.length, dictionary);
        // It was compressed here, so neither of the two can fail.
        String::from_utf8(text.unwrap_or_default()).unwrap_or_default()
    }

    /// Parses the whole object. Null if it is nested deeper than the parser allows; no API server's object is.
    pub(crate) fn read(&self) -> Value {
        serde_json::from_str(&self.text()).unwrap_or_default()
    }

    /// Drops the parsed JSON.
    pub(crate) fn drop_cache(&mut self) {
        self.parsed = OnceLock::new();
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(number: u32) -> Value {
        json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"namespace": "default", "name": format!("pod-{number}"),
                "uid": format!("{number:08x}-0000-4000-8000-000000000000"),
                "labels": {"kai.scheduler/queue": "research"}},
            "spec": {"schedulerName": "apportion-scheduler", "containers": [{"name": "main",
                "resources": {"requests": {"cpu": "1", "memory": "4Gi", "nvidia.com/gpu": "1"}}}]},
            "status": {"phase": "Running"}})
    }

    fn keep(json: &Value, dictionary: &mut Arc<str>) -> LazyObject {
        LazyObject::new(json, "".into(), "".into(), "".into(), dictionary)
    }

    #[test]
    fn similar_objects_share_their_text() {
        let mut dictionary = Arc::from("");
        let other = json!({"kind": "Pod", "metadata": {"name": "other"}});
        let lazy = keep(&other, &mut dictionary);
        let all: Vec<LazyObject> = (0..100)
            .map(|number| keep(&pod(number), &mut dictionary))
            .collect();
        assert_eq!(lazy.read(), other);
        for (number, one) in (0..).zip(&all) {
            assert_eq!(one.read(), pod(number));
        }
        let size: usize = all.iter().skip(1).map(|one| one.compressed.len()).sum();
        let text: usize = all.iter().skip(1).map(|one| one.length).sum();
        assert!(size < text / 4, "{size} of {text} bytes");
    }
}

//! One question of the API server, and its answer.
//!
//! The shape is `admission.k8s.io/v1`. What is asked is known by the path, as with KAI, so that a configuration that
//! was written for its webhooks works with these. A question that can't be read is answered with the reason; the
//! API server shows it to whoever asked.

use serde::Deserialize;
use serde_json::{Map, Value, json};

/// What the API server asks.
#[derive(Debug, Deserialize)]
pub struct Review {
    /// The question.
    pub request: Request,
}

/// The question in a review.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Request {
    /// Which question it is.
    pub uid: String,
    /// `CREATE`, `UPDATE`, `DELETE`.
    pub operation: String,
    /// Where the object is, or will be.
    pub namespace: String,
    /// The object as it is to become; null when it is to go.
    pub object: Value,
    /// The object as it is; null when it is to be created.
    pub old_object: Value,
}

/// What is answered.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Answer {
    /// Why not, if not.
    pub refusal: Option<String>,
    /// What else is said.
    pub warnings: Vec<String>,
    /// What is changed, as a JSON patch.
    pub patch: Option<Value>,
}

impl Answer {
    /// No, because.
    #[must_use]
    pub fn refused(why: impl ToString) -> Self {
        Self {
            refusal: Some(why.to_string()),
            ..Self::default()
        }
    }

    /// The whole review that goes back.
    #[must_use]
    pub fn review(&self, uid: &str) -> Value {
        let mut response = Map::new();
        response.insert("uid".to_owned(), json!(uid));
        response.insert("allowed".to_owned(), json!(self.refusal.is_none()));
        if let Some(why) = &self.refusal {
            let status = json!({"message": why, "reason": "Forbidden", "code": 403});
            response.insert("status".to_owned(), status);
        }
        if !self.warnings.is_empty() {
            response.insert("warnings".to_owned(), json!(self.warnings));
        }
        if let Some(patch) = &self.patch {
            response.insert("patchType".to_owned(), json!("JSONPatch"));
            response.insert("patch".to_owned(), json!(base64(&patch.to_string())));
        }
        json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response})
    }
}

/// Base64, as the JSON form of bytes is.
fn base64(text: &str) -> String {
    let bytes = k8s_openapi::ByteString(text.as_bytes().to_vec());
    let json = serde_json::to_value(bytes).unwrap_or_default();
    json.as_str().unwrap_or_default().to_owned()
}

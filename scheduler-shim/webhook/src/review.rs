//! One review of the API server, and its answer.
//!
//! The format is `admission.k8s.io/v1`. As in KAI, the path says what to review, so a configuration for KAI's webhooks
//! works with these. A review that cannot be parsed is answered with the reason, which the API server shows to the
//! user.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, Visitor};
use serde_json::{Map, Value, json};

use crate::judge::ReviewKind;
use crate::object::{ObjectBudget, ObjectPart, ObjectSeed};

/// A review from the API server.
#[derive(Debug)]
pub struct AdmissionReview {
    /// Its request.
    pub request: AdmissionRequest,
    /// Why it is refused before it is judged: it is too large to be held.
    pub refusal: Option<String>,
}

/// The request in a review.
#[derive(Debug, Default)]
pub struct AdmissionRequest {
    /// Its unique id.
    pub uid: String,
    /// `CREATE`, `UPDATE`, `DELETE`.
    pub operation: String,
    /// The object's namespace.
    pub namespace: String,
    /// The object after the operation; null for a deletion.
    pub object: Value,
    /// The object before the operation; null for a creation.
    pub old_object: Value,
}

impl AdmissionReview {
    /// Reads what rules look at.
    ///
    /// # Errors
    /// The body is not a review.
    pub fn read(body: &[u8], question: ReviewKind) -> Result<Self, serde_json::Error> {
        let budget = ObjectBudget::default();
        let part = match question {
            ReviewKind::CompletePod | ReviewKind::JudgePod => ObjectPart::Pod,
            ReviewKind::JudgeQueue | ReviewKind::JudgePodGroup | ReviewKind::JudgeTopology => {
                ObjectPart::Whole
            }
        };
        let object = ObjectSeed {
            part,
            budget: &budget,
        };
        let mut from = serde_json::Deserializer::from_slice(body);
        let request = ReviewSeed(object).deserialize(&mut from)?;
        from.end()?;
        Ok(Self {
            request,
            refusal: budget.refusal(),
        })
    }
}

/// Reads a review, for its request.
struct ReviewSeed<'a>(ObjectSeed<'a>);

/// Reads a request, for its objects.
struct RequestSeed<'a>(ObjectSeed<'a>);

impl<'de> DeserializeSeed<'de> for ReviewSeed<'_> {
    type Value = AdmissionRequest;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<AdmissionRequest, D::Error> {
        from.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for ReviewSeed<'_> {
    type Value = AdmissionRequest;

    fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("an AdmissionReview")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<AdmissionRequest, A::Error> {
        let mut request = None;
        while let Some(name) = fields.next_key::<String>()? {
            match name.as_str() {
                "request" => request = Some(fields.next_value_seed(RequestSeed(self.0))?),
                _ => drop(fields.next_value::<IgnoredAny>()?),
            }
        }
        request.ok_or_else(|| A::Error::missing_field("request"))
    }
}

impl<'de> DeserializeSeed<'de> for RequestSeed<'_> {
    type Value = AdmissionRequest;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<AdmissionRequest, D::Error> {
        from.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for RequestSeed<'_> {
    type Value = AdmissionRequest;

    fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("a request")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<AdmissionRequest, A::Error> {
        let mut request = AdmissionRequest::default();
        while let Some(name) = fields.next_key::<String>()? {
            match name.as_str() {
                "uid" => request.uid = fields.next_value()?,
                "operation" => request.operation = fields.next_value()?,
                "namespace" => request.namespace = fields.next_value()?,
                "object" => request.object = fields.next_value_seed(self.0)?,
                "oldObject" => request.old_object = fields.next_value_seed(self.0)?,
                _ => drop(fields.next_value::<IgnoredAny>()?),
            }
        }
        Ok(request)
    }
}

/// The answer to a review.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AdmissionResponse {
    /// Why the request is refused, if it is.
    pub refusal: Option<String>,
    /// Warnings for the user.
    pub warnings: Vec<String>,
    /// The changes, as a JSON patch.
    pub patch: Option<Value>,
}

impl AdmissionResponse {
    /// A refusal with its reason.
    #[must_use]
    pub fn refused(why: impl ToString) -> Self {
        Self {
            refusal: Some(why.to_string()),
            ..Self::default()
        }
    }

    /// The whole review to send back.
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

/// Encodes a text in base64, as JSON needs for bytes.
fn base64(text: &str) -> String {
    let digit = |number: u32| match u8::try_from(number & 63).unwrap_or_default() {
        number @ 0..26 => char::from(b'A' + number),
        number @ 26..52 => char::from(b'a' + number - 26),
        number @ 52..62 => char::from(b'0' + number - 52),
        62 => '+',
        _ => '/',
    };
    text.as_bytes()
        .chunks(3)
        .map(|bytes| {
            let byte = |place: usize| u32::from(bytes.get(place).copied().unwrap_or_default());
            let word = byte(0) << 16 | byte(1) << 8 | byte(2);
            let digits = [18, 12, 6, 0].map(|shift| digit(word >> shift));
            let padded = digits.into_iter().enumerate();
            padded
                .map(|(place, digit)| if place > bytes.len() { '=' } else { digit })
                .collect::<String>()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_written_as_kubernetes_writes_them() {
        let whole = "[{\"op\": \"add\", \"path\": \"/é~1 ÿ>?\"}]".repeat(3);
        for (end, _) in whole.char_indices() {
            let bytes = k8s_openapi::ByteString(whole.as_bytes()[..end].to_vec());
            assert_eq!(json!(base64(&whole[..end])), json!(bytes));
        }
    }
}

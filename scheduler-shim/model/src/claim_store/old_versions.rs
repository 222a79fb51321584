//! Reads the beta versions of claims and slices, which files may still have.
//!
//! In `v1beta1` the terms of a request and the contents of a device are one level higher or lower than in `v1`.

use serde_json::{Map, Value, json};

/// Fields of a request beside its terms.
const OF_REQUEST: &[&str] = &["name", "exactly", "firstAvailable"];

/// The object as `v1` has it.
pub(crate) fn as_first_stable(object: &Value) -> Value {
    let mut object = object.clone();
    let requests = object.pointer_mut("/spec/devices/requests");
    for request in requests.and_then(Value::as_array_mut).into_iter().flatten() {
        let Some(fields) = request.as_object_mut() else {
            continue;
        };
        if fields.contains_key("deviceClassName") {
            let (own, terms): (Map<String, Value>, Map<String, Value>) = std::mem::take(fields)
                .into_iter()
                .partition(|(field, _)| OF_REQUEST.contains(&field.as_str()));
            *fields = own;
            fields.insert("exactly".to_owned(), json!(terms));
        }
    }
    let devices = object.pointer_mut("/spec/devices");
    for device in devices.and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some(fields) = device.as_object_mut()
            && let Some(Value::Object(basic)) = fields.remove("basic")
        {
            fields.extend(basic);
        }
    }
    object
}

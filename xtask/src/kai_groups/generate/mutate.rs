//! Changes one value of an object: removes it, duplicates it, or replaces it.

use serde_json::{Value, json};

use super::deeper;
use super::rng::QuestionRng;
use super::vocabulary;

/// Fields that stay: without them it is no object for the API server.
const IDENTITY: [&str; 5] = ["apiVersion", "kind", "name", "namespace", "uid"];

/// The parts of a question that may change.
const PARTS: [&str; 4] = ["owner", "pod", "cluster_objects", "other_owners"];
/// Changes one value somewhere.
pub(super) fn damage(question: &mut Value, dice: &mut QuestionRng) {
    let part = *dice.of(&PARTS);
    let mut places = Vec::new();
    let pointer = format!("/{part}");
    if let Some(found) = question.get(part) {
        collect(found, &pointer, &mut places);
    }
    if places.is_empty() {
        return;
    }
    let place = dice.of(&places).clone();
    let Some((above, last)) = place.rsplit_once('/') else {
        return;
    };
    if dice.below(3) == 0 {
        match question.pointer_mut(above) {
            Some(Value::Object(map)) => {
                map.remove(&last.replace("~1", "/").replace("~0", "~"));
            }
            Some(Value::Array(all)) => match (last.parse::<usize>(), dice.below(2)) {
                (Ok(index), 0) if index < all.len() => {
                    all.remove(index);
                }
                (Ok(index), _) if index < all.len() => all.push(all[index].clone()),
                _ => {}
            },
            _ => {}
        }
        return;
    }
    let in_metadata = ["/labels", "/annotations"].map(|field| place.contains(field));
    let Some(value) = question.pointer_mut(&place) else {
        return;
    };
    // The API server has only strings there.
    if in_metadata.contains(&true) {
        if value.is_string() {
            *value = (*dice.of(vocabulary::TEXTS)).into();
        }
        return;
    }
    *value = other_value(value, dice);
}

fn other_value(value: &Value, dice: &mut QuestionRng) -> Value {
    match value {
        Value::Number(_) if dice.below(4) > 0 => dice
            .of(&[0, 1, 2, 3, 4, 5, 6, 8, 12, -1, -3])
            .to_owned()
            .into(),
        Value::String(_) if dice.below(4) > 0 => (*dice.of(vocabulary::TEXTS)).into(),
        _ => dice
            .of(&[
                json!("text"),
                json!(2),
                json!(true),
                json!([]),
                json!({}),
                json!([1]),
                json!(1.5),
            ])
            .clone(),
    }
}

/// Collects all places below `value` that may change.
fn collect(value: &Value, pointer: &str, places: &mut Vec<String>) {
    match value {
        Value::Object(map) => {
            for (key, inner) in map {
                let is_metadata = pointer.ends_with("/metadata");
                let is_top = !pointer[1..].contains('/') || map.contains_key("metadata");
                if is_metadata && key != "labels" && key != "annotations" {
                    continue;
                }
                if is_top && (IDENTITY.contains(&key.as_str()) || key == "metadata") {
                    collect(inner, &deeper(pointer, key), places);
                    continue;
                }
                places.push(deeper(pointer, key));
                collect(inner, &deeper(pointer, key), places);
            }
        }
        Value::Array(all) => {
            for (index, inner) in all.iter().enumerate() {
                let place = format!("{pointer}/{index}");
                if inner.get("kind").is_none() {
                    places.push(place.clone());
                }
                collect(inner, &place, places);
            }
        }
        _ => {}
    }
}

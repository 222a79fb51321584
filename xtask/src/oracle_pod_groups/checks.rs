//! The checks of an outcome that cases can contain.
//!
//! Absent, null and zero are equal: the cases come from Go, which leaves out zero values.

use serde_json::{Map, Value};

use super::call::CallOutcome;

type Checked = Result<(), String>;

/// Checks the outcome of step `number`, which may be compared with earlier ones.
pub(super) fn check(check: &Value, number: usize, outcomes: &[CallOutcome]) -> Checked {
    let outcome = &outcomes[number];
    if let Some(expected) = check["error"].as_bool() {
        return expect(outcome.error.is_some() == expected, || {
            format!("error {expected} expected, found {:?}", outcome.error)
        });
    }
    let error = outcome.error.as_deref().unwrap_or_default();
    if let Some(text) = check["error_text"].as_str() {
        return expect(error == text, || {
            format!("error '{text}' expected, found '{error}'")
        });
    }
    if let Some(text) = check["error_contains"].as_str() {
        return expect(error.contains(text), || {
            format!("'{text}' expected in error '{error}'")
        });
    }
    let path = check["path"].as_str().ok_or("a check without a path")?;
    let op = check["op"].as_str().ok_or("a check without an op")?;
    let expected = match check.get("same_as") {
        Some(other) => same_as(other, outcomes)?,
        None => check["value"].clone(),
    };
    for found in outcome.at(path)? {
        let found = found.unwrap_or(&Value::Null);
        let holds = holds(op, found, &expected)?;
        expect(holds, || format!("{path} {op} {expected}: found {found}"))?;
    }
    Ok(())
}

fn expect(holds: bool, why: impl FnOnce() -> String) -> Checked {
    if holds { Ok(()) } else { Err(why()) }
}

fn same_as(other: &Value, outcomes: &[CallOutcome]) -> Result<Value, String> {
    let step = other["step"]
        .as_u64()
        .and_then(|step| usize::try_from(step).ok());
    let outcome = step.and_then(|step| outcomes.get(step));
    let path = other["path"].as_str().unwrap_or_default();
    let found = outcome.ok_or("same_as names no earlier step")?.at(path)?;
    Ok(found
        .first()
        .copied()
        .flatten()
        .cloned()
        .unwrap_or_default())
}

fn holds(op: &str, found: &Value, expected: &Value) -> Result<bool, String> {
    Ok(match op {
        "eq" => trimmed(found) == trimmed(expected),
        "ne" => trimmed(found) != trimmed(expected),
        "nil" => found.is_null(),
        "not_nil" => !found.is_null(),
        "empty" => trimmed(found).is_null(),
        "not_empty" => !trimmed(found).is_null(),
        "len" => Some(len(found)) == expected.as_u64(),
        "true" => found == &Value::Bool(true),
        "false" => found == &Value::Bool(false),
        "contains" => contains(found, expected),
        "has_item" => {
            let key = expected[0].as_str().unwrap_or_default();
            found.get(key).is_some_and(|value| *value == expected[1])
        }
        other => return Err(format!("the op '{other}' is not known")),
    })
}

fn contains(found: &Value, expected: &Value) -> bool {
    match found {
        Value::Array(all) => all.contains(expected),
        Value::Object(map) => expected.as_str().is_some_and(|key| map.contains_key(key)),
        found => match (found.as_str(), expected.as_str()) {
            (Some(found), Some(expected)) => found.contains(expected),
            _ => false,
        },
    }
}

fn len(found: &Value) -> u64 {
    let len = match found {
        Value::Array(all) => all.len(),
        Value::Object(map) => map.len(),
        Value::String(text) => text.len(),
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
    };
    len as u64
}

/// The value without zero values.
pub(crate) fn trimmed(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let kept: Map<String, Value> = map
                .iter()
                .map(|(key, value)| (key.clone(), trimmed(value)))
                .filter(|(_, value)| !value.is_null())
                .collect();
            if kept.is_empty() {
                Value::Null
            } else {
                kept.into()
            }
        }
        Value::Array(all) if all.is_empty() => Value::Null,
        Value::Array(all) => all.iter().map(trimmed).collect(),
        Value::String(text) if text.is_empty() => Value::Null,
        Value::Number(number) if number.as_f64() == Some(0.0) => Value::Null,
        other => other.clone(),
    }
}

/// The values at a path: one, or with `[*]` one for each entry. `None` where there is nothing.
pub(super) fn follow<'a>(root: &'a Value, path: &str) -> Result<Vec<Option<&'a Value>>, String> {
    let mut found = vec![Some(root)];
    let mut rest = path;
    while !rest.is_empty() {
        if let Some(bracket) = rest.strip_prefix('[') {
            let (inside, after) = bracket.split_once(']').ok_or("a bracket does not end")?;
            rest = after;
            found = found.into_iter().flat_map(|at| entry(at, inside)).collect();
        } else {
            let name = rest.strip_prefix('.').unwrap_or(rest);
            let end = name.find(['.', '[']).unwrap_or(name.len());
            let (field, after) = name.split_at(end);
            rest = after;
            found = found.into_iter().map(|at| at?.get(field)).collect();
        }
    }
    Ok(found
        .into_iter()
        .map(|at: Option<&'a Value>| at.filter(|at| !at.is_null()))
        .collect())
}

fn entry<'a>(at: Option<&'a Value>, inside: &str) -> Vec<Option<&'a Value>> {
    let all = at.and_then(Value::as_array);
    if inside == "*" {
        return all.into_iter().flatten().map(Some).collect();
    }
    if let Some(key) = inside
        .strip_prefix('\'')
        .and_then(|key| key.strip_suffix('\''))
    {
        return vec![at.and_then(|at| at.get(key))];
    }
    let found = match inside.split_once('=') {
        Some((field, value)) => all.and_then(|all| {
            all.iter()
                .find(|entry| entry[field].as_str() == Some(value))
        }),
        None => all.and_then(|all| all.get(inside.parse::<usize>().ok()?)),
    };
    vec![found]
}

//! The part of jq that Karta definitions are written in: paths, lists, comparisons, `+ - *`, `and`, `or`,
//! `not`, `//`, `|`, `select`, `map`, `add`, `length`, `tostring`, `tonumber`.
//!
//! Anything else is refused by name, not read as something similar. In particular, nothing here can loop: a
//! definition can be wrong, but it cannot stop the scheduler. An expression yields any number of values.

use std::cmp::Ordering;

use serde_json::{Number, Value};

use crate::error::GroupingError;

mod parse;

#[derive(Debug)]
pub(super) struct JqExpression {
    text: String,
    node: ExpressionNode,
}

#[derive(Debug)]
enum ExpressionNode {
    Literal(Value),
    Path(Vec<PathStep>),
    Pipe(Box<ExpressionNode>, Box<ExpressionNode>),
    Alternative(Box<ExpressionNode>, Box<ExpressionNode>),
    Or(Box<ExpressionNode>, Box<ExpressionNode>),
    And(Box<ExpressionNode>, Box<ExpressionNode>),
    Compare(Box<ExpressionNode>, ComparisonOperator, Box<ExpressionNode>),
    Sum(Box<ExpressionNode>, ArithmeticOperator, Box<ExpressionNode>),
    List(Option<Box<ExpressionNode>>),
    Select(Box<ExpressionNode>),
    Map(Box<ExpressionNode>),
    Add,
    Not,
    Length,
    ToString,
    ToNumber,
}

#[derive(Debug)]
enum PathStep {
    Field(String),
    Index(i64),
    Each,
}

#[derive(Debug, Clone, Copy)]
enum ArithmeticOperator {
    Plus,
    Minus,
    Times,
}

#[derive(Debug, Clone, Copy)]
enum ComparisonOperator {
    Equal,
    Unequal,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

impl JqExpression {
    pub(super) fn parse(text: &str) -> Result<Self, GroupingError> {
        match parse::expression(text) {
            Ok(node) => Ok(Self {
                text: text.to_owned(),
                node,
            }),
            Err(why) => Err(GroupingError::Expression {
                expression: text.to_owned(),
                why,
            }),
        }
    }

    pub(super) fn values(&self, input: &Value) -> Result<Vec<Value>, GroupingError> {
        self.node.values(input).map_err(|why| self.wrong(why))
    }

    /// The one value that it yields; null and empty text are errors.
    pub(super) fn one(&self, input: &Value) -> Result<Value, GroupingError> {
        match self.values(input)?.as_slice() {
            [one] if !one.is_null() && one != "" => Ok(one.clone()),
            other => Err(self.wrong(format!("one value is wanted, not {other:?}"))),
        }
    }

    /// The one value that it yields, as text.
    pub(super) fn text(&self, input: &Value) -> Result<String, GroupingError> {
        Ok(match self.one(input)? {
            Value::String(text) => text,
            other => other.to_string(),
        })
    }

    pub(super) fn wrong(&self, why: String) -> GroupingError {
        GroupingError::Expression {
            expression: self.text.clone(),
            why,
        }
    }
}

type Values = Result<Vec<Value>, String>;

impl ExpressionNode {
    fn values(&self, input: &Value) -> Values {
        let one = |value: Value| Ok(vec![value]);
        match self {
            Self::Literal(value) => one(value.clone()),
            Self::Path(steps) => steps.iter().try_fold(vec![input.clone()], |found, step| {
                each(&found, |v| step.values(v))
            }),
            Self::Pipe(left, right) => each(&left.values(input)?, |value| right.values(value)),
            Self::Alternative(left, right) => {
                let found: Vec<Value> = left.values(input).unwrap_or_default();
                if found.iter().any(is_true) {
                    Ok(found.into_iter().filter(is_true).collect())
                } else {
                    right.values(input)
                }
            }
            Self::Or(left, right) => one((left.holds(input)? || right.holds(input)?).into()),
            Self::And(left, right) => one((left.holds(input)? && right.holds(input)?).into()),
            Self::Compare(left, comparison, right) => {
                let right = right.values(input)?;
                each(&left.values(input)?, |left| {
                    Ok(right
                        .iter()
                        .map(|right| comparison.holds(order(left, right)).into())
                        .collect())
                })
            }
            Self::Sum(left, sign, right) => {
                let right = right.values(input)?;
                each(&left.values(input)?, |left| {
                    right.iter().map(|right| sign.of(left, right)).collect()
                })
            }
            Self::List(None) => one(Value::Array(Vec::new())),
            Self::List(Some(inner)) => one(inner.values(input)?.into()),
            Self::Map(inner) => {
                let entries = PathStep::Each.values(input)?;
                one(each(&entries, |entry| inner.values(entry))?.into())
            }
            Self::Add => {
                let entries = PathStep::Each.values(input)?;
                let sum = entries.iter().try_fold(Value::Null, |sum, entry| {
                    ArithmeticOperator::Plus.of(&sum, entry)
                });
                one(sum?)
            }
            Self::Select(condition) => {
                if condition.holds(input)? {
                    one(input.clone())
                } else {
                    Ok(Vec::new())
                }
            }
            Self::Not => one((!is_true(input)).into()),
            Self::Length => one(length(input)?.into()),
            Self::ToString => one(match input {
                Value::String(_) => input.clone(),
                other => other.to_string().into(),
            }),
            Self::ToNumber => number(input).map(|number| vec![number]),
        }
    }

    fn holds(&self, input: &Value) -> Result<bool, String> {
        Ok(self.values(input)?.iter().any(is_true))
    }
}

fn each(values: &[Value], mut yields: impl FnMut(&Value) -> Values) -> Values {
    let mut all = Vec::new();
    for value in values {
        all.extend(yields(value)?);
    }
    Ok(all)
}

impl PathStep {
    fn values(&self, input: &Value) -> Values {
        match (self, input) {
            (Self::Field(_) | Self::Index(_), Value::Null) => Ok(vec![Value::Null]),
            (Self::Field(name), Value::Object(map)) => {
                Ok(vec![map.get(name).cloned().unwrap_or_default()])
            }
            (Self::Index(index), Value::Array(all)) => {
                let index = usize::try_from(*index)
                    .ok()
                    .or_else(|| all.len().checked_sub(usize::try_from(-index).ok()?));
                let found = index.and_then(|index| all.get(index));
                Ok(vec![found.cloned().unwrap_or_default()])
            }
            (Self::Each, Value::Array(all)) => Ok(all.clone()),
            (Self::Each, Value::Object(map)) => Ok(map.values().cloned().collect()),
            (step, other) => Err(format!("{step:?} of {other}")),
        }
    }
}

impl ArithmeticOperator {
    fn of(self, left: &Value, right: &Value) -> Result<Value, String> {
        let wrong = || format!("{left} {self:?} {right}");
        match (self, left, right) {
            (Self::Plus, Value::Null, other) | (Self::Plus, other, Value::Null) => {
                Ok(other.clone())
            }
            (Self::Plus, Value::String(left), Value::String(right)) => {
                Ok(format!("{left}{right}").into())
            }
            (_, Value::Number(left), Value::Number(right)) => self
                .of_numbers(left, right)
                .map(Value::Number)
                .ok_or_else(wrong),
            _ => Err(wrong()),
        }
    }

    /// Counts are integers; anything else is refused.
    fn of_numbers(self, left: &Number, right: &Number) -> Option<Number> {
        let whole = match (self, left.as_i64()?, right.as_i64()?) {
            (Self::Plus, left, right) => left.checked_add(right),
            (Self::Minus, left, right) => left.checked_sub(right),
            (Self::Times, left, right) => left.checked_mul(right),
        };
        whole.map(Number::from)
    }
}

impl ComparisonOperator {
    fn holds(self, order: Ordering) -> bool {
        match self {
            Self::Equal => order.is_eq(),
            Self::Unequal => order.is_ne(),
            Self::Less => order.is_lt(),
            Self::LessOrEqual => order.is_le(),
            Self::Greater => order.is_gt(),
            Self::GreaterOrEqual => order.is_ge(),
        }
    }
}

fn is_true(value: &Value) -> bool {
    !matches!(value, Value::Null | Value::Bool(false))
}

fn length(value: &Value) -> Result<usize, String> {
    match value {
        Value::Null => Ok(0),
        Value::String(text) => Ok(text.chars().count()),
        Value::Array(all) => Ok(all.len()),
        Value::Object(map) => Ok(map.len()),
        Value::Bool(_) | Value::Number(_) => Err(format!("{value} has no length")),
    }
}

fn number(value: &Value) -> Result<Value, String> {
    match value {
        Value::Number(_) => Ok(value.clone()),
        Value::String(text) => serde_json::from_str::<Number>(text)
            .map(Value::Number)
            .map_err(|_| format!("'{text}' is not a number")),
        other => Err(format!("{other} is not a number")),
    }
}

/// jq's order: null, false, true, numbers, texts, lists, objects.
fn order(left: &Value, right: &Value) -> Ordering {
    match (left, right) {
        (Value::Number(left), Value::Number(right)) => {
            let (left, right) = (left.as_f64(), right.as_f64());
            left.partial_cmp(&right).unwrap_or(Ordering::Equal)
        }
        (Value::String(left), Value::String(right)) => left.cmp(right),
        (Value::Array(left), Value::Array(right)) => left
            .iter()
            .zip(right)
            .map(|(left, right)| order(left, right))
            .find(|order| order.is_ne())
            .unwrap_or_else(|| left.len().cmp(&right.len())),
        (Value::Object(_), Value::Object(_)) if left != right => {
            left.to_string().cmp(&right.to_string())
        }
        (left, right) => rank(left).cmp(&rank(right)),
    }
}

fn rank(value: &Value) -> u8 {
    match value {
        Value::Null => 0,
        Value::Bool(false) => 1,
        Value::Bool(true) => 2,
        Value::Number(_) => 3,
        Value::String(_) => 4,
        Value::Array(_) => 5,
        Value::Object(_) => 6,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn values(text: &str) -> Vec<Value> {
        let pod = json!({"metadata": {"labels": {"role": "master", "a/b": "c"}},
            "spec": {"containers": [{"limits": {"gpu": 2}}, {"limits": {}}]}});
        let expression = JqExpression::parse(text).expect("it parses");
        expression.values(&pod).expect("it has values")
    }

    #[test]
    fn reads_paths_comparisons_and_alternatives() {
        for (text, expected) in [
            (".metadata.labels.role", json!(["master"])),
            (".metadata.labels[\"a/b\"]", json!(["c"])),
            (".metadata.labels.\"a/b\"", json!(["c"])),
            (".metadata.labels.none.deeper", json!([null])),
            (".spec.containers[].limits.gpu", json!([2, null])),
            (".spec.containers[-1].limits.gpu // 0", json!([0])),
            (
                "(.spec.containers[0].limits[\"gpu\"] // 0) > 0",
                json!([true]),
            ),
            (".metadata.labels.role == \"worker\" | not", json!([true])),
            (
                ".metadata.labels.role != \"x\" and (.spec.none == null)",
                json!([true]),
            ),
            (".spec.containers | length >= 2", json!([true])),
            (
                ".spec.containers[] | select(.limits.gpu == 2) | .limits.gpu | tostring",
                json!(["2"]),
            ),
        ] {
            assert_eq!(Value::from(values(text)), expected, "{text}");
        }
    }

    #[test]
    fn refuses_what_it_does_not_know() {
        for text in [
            "",
            ".a |",
            ".a + ",
            "keys",
            ".a[",
            "\"open",
            ".a == ",
            "(.a",
            "def f: 1;",
        ] {
            assert!(JqExpression::parse(text).is_err(), "{text}");
        }
    }
}

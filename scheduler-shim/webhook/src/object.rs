//! Reads the parts of an object that rules look at, and skips the others.
//!
//! A user who may create pods chooses the size of a review, and parsed JSON takes many times the memory of its text. So of
//! pods only the fields that `apportion-admission` knows are kept. No element of a kept list is dropped: the patch
//! names the same paths with and without the rest. The memory of what is kept is bounded, and so is the number of
//! containers.

use std::cell::{Cell, RefCell};
use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// The maximum number of containers in a list of a pod.
const CONTAINERS: usize = 1000;
/// The maximum memory of a review's kept objects, besides their texts. The rules hold them four times.
const KEPT: usize = 8 << 20;
/// The memory of an object that has an entry, and of each entry.
const OBJECT: usize = 640;
const ENTRY: usize = 64;

/// The memory that one review has left, and why it was refused once that was too little.
#[derive(Debug)]
pub(crate) struct ObjectBudget {
    left: Cell<usize>,
    refusal: RefCell<Option<String>>,
}

impl Default for ObjectBudget {
    fn default() -> Self {
        Self {
            left: Cell::new(KEPT),
            refusal: RefCell::default(),
        }
    }
}

impl ObjectBudget {
    /// Why the review is refused, if it is.
    pub(crate) fn refusal(self) -> Option<String> {
        self.refusal.into_inner()
    }

    fn is_spent(&self) -> bool {
        self.refusal.borrow().is_some()
    }

    fn refuse(&self, why: String) {
        self.left.set(0);
        self.refusal.borrow_mut().get_or_insert(why);
    }

    fn charge(&self, bytes: usize) {
        match self.left.get().checked_sub(bytes) {
            Some(left) => self.left.set(left),
            None => self.refuse(format!(
                "the object has too many fields: those that are judged would take more than {} MiB of memory",
                KEPT >> 20
            )),
        }
    }
}

/// The part of an object that is being read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ObjectPart {
    /// A part of which everything is kept.
    Whole,
    Pod,
    Metadata,
    Spec,
    Status,
    Containers,
    Container,
}

impl ObjectPart {
    /// The part that a field is; `None` if no rule looks at it.
    fn field(self, name: &str) -> Option<Self> {
        match (self, name) {
            (Self::Whole, _) => Some(Self::Whole),
            (Self::Pod, "metadata") => Some(Self::Metadata),
            (Self::Pod, "spec") => Some(Self::Spec),
            (Self::Pod, "status") => Some(Self::Status),
            (Self::Pod, _) => None,
            (Self::Metadata, "managedFields") => None,
            (Self::Metadata, _) => Some(Self::Whole),
            (Self::Spec, "containers" | "initContainers") => Some(Self::Containers),
            (Self::Spec, "schedulerName" | "nodeName" | "runtimeClassName" | "volumes") => {
                Some(Self::Whole)
            }
            (Self::Spec, _) => None,
            (Self::Status, "phase") => Some(Self::Whole),
            (Self::Status, _) => None,
            (Self::Container, "name" | "env" | "envFrom" | "resources") => Some(Self::Whole),
            (Self::Container, _) => None,
            // A list has no fields. The rules will report that this is not a list.
            (Self::Containers, _) => Some(Self::Whole),
        }
    }

    /// The part that an element of a list is.
    fn element(self) -> Self {
        match self {
            Self::Containers => Self::Container,
            Self::Whole
            | Self::Pod
            | Self::Metadata
            | Self::Spec
            | Self::Status
            | Self::Container => Self::Whole,
        }
    }
}

/// Reads one part of an object.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ObjectSeed<'a> {
    pub(crate) part: ObjectPart,
    pub(crate) budget: &'a ObjectBudget,
}

impl<'de> DeserializeSeed<'de> for ObjectSeed<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Value, D::Error> {
        if self.budget.is_spent() {
            return IgnoredAny::deserialize(from).map(|_| Value::Null);
        }
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for ObjectSeed<'_> {
    type Value = Value;

    fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("any JSON")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        let element = Self {
            part: self.part.element(),
            ..self
        };
        let mut kept = Vec::new();
        while let Some(value) = list.next_element_seed(element)? {
            if self.part == ObjectPart::Containers && kept.len() == CONTAINERS {
                let why = format!(
                    "a pod may have {CONTAINERS} containers of a kind, and this one has more"
                );
                self.budget.refuse(why);
            }
            if !self.budget.is_spent() {
                self.budget.charge(ENTRY);
                kept.push(value);
            }
        }
        Ok(kept.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Value, A::Error> {
        let mut kept = Map::new();
        while let Some(name) = fields.next_key::<String>()? {
            let Some(part) = self.part.field(&name) else {
                fields.next_value::<IgnoredAny>()?;
                continue;
            };
            let value = fields.next_value_seed(Self { part, ..self })?;
            if !self.budget.is_spent() {
                self.budget
                    .charge(if kept.is_empty() { OBJECT } else { ENTRY });
                kept.insert(name, value);
            }
        }
        Ok(kept.into())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(part: ObjectPart, text: &str) -> (Value, Option<String>) {
        let budget = ObjectBudget::default();
        let mut from = serde_json::Deserializer::from_str(text);
        let budget_of = &budget;
        let read = ObjectSeed {
            part,
            budget: budget_of,
        }
        .deserialize(&mut from);
        let read = read.expect("JSON");
        from.end().expect("nothing more");
        (read, budget.refusal())
    }

    #[test]
    fn what_rules_look_at_is_kept_and_the_rest_is_not() {
        let pod = json!({"apiVersion": "v1", "metadata": {"name": "a", "managedFields": [{"x": {}}], "labels": {"l": "v"}},
            "spec": {"schedulerName": "s", "tolerations": [{}], "volumes": [{"name": "v", "emptyDir": {}}],
                "containers": [{"name": "c", "image": "i", "env": [{"name": "A", "x": 1.5}], "resources": {"claims": [-1]}}]},
            "status": {"phase": "Running", "conditions": [null, true]}});
        let kept = json!({"metadata": {"name": "a", "labels": {"l": "v"}},
            "spec": {"schedulerName": "s", "volumes": [{"name": "v", "emptyDir": {}}],
                "containers": [{"name": "c", "env": [{"name": "A", "x": 1.5}], "resources": {"claims": [-1]}}]},
            "status": {"phase": "Running"}});
        assert_eq!(read(ObjectPart::Pod, &pod.to_string()), (kept, None));
        assert_eq!(read(ObjectPart::Whole, &pod.to_string()), (pod, None));
    }

    #[test]
    fn a_thousand_containers_are_read_and_one_more_is_refused() {
        let pod = |count: usize| json!({"spec": {"containers": vec![json!({"name": "c"}); count]}});
        let (kept, refusal) = read(ObjectPart::Pod, &pod(1000).to_string());
        assert_eq!((kept, refusal), (pod(1000), None));
        let (_, refusal) = read(ObjectPart::Pod, &pod(1001).to_string());
        let words = "a pod may have 1000 containers of a kind, and this one has more";
        assert_eq!(refusal.as_deref(), Some(words));
    }

    #[test]
    fn more_fields_than_the_budget_allows_are_refused() {
        let text = format!("[{}0]", "{\"a\":0},".repeat(20_000));
        let (_, refusal) = read(ObjectPart::Whole, &text);
        assert!(refusal.is_some_and(|why| why.starts_with("the object has too many fields")));
    }
}

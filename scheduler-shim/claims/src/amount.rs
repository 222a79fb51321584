//! Quantities of devices: read from objects, written as the API server writes them.

use std::collections::BTreeMap;

use apportion_kubernetes::Quantity;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

/// A quantity of an object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Amount(pub Quantity);

/// Amounts of capacities, by name.
pub type CapacityMap = BTreeMap<String, Amount>;

impl<'de> Deserialize<'de> for Amount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        let quantity = Quantity::from_json(&value);
        quantity
            .map(Self)
            .ok_or_else(|| D::Error::custom(format!("{value} is not a quantity")))
    }
}

impl Serialize for Amount {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

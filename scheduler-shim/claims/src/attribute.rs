//! Attributes of devices: one value, or a list of values, of one of four types.

use serde::Deserialize;

use crate::objects::Device;

/// The value of an attribute.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(from = "RawAttribute")]
pub struct DeviceAttribute {
    /// The value, or the values.
    pub values: AttributeValues,
    /// Whether it is a list.
    pub is_list: bool,
}

/// Values of one type.
#[expect(missing_docs, reason = "the names of the variants say what they hold")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AttributeValues {
    Int(Box<[i64]>),
    Bool(Box<[bool]>),
    String(Box<[String]>),
    Version(Box<[String]>),
    /// A type that this crate does not know.
    Unknown,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RawAttribute {
    int: Option<i64>,
    bool: Option<bool>,
    string: Option<String>,
    version: Option<String>,
    ints: Option<Vec<i64>>,
    bools: Option<Vec<bool>>,
    strings: Option<Vec<String>>,
    versions: Option<Vec<String>>,
}

impl From<RawAttribute> for DeviceAttribute {
    fn from(raw: RawAttribute) -> Self {
        let lists = [
            raw.ints.map(|all| AttributeValues::Int(all.into())),
            raw.bools.map(|all| AttributeValues::Bool(all.into())),
            raw.strings.map(|all| AttributeValues::String(all.into())),
            raw.versions.map(|all| AttributeValues::Version(all.into())),
        ];
        if let Some(values) = lists.into_iter().flatten().next() {
            return Self {
                values,
                is_list: true,
            };
        }
        let single = [
            raw.int.map(|one| AttributeValues::Int([one].into())),
            raw.bool.map(|one| AttributeValues::Bool([one].into())),
            raw.string.map(|one| AttributeValues::String([one].into())),
            raw.version
                .map(|one| AttributeValues::Version([one].into())),
        ];
        let found = single.into_iter().flatten().next();
        Self {
            values: found.unwrap_or(AttributeValues::Unknown),
            is_list: false,
        }
    }
}

impl AttributeValues {
    /// The values that both have. `None` if there are none, or if the types differ.
    pub(crate) fn shared_with(&self, other: &Self) -> Option<Self> {
        fn common<T: Clone + PartialEq>(one: &[T], other: &[T]) -> Option<Box<[T]>> {
            let both = one.iter().filter(|value| other.contains(value)).cloned();
            let both: Box<[T]> = both.collect();
            (!both.is_empty()).then_some(both)
        }
        match (self, other) {
            (Self::Int(one), Self::Int(other)) => common(one, other).map(Self::Int),
            (Self::Bool(one), Self::Bool(other)) => common(one, other).map(Self::Bool),
            (Self::String(one), Self::String(other)) => common(one, other).map(Self::String),
            (Self::Version(one), Self::Version(other)) => common(one, other).map(Self::Version),
            (
                Self::Int(_) | Self::Bool(_) | Self::String(_) | Self::Version(_) | Self::Unknown,
                _,
            ) => None,
        }
    }

    /// Whether a constraint can compare them: the type is known, and there is a value.
    pub(crate) fn is_comparable(&self) -> bool {
        match self {
            Self::Int(all) => !all.is_empty(),
            Self::Bool(all) => !all.is_empty(),
            Self::String(all) | Self::Version(all) => !all.is_empty(),
            Self::Unknown => false,
        }
    }
}

impl Device {
    /// The attribute with that full name, domain included.
    pub(crate) fn attribute(&self, driver: &str, name: &str) -> Option<&DeviceAttribute> {
        self.attributes.get(name).or_else(|| {
            let (domain, local) = name.split_once('/')?;
            self.attributes.get(local).filter(|_| domain == driver)
        })
    }
}

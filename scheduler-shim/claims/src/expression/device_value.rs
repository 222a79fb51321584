//! A device as expressions see it: `device.driver`, `device.attributes["domain"].name`, `device.capacity`.

use std::collections::{BTreeMap, HashMap};

use cel::common::traits::{Container, Indexer, Sizer};
use cel::common::types::{CelBool, CelInt, CelList, CelMap, CelMapKey, CelString};
use cel::common::types::{DYN_TYPE, MAP_TYPE, Type};
use cel::common::value::{CowVal, Val};
use cel::{DeclarationError, Env, ExecutionError};

use super::by_domain;
use super::quantity_value::QuantityValue;
use super::semver_value::SemverValue;
use crate::attribute::{AttributeValues, DeviceAttribute};
use crate::objects::{Device, DeviceCapacity};

/// What is known of a device, by domain. A domain that it does not have is an empty map, so that `has` can ask for a
/// name in it.
#[derive(Clone, Debug)]
struct DomainMap {
    domains: BTreeMap<String, Box<dyn Val>>,
    empty: Box<dyn Val>,
}

static DOMAINS: Type = MAP_TYPE;

impl Val for DomainMap {
    fn get_type(&self) -> &Type {
        Self::cel_type()
    }

    fn cel_type() -> &'static Type {
        &DOMAINS
    }

    fn as_indexer<'b, 'v>(&'b self) -> Option<&'b (dyn Indexer + 'v)>
    where
        Self: 'v,
    {
        Some(self)
    }

    fn as_container(&self) -> Option<&dyn Container> {
        Some(self)
    }

    fn as_sizer(&self) -> Option<&dyn Sizer> {
        Some(self)
    }

    fn clone_as_boxed<'v>(&self) -> Box<dyn Val + 'v> {
        Box::new(self.clone())
    }
}

impl Indexer for DomainMap {
    fn get<'b, 'v>(&'b self, key: &dyn Val) -> Result<CowVal<'b, 'v>, ExecutionError>
    where
        Self: 'v,
    {
        let domain = text(key)?;
        let found = self.domains.get(domain).unwrap_or(&self.empty);
        Ok(CowVal::Borrowed(found.as_ref()))
    }

    fn steal<'v>(self: Box<Self>, key: &dyn Val) -> Result<Box<dyn Val + 'v>, ExecutionError>
    where
        Self: 'v,
    {
        self.get(key).map(CowVal::into_owned)
    }
}

impl Container for DomainMap {
    fn contains(&self, key: &dyn Val) -> Result<bool, ExecutionError> {
        Ok(self.domains.contains_key(text(key)?))
    }
}

impl Sizer for DomainMap {
    fn size(&self) -> CelInt {
        CelInt::from(i64::try_from(self.domains.len()).unwrap_or(i64::MAX))
    }
}

fn text(key: &dyn Val) -> Result<&str, ExecutionError> {
    let text = key.downcast_ref::<CelString<'_>>();
    text.map(CelString::inner)
        .ok_or_else(|| ExecutionError::UnexpectedType {
            got: key.get_type().name().to_owned(),
            want: "string".to_owned(),
        })
}

/// The variable `device`.
pub(super) fn value(driver: &str, device: &Device) -> Result<CelMap<'static>, String> {
    let attributes = domains(&device.attributes, driver, attribute)?;
    let capacity = domains(&device.capacity, driver, |capacity| {
        Ok(self::capacity(capacity))
    })?;
    let fields: [(&str, Box<dyn Val>); 4] = [
        ("driver", string(driver)),
        (
            "allowMultipleAllocations",
            Box::new(CelBool::from(device.allow_multiple_allocations)),
        ),
        ("attributes", Box::new(attributes)),
        ("capacity", Box::new(capacity)),
    ];
    Ok(map(fields))
}

fn domains<T>(
    named: &BTreeMap<String, T>,
    driver: &str,
    value: impl Fn(&T) -> Result<Box<dyn Val>, String>,
) -> Result<DomainMap, String> {
    let domains = by_domain(named, driver).into_iter().map(|(domain, all)| {
        let all = all.into_iter().map(|(name, one)| {
            let value = value(one).map_err(|error| format!("attribute {name}: {error}"))?;
            Ok((name, value))
        });
        let all = all.collect::<Result<Vec<_>, String>>()?;
        let values: Box<dyn Val> = Box::new(map(all));
        Ok((domain.to_owned(), values))
    });
    Ok(DomainMap {
        domains: domains.collect::<Result<_, String>>()?,
        empty: Box::new(CelMap::default()),
    })
}

fn map<'a>(entries: impl IntoIterator<Item = (&'a str, Box<dyn Val>)>) -> CelMap<'static> {
    let entries = entries.into_iter();
    let entries: HashMap<CelMapKey<'static>, Box<dyn Val>> = entries
        .map(|(name, value)| (CelMapKey::from(name.to_owned()), value))
        .collect();
    CelMap::from(entries)
}

fn string(text: &str) -> Box<dyn Val> {
    Box::new(CelString::from(text.to_owned()))
}

fn attribute(attribute: &DeviceAttribute) -> Result<Box<dyn Val>, String> {
    let values: Vec<Box<dyn Val>> = match &attribute.values {
        AttributeValues::Int(all) => all
            .iter()
            .map(|one| Box::new(CelInt::from(*one)) as Box<dyn Val>)
            .collect(),
        AttributeValues::Bool(all) => all
            .iter()
            .map(|one| Box::new(CelBool::from(*one)) as Box<dyn Val>)
            .collect(),
        AttributeValues::String(all) => all.iter().map(|one| string(one)).collect(),
        AttributeValues::Version(all) => all
            .iter()
            .map(|one| Ok(Box::new(SemverValue::parse(one)?) as Box<dyn Val>))
            .collect::<Result<_, String>>()?,
        AttributeValues::Unknown => return Err("it has no value of a known type".to_owned()),
    };
    if attribute.is_list {
        return Ok(Box::new(CelList::from(values)));
    }
    let single = values.into_iter().next();
    single.ok_or_else(|| "it has no value".to_owned())
}

fn capacity(capacity: &DeviceCapacity) -> Box<dyn Val> {
    Box::new(QuantityValue(capacity.value.0))
}

/// `includes`: whether a list has a value, or whether a single value is it.
pub(super) fn extension(environment: &mut Env) -> Result<(), DeclarationError> {
    environment.add_member_overload(
        "includes",
        "list_includes_dyn_dyn",
        DYN_TYPE,
        vec![DYN_TYPE],
        |arguments| {
            let [all, wanted] = arguments.as_slice() else {
                return Err(ExecutionError::invalid_argument_count(2, arguments.len()));
            };
            let Some(list) = all.downcast_ref::<CelList<'_>>() else {
                return Ok(CowVal::owned(CelBool::from(all.equals(wanted.as_ref()))));
            };
            let mut values = list.inner().iter();
            let found = values.any(|value| value.equals(wanted.as_ref()));
            Ok(CowVal::owned(CelBool::from(found)))
        },
    )
}

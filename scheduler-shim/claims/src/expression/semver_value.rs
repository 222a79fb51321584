//! Semantic versions in expressions, with the functions of Kubernetes: `semver("1.2.3")`, `major`, `compareTo`, …

use std::any::Any;
use std::cmp::Ordering;

use cel::common::types::{CelBool, CelInt, CelString, Type};
use cel::common::value::{StaticVal, Val};
use cel::{DeclarationError, Env, ExecutionError, add_member_overload, add_overload};
use semver::Version;

use super::quantity_value::as_int;

#[derive(Clone, Debug)]
pub(super) struct SemverValue(Version);

static SEMVER: Type = Type::new_unspecified_type("kubernetes.Semver");

impl SemverValue {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let version = Version::parse(text);
        version
            .map(Self)
            .map_err(|error| format!("{text:?} is not a semantic version: {error}"))
    }

    /// As `parse`, but with a leading `v`, leading zeros and missing parts.
    fn parse_normalized(text: &str) -> Result<Self, String> {
        let text = text.strip_prefix('v').unwrap_or(text);
        let mut parts: Vec<String> = text.splitn(3, '.').map(without_zeros).collect();
        let is_short = parts.len() < 3;
        let last = parts.last().map(String::as_str).unwrap_or_default();
        if is_short && last.contains(['+', '-']) {
            return Err("a short version cannot have a pre-release or build metadata".to_owned());
        }
        parts.resize(3, "0".to_owned());
        Self::parse(&parts.join("."))
    }
}

fn without_zeros(part: &str) -> String {
    let rest = part.trim_start_matches('0');
    if rest.len() < part.len() && !rest.starts_with(|first: char| first.is_ascii_digit()) {
        return format!("0{rest}");
    }
    rest.to_owned()
}

impl Val for SemverValue {
    fn get_type(&self) -> &Type {
        Self::cel_type()
    }

    fn cel_type() -> &'static Type {
        &SEMVER
    }

    fn equals(&self, other: &dyn Val) -> bool {
        let other = other.downcast_ref::<Self>();
        other.is_some_and(|other| order(self, other).is_eq())
    }

    fn clone_as_boxed<'v>(&self) -> Box<dyn Val + 'v> {
        Box::new(self.clone())
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }
}

impl StaticVal for SemverValue {}

/// Build metadata does not count.
fn order(one: &SemverValue, other: &SemverValue) -> Ordering {
    one.0.cmp_precedence(&other.0)
}

pub(super) fn extension(environment: &mut Env) -> Result<(), DeclarationError> {
    add_overload!(environment, fn semver: (CelString) -> Result<SemverValue>)?;
    add_overload!(environment, fn semver_normalized: (CelString, CelBool) -> Result<SemverValue>, name = "semver")?;
    add_overload!(environment, fn is_semver: (CelString) -> CelBool)?;
    add_overload!(environment, fn is_semver_normalized: (CelString, CelBool) -> CelBool, name = "isSemver")?;
    add_member_overload!(environment, fn is_greater_than: (SemverValue, SemverValue) -> CelBool)?;
    add_member_overload!(environment, fn is_less_than: (SemverValue, SemverValue) -> CelBool)?;
    add_member_overload!(environment, fn compare_to: (SemverValue, SemverValue) -> CelInt)?;
    add_member_overload!(environment, fn major: (SemverValue) -> Result<CelInt>)?;
    add_member_overload!(environment, fn minor: (SemverValue) -> Result<CelInt>)?;
    add_member_overload!(environment, fn patch: (SemverValue) -> Result<CelInt>)
}

fn read(text: &CelString<'_>, normalizes: bool) -> Result<SemverValue, String> {
    if normalizes {
        SemverValue::parse_normalized(text.inner())
    } else {
        SemverValue::parse(text.inner())
    }
}

fn failed(error: String) -> ExecutionError {
    ExecutionError::function_error("semver", error)
}

fn semver(text: &CelString<'_>) -> Result<SemverValue, ExecutionError> {
    read(text, false).map_err(failed)
}

fn semver_normalized(
    text: &CelString<'_>,
    normalizes: &CelBool,
) -> Result<SemverValue, ExecutionError> {
    read(text, *normalizes.inner()).map_err(failed)
}

fn is_semver(text: &CelString<'_>) -> CelBool {
    CelBool::from(read(text, false).is_ok())
}

fn is_semver_normalized(text: &CelString<'_>, normalizes: &CelBool) -> CelBool {
    CelBool::from(read(text, *normalizes.inner()).is_ok())
}

fn is_greater_than(one: &SemverValue, other: &SemverValue) -> CelBool {
    CelBool::from(order(one, other).is_gt())
}

fn is_less_than(one: &SemverValue, other: &SemverValue) -> CelBool {
    CelBool::from(order(one, other).is_lt())
}

fn compare_to(one: &SemverValue, other: &SemverValue) -> CelInt {
    CelInt::from(as_int(order(one, other)))
}

fn part(number: u64) -> Result<CelInt, ExecutionError> {
    let number = i64::try_from(number).map(CelInt::from);
    number.map_err(|_| failed("a part of the version is too large".to_owned()))
}

fn major(version: &SemverValue) -> Result<CelInt, ExecutionError> {
    part(version.0.major)
}

fn minor(version: &SemverValue) -> Result<CelInt, ExecutionError> {
    part(version.0.minor)
}

fn patch(version: &SemverValue) -> Result<CelInt, ExecutionError> {
    part(version.0.patch)
}

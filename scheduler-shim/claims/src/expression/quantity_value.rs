//! Quantities in expressions, with the functions of Kubernetes: `quantity("1Gi")`, `compareTo`, `isGreaterThan`, …

use std::any::Any;
use std::cmp::Ordering;

use apportion_kubernetes::Quantity;
use cel::common::types::{CelBool, CelDouble, CelInt, CelString, Type};
use cel::common::value::{StaticVal, Val};
use cel::{DeclarationError, Env, ExecutionError, add_member_overload, add_overload};

/// The value 1 in the unit in which amounts are kept, billionths.
const ONE: i128 = 1_000_000_000;

#[derive(Clone, Copy, Debug)]
pub(super) struct QuantityValue(pub(super) Quantity);

static QUANTITY: Type = Type::new_unspecified_type("kubernetes.Quantity");

impl Val for QuantityValue {
    fn get_type(&self) -> &Type {
        Self::cel_type()
    }

    fn cel_type() -> &'static Type {
        &QUANTITY
    }

    fn equals(&self, other: &dyn Val) -> bool {
        let other = other.downcast_ref::<Self>();
        other.is_some_and(|other| self.0 == other.0)
    }

    fn clone_as_boxed<'v>(&self) -> Box<dyn Val + 'v> {
        Box::new(*self)
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }
}

impl StaticVal for QuantityValue {}

pub(super) fn extension(environment: &mut Env) -> Result<(), DeclarationError> {
    add_overload!(environment, fn quantity: (CelString) -> Result<QuantityValue>)?;
    add_overload!(environment, fn is_quantity: (CelString) -> CelBool)?;
    add_overload!(environment, fn sign: (QuantityValue) -> CelInt)?;
    add_member_overload!(environment, fn is_greater_than: (QuantityValue, QuantityValue) -> CelBool)?;
    add_member_overload!(environment, fn is_less_than: (QuantityValue, QuantityValue) -> CelBool)?;
    add_member_overload!(environment, fn compare_to: (QuantityValue, QuantityValue) -> CelInt)?;
    add_member_overload!(environment, fn as_approximate_float: (QuantityValue) -> CelDouble)?;
    add_member_overload!(environment, fn as_integer: (QuantityValue) -> Result<CelInt>)?;
    add_member_overload!(environment, fn is_integer: (QuantityValue) -> CelBool)?;
    add_member_overload!(environment, fn add: (QuantityValue, QuantityValue) -> QuantityValue)?;
    add_member_overload!(environment, fn add_int: (QuantityValue, CelInt) -> QuantityValue, name = "add")?;
    add_member_overload!(environment, fn sub: (QuantityValue, QuantityValue) -> QuantityValue)?;
    add_member_overload!(environment, fn sub_int: (QuantityValue, CelInt) -> QuantityValue, name = "sub")
}

fn quantity(text: &CelString<'_>) -> Result<QuantityValue, ExecutionError> {
    let parsed = text.inner().parse::<Quantity>();
    parsed
        .map(QuantityValue)
        .map_err(|error| ExecutionError::function_error("quantity", error))
}

fn is_quantity(text: &CelString<'_>) -> CelBool {
    CelBool::from(text.inner().parse::<Quantity>().is_ok())
}

fn sign(amount: &QuantityValue) -> CelInt {
    CelInt::from(as_int(amount.0.cmp(&Quantity::ZERO)))
}

fn is_greater_than(one: &QuantityValue, other: &QuantityValue) -> CelBool {
    CelBool::from(one.0 > other.0)
}

fn is_less_than(one: &QuantityValue, other: &QuantityValue) -> CelBool {
    CelBool::from(one.0 < other.0)
}

fn compare_to(one: &QuantityValue, other: &QuantityValue) -> CelInt {
    CelInt::from(as_int(one.0.cmp(&other.0)))
}

/// The sign of a comparison.
pub(super) fn as_int(order: Ordering) -> i64 {
    match order {
        Ordering::Less => -1,
        Ordering::Equal => 0,
        Ordering::Greater => 1,
    }
}

fn as_approximate_float(amount: &QuantityValue) -> CelDouble {
    // No conversion from so wide an integer is exact; the function's name says so.
    let billionths: f64 = amount
        .0
        .billionths()
        .to_string()
        .parse()
        .unwrap_or(f64::NAN);
    CelDouble::from(billionths / 1e9)
}

fn as_integer(amount: &QuantityValue) -> Result<CelInt, ExecutionError> {
    let whole = amount.0.whole().map(CelInt::from);
    let message = "cannot convert value to integer";
    whole.ok_or_else(|| ExecutionError::function_error("asInteger", message))
}

fn is_integer(amount: &QuantityValue) -> CelBool {
    CelBool::from(amount.0.whole().is_some())
}

fn add(one: &QuantityValue, other: &QuantityValue) -> QuantityValue {
    QuantityValue(one.0 + other.0)
}

fn add_int(one: &QuantityValue, other: &CelInt) -> QuantityValue {
    QuantityValue(one.0 + units(*other.inner()))
}

fn sub(one: &QuantityValue, other: &QuantityValue) -> QuantityValue {
    QuantityValue(one.0 - other.0)
}

fn sub_int(one: &QuantityValue, other: &CelInt) -> QuantityValue {
    QuantityValue(one.0 - units(*other.inner()))
}

fn units(count: i64) -> Quantity {
    Quantity::ZERO.with_billionths(i128::from(count) * ONE)
}

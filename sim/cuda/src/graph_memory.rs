//! A device's pool for graph memory: its attributes, and trimming it.

use apportion_sim_machine::{MachineReply, MachineRequest, PoolAttribute};

use crate::driver::{ask, create, driver};
use crate::error::{CudaError, INVALID_VALUE, Outcome, UNKNOWN};
use crate::export::exports;
use crate::pointer::{In, Out};

exports! {
    cuDeviceGraphMemTrim(device: i32) = trim => "cuDeviceGraphMemTrim" @ 11040;
    cuDeviceGetGraphMemAttribute(device: i32, attribute: u32, value: Out<u64>) = get_attribute => "cuDeviceGetGraphMemAttribute" @ 11040;
    cuDeviceSetGraphMemAttribute(device: i32, attribute: u32, value: In<u64>) = set_attribute => "cuDeviceSetGraphMemAttribute" @ 11040;
}

/// The machine's name of the pool for a device's graphs.
pub(crate) fn pool_of(device: i32) -> Result<u64, CudaError> {
    create(MachineRequest::GraphPool(driver()?.card(device)?))
}

/// The value of a pool's attribute.
pub(crate) fn value(pool: u64, attribute: PoolAttribute) -> Result<u64, CudaError> {
    match ask(MachineRequest::PoolGet(pool, attribute))? {
        MachineReply::Value(value) => Ok(value),
        _ => Err(UNKNOWN),
    }
}

fn trim(device: i32) -> Outcome {
    let pool = pool_of(device)?;
    ask(MachineRequest::PoolTrim { pool, keep: 0 }).map(drop)
}

/// `CUgraphMem_attribute`.
fn attribute(number: u32) -> Result<PoolAttribute, CudaError> {
    match number {
        0 => Ok(PoolAttribute::Used),
        1 => Ok(PoolAttribute::UsedHigh),
        2 => Ok(PoolAttribute::Reserved),
        3 => Ok(PoolAttribute::ReservedHigh),
        _ => Err(INVALID_VALUE),
    }
}

fn get_attribute(device: i32, number: u32, out: Out<u64>) -> Outcome {
    out.check()?;
    out.put(value(pool_of(device)?, attribute(number)?)?)
}

fn set_attribute(device: i32, number: u32, wish: In<u64>) -> Outcome {
    let request = MachineRequest::PoolSet(pool_of(device)?, attribute(number)?, wish.get()?);
    ask(request).map(drop)
}

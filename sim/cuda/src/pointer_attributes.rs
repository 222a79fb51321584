//! `cuPointerGetAttribute` and related functions: what a pointer points to.

use crate::driver::tables;
use crate::error::{CudaError, INVALID_VALUE, NOT_SUPPORTED, Outcome};
use crate::export::exports;
use crate::pointer::{In, Out};
use crate::tables::{MemoryKind, MemoryRange};

exports! {
    cuPointerGetAttribute(data: Out<u8>, attribute: u32, address: u64) = get => "cuPointerGetAttribute" @ 4000;
    cuPointerGetAttributes(count: u32, attributes: In<u32>, data: In<Out<u8>>, address: u64) = get_all => "cuPointerGetAttributes" @ 7000;
    cuPointerSetAttribute(value: In<u32>, attribute: u32, address: u64) = set => "cuPointerSetAttribute" @ 6000;
}

/// A value in the width of its attribute.
enum AttributeValue {
    Narrow(u32),
    Wide(u64),
}

/// `CU_POINTER_ATTRIBUTE_*`.
const CONTEXT: u32 = 1;
const MEMORY_TYPE: u32 = 2;
const DEVICE_POINTER: u32 = 3;
const HOST_POINTER: u32 = 4;
const P2P_TOKENS: u32 = 5;
const SYNC_MEMOPS: u32 = 6;
const BUFFER_ID: u32 = 7;
const IS_MANAGED: u32 = 8;
const DEVICE_ORDINAL: u32 = 9;
const IS_IPC_CAPABLE: u32 = 10;
const RANGE_START: u32 = 11;
const RANGE_SIZE: u32 = 12;
const MAPPED: u32 = 13;
const ALLOWED_HANDLES: u32 = 14;
const IS_RDMA_CAPABLE: u32 = 15;
const ACCESS_FLAGS: u32 = 16;
const POOL: u32 = 17;
const MAPPING_SIZE: u32 = 18;
const MAPPING_BASE: u32 = 19;
const BLOCK_ID: u32 = 20;
const IS_DECOMPRESS_CAPABLE: u32 = 21;

/// `CU_MEMORYTYPE_HOST` and `CU_MEMORYTYPE_DEVICE`.
const HOST_MEMORY: u32 = 1;
const DEVICE_MEMORY: u32 = 2;
/// `CU_DEVICE_INVALID`.
const NO_DEVICE: i32 = -2;

fn get(data: Out<u8>, attribute: u32, address: u64) -> Outcome {
    data.check()?;
    let (base, range) = tables().range_of(address)?;
    put(data, value(attribute, address, base, &range)?)
}

/// Unlike the function for one attribute, this accepts pointers that the driver does not know.
fn get_all(count: u32, attributes: In<u32>, data: In<Out<u8>>, address: u64) -> Outcome {
    let known = tables().range_of(address).ok();
    for at in 0..count as usize {
        let attribute = attributes.at(at)?;
        let value = match known {
            Some((base, range)) => value(attribute, address, base, &range),
            None => value_of_unknown(attribute),
        };
        match value {
            Ok(value) => put(data.at(at)?, value)?,
            Err(NOT_SUPPORTED) => put(data.at(at)?, AttributeValue::Narrow(0))?,
            Err(other) => return Err(other),
        }
    }
    Ok(())
}

/// Only `CU_POINTER_ATTRIBUTE_SYNC_MEMOPS` can be set. Copies are always synchronous here, so it has no effect.
fn set(value: In<u32>, attribute: u32, address: u64) -> Outcome {
    value.get()?;
    tables().range_of(address)?;
    if attribute == SYNC_MEMOPS {
        Ok(())
    } else {
        Err(INVALID_VALUE)
    }
}

fn put(data: Out<u8>, value: AttributeValue) -> Outcome {
    match value {
        AttributeValue::Narrow(value) => data.cast::<u32>().put(value),
        AttributeValue::Wide(value) => data.cast::<u64>().put(value),
    }
}

fn value(
    attribute: u32,
    address: u64,
    base: u64,
    range: &MemoryRange,
) -> Result<AttributeValue, CudaError> {
    let is_host = matches!(
        range.kind,
        MemoryKind::Host { .. } | MemoryKind::Registered { .. }
    );
    let is_managed = matches!(range.kind, MemoryKind::Managed { .. });
    let is_mapped = matches!(range.kind, MemoryKind::Mapped { .. });
    Ok(match attribute {
        CONTEXT => AttributeValue::Wide(range.context),
        MEMORY_TYPE => AttributeValue::Narrow(if is_host { HOST_MEMORY } else { DEVICE_MEMORY }),
        DEVICE_POINTER => AttributeValue::Wide(address),
        HOST_POINTER if is_host || is_managed => AttributeValue::Wide(address),
        HOST_POINTER => return Err(INVALID_VALUE),
        P2P_TOKENS => return Err(NOT_SUPPORTED),
        SYNC_MEMOPS => AttributeValue::Narrow(1),
        BUFFER_ID | BLOCK_ID => AttributeValue::Wide(range.serial),
        IS_MANAGED => AttributeValue::Narrow(u32::from(is_managed)),
        DEVICE_ORDINAL => AttributeValue::Narrow(range.device.cast_unsigned()),
        IS_IPC_CAPABLE | IS_RDMA_CAPABLE | IS_DECOMPRESS_CAPABLE => AttributeValue::Narrow(0),
        RANGE_START | MAPPING_BASE => AttributeValue::Wide(base),
        RANGE_SIZE | MAPPING_SIZE => AttributeValue::Wide(range.bytes),
        MAPPED => AttributeValue::Narrow(1),
        ALLOWED_HANDLES => AttributeValue::Wide(u64::from(is_mapped)),
        ACCESS_FLAGS => AttributeValue::Wide(3),
        POOL => AttributeValue::Wide(pool(range)),
        _ => return Err(INVALID_VALUE),
    })
}

fn pool(range: &MemoryRange) -> u64 {
    if let MemoryKind::Pooled { pool, .. } = range.kind {
        pool
    } else {
        0
    }
}

fn value_of_unknown(attribute: u32) -> Result<AttributeValue, CudaError> {
    Ok(match attribute {
        CONTEXT | DEVICE_POINTER | HOST_POINTER | BUFFER_ID | RANGE_START | RANGE_SIZE => {
            AttributeValue::Wide(0)
        }
        POOL | MAPPING_SIZE | MAPPING_BASE | BLOCK_ID | ALLOWED_HANDLES | ACCESS_FLAGS => {
            AttributeValue::Wide(0)
        }
        DEVICE_ORDINAL => AttributeValue::Narrow(NO_DEVICE.cast_unsigned()),
        MEMORY_TYPE | SYNC_MEMOPS | IS_MANAGED | IS_IPC_CAPABLE | MAPPED | IS_RDMA_CAPABLE => {
            AttributeValue::Narrow(0)
        }
        P2P_TOKENS | IS_DECOMPRESS_CAPABLE => AttributeValue::Narrow(0),
        _ => return Err(INVALID_VALUE),
    })
}

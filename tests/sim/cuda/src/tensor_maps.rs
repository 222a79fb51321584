//! Tensor maps, by which kernels read tensors in tiles. No kernel runs here, so a map is checked as the Driver API
//! documents it (section "Tensor Map Object Management"), and holds what it was made of in a form of its own.

use crate::error::{Error, INVALID_VALUE, Outcome};
use crate::export::exports;
use crate::pointer::{In, Out};

/// `CUtensorMap`: opaque, 128 bytes that begin at a multiple of 64.
type Map = [u64; 16];
const ALIGNMENT: u64 = 64;
/// Where in a map the tensor's address is.
const ADDRESS: usize = 0;
/// What a tensor's address and its strides are multiples of.
const GRAIN: u64 = 16;
const RANKS: std::ops::RangeInclusive<u32> = 1..=5;
const MAX_DIMENSION: u64 = 1 << 32;
const MAX_STRIDE: u64 = 1 << 40;
const MAX_BOX: u32 = 256;
const MAX_ELEMENT_STRIDE: u32 = 8;

exports! {
    cuTensorMapEncodeTiled(map: Out<Map>, kind: i32, rank: u32, address: u64, dimensions: In<u64>, strides: In<u64>, sides: In<u32>, steps: In<u32>, interleave: i32, swizzle: i32, promotion: i32, fill: i32) = tiled => "cuTensorMapEncodeTiled" @ 12000;
    cuTensorMapReplaceAddress(map: Out<Map>, address: u64) = replace_address => "cuTensorMapReplaceAddress" @ 12000;
}

#[expect(clippy::too_many_arguments, reason = "the C function has them")]
fn tiled(
    map: Out<Map>,
    kind: i32,
    rank: u32,
    address: u64,
    dimensions: In<u64>,
    strides: In<u64>,
    sides: In<u32>,
    steps: In<u32>,
    interleave: i32,
    swizzle: i32,
    _promotion: i32,
    _fill: i32,
) -> Outcome {
    check_place(map)?;
    allow(RANKS.contains(&rank) && (interleave == 0 || rank >= 3))?;
    allow(address.is_multiple_of(GRAIN) && kind >= 0)?;
    let mut made: Map = [0; 16];
    made[ADDRESS] = address;
    made[1] = u64::from(rank) | u64::from(kind.unsigned_abs()) << 32;
    made[2] = u64::from(interleave.unsigned_abs()) | u64::from(swizzle.unsigned_abs()) << 32;
    for axis in 0..rank as usize {
        let dimension = dimensions.at(axis)?;
        allow(dimension > 0 && dimension <= MAX_DIMENSION)?;
        allow((1..=MAX_BOX).contains(&sides.at(axis)?))?;
        allow((1..=MAX_ELEMENT_STRIDE).contains(&steps.at(axis)?))?;
        made[3 + axis] = dimension;
    }
    // The innermost dimension has no stride of its own.
    for axis in 1..rank as usize {
        let stride = strides.at(axis - 1)?;
        allow(stride.is_multiple_of(GRAIN) && stride < MAX_STRIDE)?;
        made[8 + axis] = stride;
    }
    map.put(made)
}

fn replace_address(map: Out<Map>, address: u64) -> Outcome {
    check_place(map)?;
    allow(address.is_multiple_of(GRAIN))?;
    let mut made = map.read()?;
    made[ADDRESS] = address;
    map.put(made)
}

fn check_place(map: Out<Map>) -> Outcome {
    map.check()?;
    allow(map.address().is_multiple_of(ALIGNMENT))
}

fn allow(is_valid: bool) -> Result<(), Error> {
    if is_valid { Ok(()) } else { Err(INVALID_VALUE) }
}

//! Tensor maps, by which kernels read tensors in tiles. No kernel runs here, so a map is checked as the Driver API
//! documents it (section "Tensor Map Object Management") and stored in a private format.

use crate::error::{CudaError, INVALID_VALUE, Outcome};
use crate::export::exports;
use crate::pointer::{In, Out};

/// `CUtensorMap`: opaque, 128 bytes, aligned to 64.
type Map = [u64; 16];
const ALIGNMENT: u64 = 64;
/// The index of the tensor's address in a map.
const ADDRESS: usize = 0;
/// The alignment of a tensor's address and strides.
const GRAIN: u64 = 16;
const RANKS: std::ops::RangeInclusive<u32> = 1..=5;
const MAX_DIMENSION: u64 = 1 << 32;
const MAX_STRIDE: u64 = 1 << 40;
const MAX_BOX: u32 = 256;
const MAX_ELEMENT_STRIDE: u32 = 8;

/// The limits of im2col maps: three dimensions or more, and the most channels and pixels.
const COLUMN_RANKS: std::ops::RangeInclusive<u32> = 3..=5;
const MAX_CHANNELS: u32 = 256;
const MAX_PIXELS: u32 = 1024;

exports! {
    cuTensorMapEncodeTiled(map: Out<Map>, kind: i32, rank: u32, address: u64, dimensions: In<u64>, strides: In<u64>, sides: In<u32>, steps: In<u32>, interleave: i32, swizzle: i32, promotion: i32, fill: i32) = tiled => "cuTensorMapEncodeTiled" @ 12000;
    cuTensorMapEncodeIm2col(map: Out<Map>, kind: i32, rank: u32, address: u64, dimensions: In<u64>, strides: In<u64>, lower: In<i32>, upper: In<i32>, channels: u32, pixels: u32, steps: In<u32>, interleave: i32, swizzle: i32, promotion: i32, fill: i32) = columns => "cuTensorMapEncodeIm2col" @ 12000;
    cuTensorMapEncodeIm2colWide(map: Out<Map>, kind: i32, rank: u32, address: u64, dimensions: In<u64>, strides: In<u64>, lower: i32, upper: i32, channels: u32, pixels: u32, steps: In<u32>, interleave: i32, mode: i32, swizzle: i32, promotion: i32, fill: i32) = wide_columns => "cuTensorMapEncodeIm2colWide" @ 12080;
    cuTensorMapReplaceAddress(map: Out<Map>, address: u64) = replace_address => "cuTensorMapReplaceAddress" @ 12000;
}

/// The parameters that all kinds of maps share.
struct TensorMapParams {
    kind: i32,
    rank: u32,
    address: u64,
    dimensions: In<u64>,
    strides: In<u64>,
    steps: In<u32>,
    interleave: i32,
    swizzle: i32,
}

impl TensorMapParams {
    fn encoded(&self) -> Result<Map, CudaError> {
        let (kind, rank, interleave) = (self.kind, self.rank, self.interleave);
        allow(RANKS.contains(&rank) && (interleave == 0 || rank >= 3))?;
        allow(self.address.is_multiple_of(GRAIN) && kind >= 0)?;
        let mut made: Map = [0; 16];
        made[ADDRESS] = self.address;
        made[1] = u64::from(rank) | u64::from(kind.unsigned_abs()) << 32;
        let swizzle = u64::from(self.swizzle.unsigned_abs());
        made[2] = u64::from(interleave.unsigned_abs()) | swizzle << 32;
        for axis in 0..rank as usize {
            let dimension = self.dimensions.at(axis)?;
            allow(dimension > 0 && dimension <= MAX_DIMENSION)?;
            allow((1..=MAX_ELEMENT_STRIDE).contains(&self.steps.at(axis)?))?;
            made[3 + axis] = dimension;
        }
        // The innermost dimension has no stride of its own.
        for axis in 1..rank as usize {
            let stride = self.strides.at(axis - 1)?;
            allow(stride.is_multiple_of(GRAIN) && stride < MAX_STRIDE)?;
            made[8 + axis] = stride;
        }
        Ok(made)
    }

    /// An im2col map. Its corners are given for all dimensions but the first and the last.
    fn columns(&self, corners: &[i32], channels: u32, pixels: u32) -> Result<Map, CudaError> {
        allow(COLUMN_RANKS.contains(&self.rank))?;
        allow(channels <= MAX_CHANNELS && pixels <= MAX_PIXELS)?;
        let reach: i32 = match self.rank {
            3 => 1 << 15,
            4 => 1 << 7,
            _ => 1 << 4,
        };
        let mut corners = corners.iter();
        allow(corners.all(|corner| (-reach..reach).contains(corner)))?;
        self.encoded()
    }
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
    let tensor = TensorMapParams {
        kind,
        rank,
        address,
        dimensions,
        strides,
        steps,
        interleave,
        swizzle,
    };
    let made = tensor.encoded()?;
    for axis in 0..rank as usize {
        allow((1..=MAX_BOX).contains(&sides.at(axis)?))?;
    }
    map.put(made)
}

#[expect(clippy::too_many_arguments, reason = "the C function has them")]
fn columns(
    map: Out<Map>,
    kind: i32,
    rank: u32,
    address: u64,
    dimensions: In<u64>,
    strides: In<u64>,
    lower: In<i32>,
    upper: In<i32>,
    channels: u32,
    pixels: u32,
    steps: In<u32>,
    interleave: i32,
    swizzle: i32,
    _promotion: i32,
    _fill: i32,
) -> Outcome {
    check_place(map)?;
    allow(COLUMN_RANKS.contains(&rank))?;
    let axes = rank as usize - 2;
    let corners = (0..axes).flat_map(|axis| [lower.at(axis), upper.at(axis)]);
    let corners: Vec<i32> = corners.collect::<Result<_, CudaError>>()?;
    let tensor = TensorMapParams {
        kind,
        rank,
        address,
        dimensions,
        strides,
        steps,
        interleave,
        swizzle,
    };
    map.put(tensor.columns(&corners, channels, pixels)?)
}

#[expect(clippy::too_many_arguments, reason = "the C function has them")]
fn wide_columns(
    map: Out<Map>,
    kind: i32,
    rank: u32,
    address: u64,
    dimensions: In<u64>,
    strides: In<u64>,
    lower: i32,
    upper: i32,
    channels: u32,
    pixels: u32,
    steps: In<u32>,
    interleave: i32,
    _mode: i32,
    swizzle: i32,
    _promotion: i32,
    _fill: i32,
) -> Outcome {
    check_place(map)?;
    let tensor = TensorMapParams {
        kind,
        rank,
        address,
        dimensions,
        strides,
        steps,
        interleave,
        swizzle,
    };
    map.put(tensor.columns(&[lower, upper], channels, pixels)?)
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

fn allow(is_valid: bool) -> Result<(), CudaError> {
    if is_valid { Ok(()) } else { Err(INVALID_VALUE) }
}

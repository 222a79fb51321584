//! Filling device memory. The second dimension and the first API differ in numbers only.

use crate::captured_work::{FILL, on_stream};
use crate::driver::tables;
use crate::error::{Error, INVALID_VALUE, Outcome};
use crate::export::exports;
use crate::mapping;
use crate::number::Number;

exports! {
    cuMemsetD8(address: u32, value: u8, count: u32) = fill => "cuMemsetD8" @ 2000;
    cuMemsetD8_v2(address: u64, value: u8, count: usize) = fill => "cuMemsetD8" @ 3020 | cuMemsetD8_v2_ptds @ 7000;
    cuMemsetD8Async(address: u64, value: u8, count: usize, stream: u64) = fill_async => "cuMemsetD8Async" @ 3020 | cuMemsetD8Async_ptsz @ 7000;
    cuMemsetD16(address: u32, value: u16, count: u32) = fill => "cuMemsetD16" @ 2000;
    cuMemsetD16_v2(address: u64, value: u16, count: usize) = fill => "cuMemsetD16" @ 3020 | cuMemsetD16_v2_ptds @ 7000;
    cuMemsetD16Async(address: u64, value: u16, count: usize, stream: u64) = fill_async => "cuMemsetD16Async" @ 3020 | cuMemsetD16Async_ptsz @ 7000;
    cuMemsetD32(address: u32, value: u32, count: u32) = fill => "cuMemsetD32" @ 2000;
    cuMemsetD32_v2(address: u64, value: u32, count: usize) = fill => "cuMemsetD32" @ 3020 | cuMemsetD32_v2_ptds @ 7000;
    cuMemsetD32Async(address: u64, value: u32, count: usize, stream: u64) = fill_async => "cuMemsetD32Async" @ 3020 | cuMemsetD32Async_ptsz @ 7000;
    cuMemsetD2D8(address: u32, pitch: u32, value: u8, width: u32, height: u32) = fill_rows => "cuMemsetD2D8" @ 2000;
    cuMemsetD2D8_v2(address: u64, pitch: usize, value: u8, width: usize, height: usize) = fill_rows => "cuMemsetD2D8" @ 3020 | cuMemsetD2D8_v2_ptds @ 7000;
    cuMemsetD2D8Async(address: u64, pitch: usize, value: u8, width: usize, height: usize, stream: u64) = fill_rows_async => "cuMemsetD2D8Async" @ 3020 | cuMemsetD2D8Async_ptsz @ 7000;
    cuMemsetD2D16(address: u32, pitch: u32, value: u16, width: u32, height: u32) = fill_rows => "cuMemsetD2D16" @ 2000;
    cuMemsetD2D16_v2(address: u64, pitch: usize, value: u16, width: usize, height: usize) = fill_rows => "cuMemsetD2D16" @ 3020 | cuMemsetD2D16_v2_ptds @ 7000;
    cuMemsetD2D16Async(address: u64, pitch: usize, value: u16, width: usize, height: usize, stream: u64) = fill_rows_async => "cuMemsetD2D16Async" @ 3020 | cuMemsetD2D16Async_ptsz @ 7000;
    cuMemsetD2D32(address: u32, pitch: u32, value: u32, width: u32, height: u32) = fill_rows => "cuMemsetD2D32" @ 2000;
    cuMemsetD2D32_v2(address: u64, pitch: usize, value: u32, width: usize, height: usize) = fill_rows => "cuMemsetD2D32" @ 3020 | cuMemsetD2D32_v2_ptds @ 7000;
    cuMemsetD2D32Async(address: u64, pitch: usize, value: u32, width: usize, height: usize, stream: u64) = fill_rows_async => "cuMemsetD2D32Async" @ 3020 | cuMemsetD2D32Async_ptsz @ 7000;
}

/// A value that memory is filled with.
trait Pattern: Copy + Send + Sync + 'static {
    fn bytes(&self) -> Vec<u8>;
}

impl Pattern for u8 {
    fn bytes(&self) -> Vec<u8> {
        vec![*self]
    }
}

impl Pattern for u16 {
    fn bytes(&self) -> Vec<u8> {
        self.to_le_bytes().to_vec()
    }
}

impl Pattern for u32 {
    fn bytes(&self) -> Vec<u8> {
        self.to_le_bytes().to_vec()
    }
}

fn fill(address: impl Number, value: impl Pattern, count: impl Number) -> Outcome {
    fill_rows(address, 0_u64, value, count, 1_u64)
}

fn fill_async(address: u64, value: impl Pattern, count: usize, on: u64) -> Outcome {
    on_stream(on, FILL, move || fill(address, value, count))
}

/// The pitch is in bytes, the width in values. Nothing is filled unless all of it can be.
fn fill_rows(
    address: impl Number,
    pitch: impl Number,
    value: impl Pattern,
    width: impl Number,
    height: impl Number,
) -> Outcome {
    let (address, pitch, height) = (address.number(), pitch.number(), height.number());
    let pattern = value.bytes();
    let step = pattern.len() as u64;
    let row = width.number().checked_mul(step).ok_or(INVALID_VALUE)?;
    if row == 0 || height == 0 {
        return Ok(());
    }
    if !address.is_multiple_of(step) || (height > 1 && pitch < row) {
        return Err(INVALID_VALUE);
    }
    let all = span(pitch, row, height)?;
    if !tables().covers(address, all) {
        return Err(INVALID_VALUE);
    }
    for line in 0..height {
        mapping::fill(address + line * pitch, &pattern, row / step);
    }
    Ok(())
}

fn fill_rows_async(
    address: u64,
    pitch: usize,
    value: impl Pattern,
    width: usize,
    height: usize,
    on: u64,
) -> Outcome {
    on_stream(on, FILL, move || {
        fill_rows(address, pitch, value, width, height)
    })
}

/// From the first byte of the first row to the last of the last.
fn span(pitch: u64, row: u64, height: u64) -> Result<u64, Error> {
    pitch
        .checked_mul(height - 1)
        .and_then(|rows| rows.checked_add(row))
        .ok_or(INVALID_VALUE)
}

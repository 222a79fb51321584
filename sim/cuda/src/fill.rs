//! Filling device memory. The functions differ only in their dimensions and integer widths.

use crate::captured_work::{StreamWork, on_stream};
use crate::driver::tables;
use crate::error::{CudaError, INVALID_VALUE, Outcome};
use crate::export::exports;
use crate::mapping;
use crate::number::ApiInteger;

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

/// `CUDA_MEMSET_NODE_PARAMS`. The pitch is in bytes, the width in values of the element's size.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct MemsetNodeParams {
    address: u64,
    pitch: usize,
    value: u32,
    element: u32,
    width: usize,
    height: usize,
}

impl MemsetNodeParams {
    /// Fails if the parameters cannot be a node's work.
    pub(crate) fn checked(self) -> Result<Self, CudaError> {
        if self.width > 0 && self.height > 0 && [1, 2, 4].contains(&self.element) {
            Ok(self)
        } else {
            Err(INVALID_VALUE)
        }
    }

    /// Fills everything, or nothing if a part of it cannot be filled.
    pub(crate) fn perform(&self) -> Outcome {
        let (address, pitch) = (self.address, self.pitch as u64);
        let (step, height) = (u64::from(self.element), self.height as u64);
        let row = (self.width as u64).checked_mul(step).ok_or(INVALID_VALUE)?;
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
        let value = self.value.to_le_bytes();
        let pattern = value.get(..self.element as usize).ok_or(INVALID_VALUE)?;
        for line in 0..height {
            mapping::fill(address + line * pitch, pattern, row / step);
        }
        Ok(())
    }
}

fn fill(address: impl ApiInteger, value: impl Into<u32>, count: impl ApiInteger) -> Outcome {
    fill_rows(address, 0_u64, value, count, 1_u64)
}

fn fill_async(address: u64, value: impl Into<u32>, count: usize, on: u64) -> Outcome {
    fill_rows_async(address, 0, value, count, 1, on)
}

fn rows<Value: Into<u32>>(
    address: impl ApiInteger,
    pitch: impl ApiInteger,
    value: Value,
    width: impl ApiInteger,
    height: impl ApiInteger,
) -> MemsetNodeParams {
    MemsetNodeParams {
        address: address.number(),
        pitch: pitch.number() as usize,
        value: value.into(),
        element: size_of::<Value>() as u32,
        width: width.number() as usize,
        height: height.number() as usize,
    }
}

fn fill_rows(
    address: impl ApiInteger,
    pitch: impl ApiInteger,
    value: impl Into<u32>,
    width: impl ApiInteger,
    height: impl ApiInteger,
) -> Outcome {
    rows(address, pitch, value, width, height).perform()
}

fn fill_rows_async(
    address: u64,
    pitch: usize,
    value: impl Into<u32>,
    width: usize,
    height: usize,
    on: u64,
) -> Outcome {
    let fill = rows(address, pitch, value, width, height);
    on_stream(on, StreamWork::Fill(fill))
}

/// The bytes from the start of the first row to the end of the last one.
fn span(pitch: u64, row: u64, height: u64) -> Result<u64, CudaError> {
    pitch
        .checked_mul(height - 1)
        .and_then(|rows| rows.checked_add(row))
        .ok_or(INVALID_VALUE)
}

//! The shape of an array: the descriptor that a program passes, and the memory that it needs.

use crate::error::{CudaError, INVALID_VALUE, OUT_OF_MEMORY};

/// `CUDA_ARRAY_DESCRIPTOR`; the first API has 32 bits.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct ArrayDescriptor2D<Size> {
    pub(crate) width: Size,
    pub(crate) height: Size,
    pub(crate) format: u32,
    pub(crate) channels: u32,
}

/// `CUDA_ARRAY3D_DESCRIPTOR`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct ArrayDescriptor3D<Size> {
    pub(crate) width: Size,
    pub(crate) height: Size,
    pub(crate) depth: Size,
    pub(crate) format: u32,
    pub(crate) channels: u32,
    pub(crate) flags: u32,
}

impl Wide3D {
    /// The same image with each side halved `times` times.
    pub(crate) fn halved(self, times: u32) -> Self {
        let half = |side: usize| match side {
            0 => 0,
            side => side.checked_shr(times).unwrap_or(0).max(1),
        };
        Self {
            width: half(self.width),
            height: half(self.height),
            depth: self.depth_at(times),
            ..self
        }
    }

    /// Halves the depth. The number of layers does not change.
    fn depth_at(self, times: u32) -> usize {
        match self.depth {
            0 => 0,
            depth if self.flags & (LAYERED | CUBEMAP) != 0 => depth,
            depth => depth.checked_shr(times).unwrap_or(0).max(1),
        }
    }

    /// The bytes of an element, which has one or more channels.
    pub(crate) fn element_bytes(self) -> Result<u64, CudaError> {
        Ok(channel_bytes(self.format)? * u64::from(self.channels))
    }

    /// Whether the array's memory is mapped tile by tile.
    pub(crate) fn is_sparse(self) -> bool {
        self.flags & SPARSE != 0
    }

    /// Whether the array starts without memory and gets it only by mapping.
    pub(crate) fn is_empty(self) -> bool {
        self.flags & (SPARSE | DEFERRED) != 0
    }

    /// How many levels there are down to a single element.
    pub(crate) fn most_levels(self) -> u32 {
        let layered = self.flags & (LAYERED | CUBEMAP) != 0;
        let depth = if layered { 0 } else { self.depth };
        self.width.max(self.height).max(depth).max(1).ilog2() + 1
    }
}

pub(crate) type Wide = ArrayDescriptor2D<usize>;
pub(crate) type Narrow = ArrayDescriptor2D<u32>;
pub(crate) type Wide3D = ArrayDescriptor3D<usize>;
pub(crate) type Narrow3D = ArrayDescriptor3D<u32>;

/// The memory of arrays is laid out in multiples of this.
pub(crate) const ALIGNMENT: u64 = 64 << 10;
/// `CUDA_ARRAY3D_LAYERED` and `CUDA_ARRAY3D_CUBEMAP`.
const LAYERED: u32 = 1;
const CUBEMAP: u32 = 4;
/// `CUDA_ARRAY3D_SPARSE` and `CUDA_ARRAY3D_DEFERRED_MAPPING`.
const SPARSE: u32 = 0x40;
const DEFERRED: u32 = 0x80;
const FLAGS: u32 = 0x1ff;

/// Bytes of one channel, by `CUarray_format`.
pub(crate) fn channel_bytes(format: u32) -> Result<u64, CudaError> {
    match format {
        0x01 | 0x08 => Ok(1),
        0x02 | 0x09 | 0x10 => Ok(2),
        0x03 | 0x0a | 0x20 => Ok(4),
        _ => Err(INVALID_VALUE),
    }
}

/// The pitch, the rows of a slice, and the total bytes. A size of zero means that the dimension does not exist.
pub(crate) fn measure(descriptor: &Wide3D) -> Result<(u64, u64, u64), CudaError> {
    let is_layered = descriptor.flags & (LAYERED | CUBEMAP) != 0;
    let is_flat = descriptor.height == 0 && descriptor.depth > 0 && !is_layered;
    if descriptor.width == 0 || is_flat || descriptor.flags & !FLAGS != 0 {
        return Err(INVALID_VALUE);
    }
    if ![1, 2, 4].contains(&descriptor.channels) {
        return Err(INVALID_VALUE);
    }
    let element = descriptor.element_bytes()?;
    let pitch = (descriptor.width as u64)
        .checked_mul(element)
        .ok_or(OUT_OF_MEMORY)?;
    let height = descriptor.height.max(1) as u64;
    let bytes = pitch.checked_mul(height).and_then(|slice| {
        slice
            .checked_mul(descriptor.depth.max(1) as u64)?
            .checked_next_multiple_of(ALIGNMENT)
    });
    Ok((pitch, height, bytes.ok_or(OUT_OF_MEMORY)?))
}

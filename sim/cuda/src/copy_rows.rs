//! Copies in two and three dimensions: slices of rows, between host, device and arrays.

use crate::array;
use crate::captured_work::{StreamWork, on_stream};
use crate::driver::tables;
use crate::error::{CudaError, INVALID_VALUE, Outcome};
use crate::export::exports;
use crate::mapping;
use crate::pointer::In;
use crate::stream::stream;

/// One end of `CUDA_MEMCPY2D`. The first API has 32-bit numbers.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct CopyEnd2D<Size, Address> {
    x: Size,
    y: Size,
    kind: u32,
    host: u64,
    device: Address,
    array: u64,
    pitch: Size,
}

/// `CUDA_MEMCPY2D`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Copy2D<Size, Address> {
    from: CopyEnd2D<Size, Address>,
    to: CopyEnd2D<Size, Address>,
    width: Size,
    height: Size,
}

/// One end of `CUDA_MEMCPY3D` and of `CUDA_MEMCPY3D_PEER`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct CopyEnd3D<Size, Address> {
    x: Size,
    y: Size,
    z: Size,
    level: Size,
    kind: u32,
    host: u64,
    device: Address,
    array: u64,
    context: u64,
    pitch: Size,
    height: Size,
}

/// `CUDA_MEMCPY3D` and `CUDA_MEMCPY3D_PEER`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct Copy3D<Size, Address> {
    from: CopyEnd3D<Size, Address>,
    to: CopyEnd3D<Size, Address>,
    width: Size,
    height: Size,
    depth: Size,
}

type Wide2D = Copy2D<usize, u64>;
type Narrow2D = Copy2D<u32, u32>;
pub(crate) type Wide3D = Copy3D<usize, u64>;
pub(crate) type Wide3DEnd = CopyEnd3D<usize, u64>;
type Narrow3D = Copy3D<u32, u32>;

/// `CUmemorytype`.
const HOST: u32 = 1;
const DEVICE: u32 = 2;
const ARRAY: u32 = 3;
const UNIFIED: u32 = 4;

exports! {
    cuMemcpy2D(copy: In<Narrow2D>) = copy_2d_v1 => "cuMemcpy2D" @ 2000;
    cuMemcpy2D_v2(copy: In<Wide2D>) = copy_2d => "cuMemcpy2D" @ 3020 | cuMemcpy2D_v2_ptds @ 7000;
    cuMemcpy2DAsync(copy: In<Narrow2D>, stream: u64) = copy_2d_async_v1 => "cuMemcpy2DAsync" @ 2000;
    cuMemcpy2DAsync_v2(copy: In<Wide2D>, stream: u64) = copy_2d_async => "cuMemcpy2DAsync" @ 3020 | cuMemcpy2DAsync_v2_ptsz @ 7000;
    cuMemcpy2DUnaligned(copy: In<Narrow2D>) = copy_2d_v1 => "cuMemcpy2DUnaligned" @ 2000;
    cuMemcpy2DUnaligned_v2(copy: In<Wide2D>) = copy_2d => "cuMemcpy2DUnaligned" @ 3020 | cuMemcpy2DUnaligned_v2_ptds @ 7000;
    cuMemcpy3D(copy: In<Narrow3D>) = copy_3d_v1 => "cuMemcpy3D" @ 2000;
    cuMemcpy3D_v2(copy: In<Wide3D>) = copy_3d => "cuMemcpy3D" @ 3020 | cuMemcpy3D_v2_ptds @ 7000;
    cuMemcpy3DAsync(copy: In<Narrow3D>, stream: u64) = copy_3d_async_v1 => "cuMemcpy3DAsync" @ 2000;
    cuMemcpy3DAsync_v2(copy: In<Wide3D>, stream: u64) = copy_3d_async => "cuMemcpy3DAsync" @ 3020 | cuMemcpy3DAsync_v2_ptsz @ 7000;
    cuMemcpy3DPeer(copy: In<Wide3D>) = copy_3d => "cuMemcpy3DPeer" @ 4000 | cuMemcpy3DPeer_ptds @ 7000;
    cuMemcpy3DPeerAsync(copy: In<Wide3D>, stream: u64) = copy_3d_async => "cuMemcpy3DPeerAsync" @ 4000 | cuMemcpy3DPeerAsync_ptsz @ 7000;
}

/// The address of an end that is not an array.
#[derive(Clone, Copy)]
pub(crate) enum CopyAddress {
    Host(u64),
    Device(u64),
    /// Host or device memory, whichever the address belongs to.
    Any(u64),
}

/// One end, in 64-bit numbers that both dimensions and both APIs share.
struct CopyEnd {
    address: u64,
    pitch: u64,
    slice: u64,
    is_device: bool,
}

impl CopyEnd {
    /// The address of a row.
    fn row(&self, line: u64, slice: u64) -> Option<u64> {
        let offset = self
            .pitch
            .checked_mul(line)?
            .checked_add(self.slice.checked_mul(slice)?)?;
        self.address.checked_add(offset)
    }
}

impl Wide2D {
    /// The same as a copy of one slice.
    fn widened(self) -> Wide3D {
        let end = |end: CopyEnd2D<usize, u64>| CopyEnd3D {
            x: end.x,
            y: end.y,
            z: 0,
            level: 0,
            kind: end.kind,
            host: end.host,
            device: end.device,
            array: end.array,
            context: 0,
            pitch: end.pitch,
            height: self.height.saturating_add(end.y),
        };
        Copy3D {
            from: end(self.from),
            to: end(self.to),
            width: self.width,
            height: self.height,
            depth: 1,
        }
    }
}

impl CopyAddress {
    /// An end at its first byte, with `pitch` bytes a row and `height` rows a slice. Zero means that of the copy.
    pub(crate) fn rows(self, pitch: usize, height: usize) -> Wide3DEnd {
        let (kind, host, device) = match self {
            Self::Host(address) => (HOST, address, 0),
            Self::Device(address) => (DEVICE, 0, address),
            Self::Any(address) => (UNIFIED, 0, address),
        };
        CopyEnd3D {
            x: 0,
            y: 0,
            z: 0,
            level: 0,
            kind,
            host,
            device,
            array: 0,
            context: 0,
            pitch,
            height,
        }
    }
}

impl Wide3DEnd {
    /// An array as an end, starting at an element. The column is in bytes.
    pub(crate) fn of_array(array: u64, [x, y, z]: [usize; 3]) -> Self {
        Self {
            x,
            y,
            z,
            kind: ARRAY,
            array,
            ..CopyAddress::Host(0).rows(0, 0)
        }
    }
}

impl Wide3D {
    /// A run of bytes.
    pub(crate) fn of_bytes(to: CopyAddress, from: CopyAddress, bytes: usize) -> Self {
        Self::of_rows(to.rows(0, 0), from.rows(0, 0), [bytes, 1, 1])
    }

    /// Slices of rows. The width is in bytes.
    pub(crate) fn of_rows(
        to: Wide3DEnd,
        from: Wide3DEnd,
        [width, height, depth]: [usize; 3],
    ) -> Self {
        Self {
            from,
            to,
            width,
            height,
            depth,
        }
    }
}

fn copy_2d(copy: In<Wide2D>) -> Outcome {
    perform(&copy.get()?.widened())
}

fn copy_2d_v1(copy: In<Narrow2D>) -> Outcome {
    let copy = copy.get()?;
    let end = |end: CopyEnd2D<u32, u32>| CopyEnd2D {
        x: end.x as usize,
        y: end.y as usize,
        kind: end.kind,
        host: end.host,
        device: u64::from(end.device),
        array: end.array,
        pitch: end.pitch as usize,
    };
    let wide = Copy2D {
        from: end(copy.from),
        to: end(copy.to),
        width: copy.width as usize,
        height: copy.height as usize,
    };
    copy_2d(In::to(&wide))
}

fn copy_2d_async(copy: In<Wide2D>, on: u64) -> Outcome {
    on_stream(on, StreamWork::Copy(copy.get()?.widened()))
}

fn copy_2d_async_v1(copy: In<Narrow2D>, on: u64) -> Outcome {
    stream(on)?;
    copy_2d_v1(copy)
}

fn copy_3d(copy: In<Wide3D>) -> Outcome {
    perform(&copy.get()?)
}

fn copy_3d_v1(copy: In<Narrow3D>) -> Outcome {
    let copy = copy.get()?;
    let end = |end: CopyEnd3D<u32, u32>| CopyEnd3D {
        x: end.x as usize,
        y: end.y as usize,
        z: end.z as usize,
        level: end.level as usize,
        kind: end.kind,
        host: end.host,
        device: u64::from(end.device),
        array: end.array,
        context: end.context,
        pitch: end.pitch as usize,
        height: end.height as usize,
    };
    perform(&Copy3D {
        from: end(copy.from),
        to: end(copy.to),
        width: copy.width as usize,
        height: copy.height as usize,
        depth: copy.depth as usize,
    })
}

fn copy_3d_async(copy: In<Wide3D>, on: u64) -> Outcome {
    on_stream(on, StreamWork::Copy(copy.get()?))
}

fn copy_3d_async_v1(copy: In<Narrow3D>, on: u64) -> Outcome {
    stream(on)?;
    copy_3d_v1(copy)
}

/// Checks both ends and then moves row by row.
pub(crate) fn perform(copy: &Wide3D) -> Outcome {
    let (width, height, depth) = (copy.width as u64, copy.height as u64, copy.depth as u64);
    if width == 0 || height == 0 || depth == 0 {
        return Ok(());
    }
    let (from, to) = (end(&copy.from, width)?, end(&copy.to, width)?);
    for end in [&from, &to] {
        let last = end.row(height - 1, depth - 1).ok_or(INVALID_VALUE)?;
        let bytes = (last - end.address)
            .checked_add(width)
            .ok_or(INVALID_VALUE)?;
        let tables = tables();
        let is_there = if end.is_device {
            tables.covers(end.address, bytes)
        } else {
            tables.may_touch(end.address, bytes)
        };
        if !is_there {
            return Err(INVALID_VALUE);
        }
    }
    for slice in 0..depth {
        for line in 0..height {
            let (Some(to), Some(from)) = (to.row(line, slice), from.row(line, slice)) else {
                return Err(INVALID_VALUE);
            };
            mapping::copy(to, from, width);
        }
    }
    Ok(())
}

/// A pitch of zero means rows without gaps; an array has its own.
fn end(end: &CopyEnd3D<usize, u64>, width: u64) -> Result<CopyEnd, CudaError> {
    let (base, pitch, rows, is_device) = match end.kind {
        HOST => (end.host, end.pitch as u64, end.height as u64, false),
        DEVICE => (end.device, end.pitch as u64, end.height as u64, true),
        UNIFIED => (end.device, end.pitch as u64, end.height as u64, false),
        ARRAY => {
            let layout = array::layout(end.array)?;
            (layout.address, layout.pitch, layout.height, true)
        }
        _ => return Err(INVALID_VALUE),
    };
    let pitch = if pitch == 0 { width } else { pitch };
    let x = end.x as u64;
    if base == 0 || x.checked_add(width).is_none_or(|row| row > pitch) {
        return Err(INVALID_VALUE);
    }
    let slice = pitch.checked_mul(rows).ok_or(INVALID_VALUE)?;
    let bare = CopyEnd {
        address: base,
        pitch,
        slice,
        is_device,
    };
    let address = bare
        .row(end.y as u64, end.z as u64)
        .and_then(|row| row.checked_add(x));
    Ok(CopyEnd {
        address: address.ok_or(INVALID_VALUE)?,
        ..bare
    })
}

//! Batches: many copies, prefetches or discards in one call. Each has a second array of attributes or locations. Every
//! entry of it names the first operation that it applies to.

use crate::array;
use crate::captured_work::{StreamWork, on_stream};
use crate::copy::copy_async;
use crate::copy_rows::{CopyAddress, Wide3D, Wide3DEnd};
use crate::error::{CudaError, INVALID_VALUE, Outcome};
use crate::export::exports;
use crate::location::MemLocation;
use crate::managed;
use crate::pointer::{In, Out};
use crate::stream::{is_legacy, stream};

/// `CUmemcpyAttributes`. The location hints are ignored.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct MemcpyAttributes {
    order: u32,
    hints: [MemLocation; 2],
    flags: u32,
}

/// `CUmemcpy3DOperand`: a pointer with row length, slice height and a location hint, or an array with three offsets.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Memcpy3DOperand {
    kind: u32,
    handle: u64,
    numbers: [usize; 3],
}

/// `CUDA_MEMCPY3D_BATCH_OP`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Memcpy3DBatchOp {
    from: Memcpy3DOperand,
    to: Memcpy3DOperand,
    extent: [usize; 3],
    order: u32,
    flags: u32,
}

const _: () = assert!(size_of::<MemcpyAttributes>() == 24 && size_of::<Memcpy3DBatchOp>() == 112);

/// `CU_MEMCPY_OPERAND_TYPE_POINTER` and `_ARRAY`.
const POINTER: u32 = 1;
const ARRAY: u32 = 2;
/// `CU_MEMCPY_SRC_ACCESS_ORDER_STREAM`, `_DURING_API_CALL` and `_ANY`.
const ORDERS: [u32; 3] = [1, 2, 3];
/// `CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE`.
const LAST_FLAG: u32 = 1;
/// The failed index that is reported if the failure belongs to no operation.
const NONE: usize = usize::MAX;

exports! {
    cuMemcpyBatchAsync(to: In<u64>, from: In<u64>, sizes: In<usize>, count: usize, attributes: In<MemcpyAttributes>, starts: In<usize>, kinds: usize, failed: Out<usize>, stream: u64) = copy_v1 => "cuMemcpyBatchAsync" @ 12080 | cuMemcpyBatchAsync_ptsz @ 12080;
    cuMemcpyBatchAsync_v2(to: In<u64>, from: In<u64>, sizes: In<usize>, count: usize, attributes: In<MemcpyAttributes>, starts: In<usize>, kinds: usize, stream: u64) = copy => "cuMemcpyBatchAsync" @ 13000 | cuMemcpyBatchAsync_v2_ptsz @ 13000;
    cuMemcpy3DBatchAsync(count: usize, copies: In<Memcpy3DBatchOp>, failed: Out<usize>, flags: u64, stream: u64) = copy_3d_v1 => "cuMemcpy3DBatchAsync" @ 12080 | cuMemcpy3DBatchAsync_ptsz @ 12080;
    cuMemcpy3DBatchAsync_v2(count: usize, copies: In<Memcpy3DBatchOp>, flags: u64, stream: u64) = copy_3d => "cuMemcpy3DBatchAsync" @ 13000 | cuMemcpy3DBatchAsync_v2_ptsz @ 13000;
    cuMemcpyWithAttributesAsync(to: u64, from: u64, bytes: usize, attributes: In<MemcpyAttributes>, stream: u64) = copy_one => "cuMemcpyWithAttributesAsync" @ 13020 | cuMemcpyWithAttributesAsync_ptsz @ 13020;
    cuMemcpy3DWithAttributesAsync(copy: In<Memcpy3DBatchOp>, flags: u64, stream: u64) = copy_one_3d => "cuMemcpy3DWithAttributesAsync" @ 13020 | cuMemcpy3DWithAttributesAsync_ptsz @ 13020;
    cuMemPrefetchBatchAsync(addresses: In<u64>, sizes: In<usize>, count: usize, places: In<MemLocation>, starts: In<usize>, kinds: usize, flags: u64, stream: u64) = prefetch => "cuMemPrefetchBatchAsync" @ 13000 | cuMemPrefetchBatchAsync_ptsz @ 13000;
    cuMemDiscardBatchAsync(addresses: In<u64>, sizes: In<usize>, count: usize, flags: u64, stream: u64) = discard => "cuMemDiscardBatchAsync" @ 13000 | cuMemDiscardBatchAsync_ptsz @ 13000;
    cuMemDiscardAndPrefetchBatchAsync(addresses: In<u64>, sizes: In<usize>, count: usize, places: In<MemLocation>, starts: In<usize>, kinds: usize, flags: u64, stream: u64) = prefetch => "cuMemDiscardAndPrefetchBatchAsync" @ 13000 | cuMemDiscardAndPrefetchBatchAsync_ptsz @ 13000;
}

/// Batches do not accept the null stream.
fn check_stream(on: u64) -> Outcome {
    stream(on)?;
    if is_legacy(on) {
        Err(INVALID_VALUE)
    } else {
        Ok(())
    }
}

/// The entry for each operation. The first entry must start at operation 0 and each next one at a later operation.
fn entries(starts: In<usize>, kinds: usize, count: usize) -> Result<Vec<usize>, CudaError> {
    let starts: Result<Vec<usize>, CudaError> = (0..kinds).map(|at| starts.at(at)).collect();
    chosen(&starts?, count).ok_or(INVALID_VALUE)
}

fn chosen(starts: &[usize], count: usize) -> Option<Vec<usize>> {
    let is_valid = starts.first() == Some(&0)
        && starts.is_sorted_by(|one, next| one < next)
        && starts.last().is_some_and(|last| *last < count);
    is_valid.then(|| {
        (0..count)
            .map(|at| starts.partition_point(|start| *start <= at) - 1)
            .collect()
    })
}

fn check(order: u32, flags: u32) -> Outcome {
    if ORDERS.contains(&order) && flags <= LAST_FLAG {
        Ok(())
    } else {
        Err(INVALID_VALUE)
    }
}

#[expect(clippy::too_many_arguments, reason = "the driver's own signature")]
fn copy_v1(
    to: In<u64>,
    from: In<u64>,
    sizes: In<usize>,
    count: usize,
    attributes: In<MemcpyAttributes>,
    starts: In<usize>,
    kinds: usize,
    failed: Out<usize>,
    on: u64,
) -> Outcome {
    failed.offer(NONE);
    check_stream(on)?;
    for (at, entry) in entries(starts, kinds, count)?.into_iter().enumerate() {
        let one = || {
            let attributes = attributes.at(entry)?;
            check(attributes.order, attributes.flags)?;
            let (to, from, bytes) = (to.at(at)?, from.at(at)?, sizes.at(at)?);
            match bytes {
                0 => Err(INVALID_VALUE),
                bytes => copy_async(to, from, bytes, on),
            }
        };
        one().inspect_err(|_| failed.offer(at))?;
    }
    Ok(())
}

#[expect(clippy::too_many_arguments, reason = "the driver's own signature")]
fn copy(
    to: In<u64>,
    from: In<u64>,
    sizes: In<usize>,
    count: usize,
    attributes: In<MemcpyAttributes>,
    starts: In<usize>,
    kinds: usize,
    on: u64,
) -> Outcome {
    let failed = Out::null();
    copy_v1(
        to, from, sizes, count, attributes, starts, kinds, failed, on,
    )
}

fn copy_one(
    to: u64,
    from: u64,
    bytes: usize,
    attributes: In<MemcpyAttributes>,
    on: u64,
) -> Outcome {
    let attributes = attributes.get()?;
    check(attributes.order, attributes.flags)?;
    copy_async(to, from, bytes, on)
}

impl Memcpy3DOperand {
    /// The bytes of an element. Only an array knows them.
    fn element(&self) -> Result<Option<usize>, CudaError> {
        match self.kind {
            POINTER => Ok(None),
            ARRAY => array::element_bytes(self.handle).map(Some),
            _ => Err(INVALID_VALUE),
        }
    }

    /// Row lengths and slice heights are in elements; zero means that of the copy.
    fn end(&self, element: usize, [width, height, _]: [usize; 3]) -> Result<Wide3DEnd, CudaError> {
        let [x, y, z] = self.numbers;
        if self.kind == ARRAY {
            let column = x.checked_mul(element).ok_or(INVALID_VALUE)?;
            return Ok(Wide3DEnd::of_array(self.handle, [column, y, z]));
        }
        let or_own = |given: usize, own: usize| match given {
            0 => Ok(own),
            given if given >= own => Ok(given),
            _ => Err(INVALID_VALUE),
        };
        let (row, slice) = (or_own(x, width)?, or_own(y, height)?);
        let pitch = row.checked_mul(element).ok_or(INVALID_VALUE)?;
        Ok(CopyAddress::Any(self.handle).rows(pitch, slice))
    }
}

impl Memcpy3DBatchOp {
    fn work(&self) -> Result<StreamWork, CudaError> {
        check(self.order, self.flags)?;
        if self.extent.contains(&0) {
            return Err(INVALID_VALUE);
        }
        let element = match (self.from.element()?, self.to.element()?) {
            (Some(one), Some(other)) if one != other => return Err(INVALID_VALUE),
            (one, other) => one.or(other).unwrap_or(1),
        };
        let [width, height, depth] = self.extent;
        let bytes = width.checked_mul(element).ok_or(INVALID_VALUE)?;
        let to = self.to.end(element, self.extent)?;
        let from = self.from.end(element, self.extent)?;
        let rows = Wide3D::of_rows(to, from, [bytes, height, depth]);
        Ok(StreamWork::Copy(rows))
    }
}

fn copy_3d_v1(
    count: usize,
    copies: In<Memcpy3DBatchOp>,
    failed: Out<usize>,
    flags: u64,
    on: u64,
) -> Outcome {
    failed.offer(NONE);
    check_stream(on)?;
    if count == 0 {
        return Err(INVALID_VALUE);
    }
    for at in 0..count {
        copies
            .at(at)
            .and_then(|copy| copy_one_3d_of(copy, flags, on))
            .inspect_err(|_| failed.offer(at))?;
    }
    Ok(())
}

fn copy_3d(count: usize, copies: In<Memcpy3DBatchOp>, flags: u64, on: u64) -> Outcome {
    copy_3d_v1(count, copies, Out::null(), flags, on)
}

fn copy_one_3d_of(copy: Memcpy3DBatchOp, flags: u64, on: u64) -> Outcome {
    match flags {
        0 => on_stream(on, copy.work()?),
        _ => Err(INVALID_VALUE),
    }
}

fn copy_one_3d(copy: In<Memcpy3DBatchOp>, flags: u64, on: u64) -> Outcome {
    copy_one_3d_of(copy.get()?, flags, on)
}

#[expect(clippy::too_many_arguments, reason = "the driver's own signature")]
fn prefetch(
    addresses: In<u64>,
    sizes: In<usize>,
    count: usize,
    places: In<MemLocation>,
    starts: In<usize>,
    kinds: usize,
    flags: u64,
    on: u64,
) -> Outcome {
    check_stream(on)?;
    let flags = u32::try_from(flags).map_err(|_| INVALID_VALUE)?;
    let entries = entries(starts, kinds, count)?;
    let mut entries = entries.into_iter().enumerate();
    entries.try_for_each(|(at, entry)| {
        let place = places.at(entry)?;
        managed::prefetch(addresses.at(at)?, sizes.at(at)?, place, flags, on)
    })
}

/// Checks the call only: the contents become undefined, so the simulation leaves them.
fn discard(addresses: In<u64>, sizes: In<usize>, count: usize, flags: u64, on: u64) -> Outcome {
    check_stream(on)?;
    if flags != 0 || count == 0 {
        return Err(INVALID_VALUE);
    }
    (0..count).try_for_each(|at| managed::check(addresses.at(at)?, sizes.at(at)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_holds_from_its_start_to_that_of_the_next() {
        assert_eq!(chosen(&[0], 2), Some(vec![0, 0]));
        assert_eq!(chosen(&[0, 2, 3], 5), Some(vec![0, 0, 1, 2, 2]));
        for (starts, count) in [
            (&[][..], 1),
            (&[1], 2),
            (&[0, 0], 2),
            (&[0, 2], 2),
            (&[0], 0),
        ] {
            assert_eq!(chosen(starts, count), None, "{starts:?} of {count}");
        }
    }
}

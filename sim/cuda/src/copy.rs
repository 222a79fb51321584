//! Copies in one dimension. Device memory is memory of the process, so every copy moves bytes between two addresses.
//! The functions differ in which of the two the driver must know.

use crate::array;
use crate::captured_work::{StreamWork, on_stream};
use crate::copy_rows::{CopyAddress, Wide3D};
use crate::driver::tables;
use crate::error::{INVALID_VALUE, Outcome};
use crate::export::exports;
use crate::mapping;
use crate::number::ApiInteger;
use crate::stream::stream;

exports! {
    cuMemcpy(to: u64, from: u64, bytes: usize) = copy => "cuMemcpy" @ 4000 | cuMemcpy_ptds @ 7000;
    cuMemcpyAsync(to: u64, from: u64, bytes: usize, stream: u64) = copy_async => "cuMemcpyAsync" @ 4000 | cuMemcpyAsync_ptsz @ 7000;
    cuMemcpyPeer(to: u64, to_context: u64, from: u64, from_context: u64, bytes: usize) = copy_peer => "cuMemcpyPeer" @ 4000 | cuMemcpyPeer_ptds @ 7000;
    cuMemcpyPeerAsync(to: u64, to_context: u64, from: u64, from_context: u64, bytes: usize, stream: u64) = copy_peer_async => "cuMemcpyPeerAsync" @ 4000 | cuMemcpyPeerAsync_ptsz @ 7000;
    cuMemcpyHtoD(to: u32, from: u64, bytes: u32) = copy_to_device => "cuMemcpyHtoD" @ 2000;
    cuMemcpyHtoD_v2(to: u64, from: u64, bytes: usize) = copy_to_device => "cuMemcpyHtoD" @ 3020 | cuMemcpyHtoD_v2_ptds @ 7000;
    cuMemcpyHtoDAsync(to: u32, from: u64, bytes: u32, stream: u64) = copy_to_device_async => "cuMemcpyHtoDAsync" @ 2000;
    cuMemcpyHtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: u64) = copy_to_device_async => "cuMemcpyHtoDAsync" @ 3020 | cuMemcpyHtoDAsync_v2_ptsz @ 7000;
    cuMemcpyDtoH(to: u64, from: u32, bytes: u32) = copy_to_host => "cuMemcpyDtoH" @ 2000;
    cuMemcpyDtoH_v2(to: u64, from: u64, bytes: usize) = copy_to_host => "cuMemcpyDtoH" @ 3020 | cuMemcpyDtoH_v2_ptds @ 7000;
    cuMemcpyDtoHAsync(to: u64, from: u32, bytes: u32, stream: u64) = copy_to_host_async => "cuMemcpyDtoHAsync" @ 2000;
    cuMemcpyDtoHAsync_v2(to: u64, from: u64, bytes: usize, stream: u64) = copy_to_host_async => "cuMemcpyDtoHAsync" @ 3020 | cuMemcpyDtoHAsync_v2_ptsz @ 7000;
    cuMemcpyDtoD(to: u32, from: u32, bytes: u32) = copy_on_device => "cuMemcpyDtoD" @ 2000;
    cuMemcpyDtoD_v2(to: u64, from: u64, bytes: usize) = copy_on_device => "cuMemcpyDtoD" @ 3020 | cuMemcpyDtoD_v2_ptds @ 7000;
    cuMemcpyDtoDAsync(to: u32, from: u32, bytes: u32, stream: u64) = copy_on_device_async => "cuMemcpyDtoDAsync" @ 3000;
    cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: u64) = copy_on_device_async => "cuMemcpyDtoDAsync" @ 3020 | cuMemcpyDtoDAsync_v2_ptsz @ 7000;
    cuMemcpyAtoA(to: u64, to_offset: u32, from: u64, offset: u32, bytes: u32) = copy_array_to_array => "cuMemcpyAtoA" @ 2000;
    cuMemcpyAtoA_v2(to: u64, to_offset: usize, from: u64, offset: usize, bytes: usize) = copy_array_to_array => "cuMemcpyAtoA" @ 3020 | cuMemcpyAtoA_v2_ptds @ 7000;
    cuMemcpyAtoD(to: u32, from: u64, offset: u32, bytes: u32) = copy_array_to_device => "cuMemcpyAtoD" @ 2000;
    cuMemcpyAtoD_v2(to: u64, from: u64, offset: usize, bytes: usize) = copy_array_to_device => "cuMemcpyAtoD" @ 3020 | cuMemcpyAtoD_v2_ptds @ 7000;
    cuMemcpyDtoA(to: u64, to_offset: u32, from: u32, bytes: u32) = copy_device_to_array => "cuMemcpyDtoA" @ 2000;
    cuMemcpyDtoA_v2(to: u64, to_offset: usize, from: u64, bytes: usize) = copy_device_to_array => "cuMemcpyDtoA" @ 3020 | cuMemcpyDtoA_v2_ptds @ 7000;
    cuMemcpyAtoH(to: u64, from: u64, offset: u32, bytes: u32) = copy_array_to_host => "cuMemcpyAtoH" @ 2000;
    cuMemcpyAtoH_v2(to: u64, from: u64, offset: usize, bytes: usize) = copy_array_to_host => "cuMemcpyAtoH" @ 3020 | cuMemcpyAtoH_v2_ptds @ 7000;
    cuMemcpyAtoHAsync(to: u64, from: u64, offset: u32, bytes: u32, stream: u64) = copy_array_to_host_async => "cuMemcpyAtoHAsync" @ 2000;
    cuMemcpyAtoHAsync_v2(to: u64, from: u64, offset: usize, bytes: usize, stream: u64) = copy_array_to_host_async => "cuMemcpyAtoHAsync" @ 3020 | cuMemcpyAtoHAsync_v2_ptsz @ 7000;
    cuMemcpyHtoA(to: u64, to_offset: u32, from: u64, bytes: u32) = copy_host_to_array => "cuMemcpyHtoA" @ 2000;
    cuMemcpyHtoA_v2(to: u64, to_offset: usize, from: u64, bytes: usize) = copy_host_to_array => "cuMemcpyHtoA" @ 3020 | cuMemcpyHtoA_v2_ptds @ 7000;
    cuMemcpyHtoAAsync(to: u64, to_offset: u32, from: u64, bytes: u32, stream: u64) = copy_host_to_array_async => "cuMemcpyHtoAAsync" @ 2000;
    cuMemcpyHtoAAsync_v2(to: u64, to_offset: usize, from: u64, bytes: usize, stream: u64) = copy_host_to_array_async => "cuMemcpyHtoAAsync" @ 3020 | cuMemcpyHtoAAsync_v2_ptsz @ 7000;
}

/// Between any two addresses.
fn copy(to: u64, from: u64, bytes: usize) -> Outcome {
    let bytes = bytes as u64;
    {
        let tables = tables();
        if !tables.may_touch(to, bytes) || !tables.may_touch(from, bytes) {
            return Err(INVALID_VALUE);
        }
    }
    mapping::copy(to, from, bytes);
    Ok(())
}

fn bytes_on(on: u64, to: CopyAddress, from: CopyAddress, bytes: u64) -> Outcome {
    on_stream(
        on,
        StreamWork::Copy(Wide3D::of_bytes(to, from, bytes as usize)),
    )
}

pub(crate) fn copy_async(to: u64, from: u64, bytes: usize, on: u64) -> Outcome {
    bytes_on(
        on,
        CopyAddress::Any(to),
        CopyAddress::Any(from),
        bytes as u64,
    )
}

fn copy_peer(to: u64, to_context: u64, from: u64, from_context: u64, bytes: usize) -> Outcome {
    check_contexts(to_context, from_context)?;
    copy_on_device(to, from, bytes)
}

fn check_contexts(to: u64, from: u64) -> Outcome {
    let tables = tables();
    tables.context(to)?;
    tables.context(from).map(drop)
}

fn copy_peer_async(
    to: u64,
    to_context: u64,
    from: u64,
    from_context: u64,
    bytes: usize,
    on: u64,
) -> Outcome {
    check_contexts(to_context, from_context)?;
    copy_on_device_async(to, from, bytes, on)
}

fn copy_to_device(to: impl ApiInteger, from: u64, bytes: impl ApiInteger) -> Outcome {
    check(to.number(), bytes.number())?;
    copy(to.number(), from, bytes.number() as usize)
}

fn copy_to_device_async(
    to: impl ApiInteger,
    from: u64,
    bytes: impl ApiInteger,
    on: u64,
) -> Outcome {
    bytes_on(
        on,
        CopyAddress::Device(to.number()),
        CopyAddress::Host(from),
        bytes.number(),
    )
}

fn copy_to_host(to: u64, from: impl ApiInteger, bytes: impl ApiInteger) -> Outcome {
    check(from.number(), bytes.number())?;
    copy(to, from.number(), bytes.number() as usize)
}

fn copy_to_host_async(to: u64, from: impl ApiInteger, bytes: impl ApiInteger, on: u64) -> Outcome {
    bytes_on(
        on,
        CopyAddress::Host(to),
        CopyAddress::Device(from.number()),
        bytes.number(),
    )
}

fn copy_on_device<N: ApiInteger>(to: N, from: N, bytes: impl ApiInteger) -> Outcome {
    check(to.number(), bytes.number())?;
    check(from.number(), bytes.number())?;
    copy(to.number(), from.number(), bytes.number() as usize)
}

fn copy_on_device_async<N: ApiInteger>(to: N, from: N, bytes: impl ApiInteger, on: u64) -> Outcome {
    let (to, from) = (
        CopyAddress::Device(to.number()),
        CopyAddress::Device(from.number()),
    );
    bytes_on(on, to, from, bytes.number())
}

fn copy_array_to_array<N: ApiInteger>(
    to: u64,
    to_offset: N,
    from: u64,
    offset: N,
    bytes: N,
) -> Outcome {
    let bytes = bytes.number();
    let to = array::address(to, to_offset.number(), bytes)?;
    let from = array::address(from, offset.number(), bytes)?;
    mapping::copy(to, from, bytes);
    Ok(())
}

fn copy_array_to_device<N: ApiInteger>(
    to: impl ApiInteger,
    from: u64,
    offset: N,
    bytes: N,
) -> Outcome {
    let from = array::address(from, offset.number(), bytes.number())?;
    check(to.number(), bytes.number())?;
    mapping::copy(to.number(), from, bytes.number());
    Ok(())
}

fn copy_device_to_array<N: ApiInteger>(
    to: u64,
    offset: N,
    from: impl ApiInteger,
    bytes: N,
) -> Outcome {
    let to = array::address(to, offset.number(), bytes.number())?;
    check(from.number(), bytes.number())?;
    mapping::copy(to, from.number(), bytes.number());
    Ok(())
}

fn copy_array_to_host<N: ApiInteger>(to: u64, from: u64, offset: N, bytes: N) -> Outcome {
    let from = array::address(from, offset.number(), bytes.number())?;
    mapping::copy(to, from, bytes.number());
    Ok(())
}

fn copy_array_to_host_async<N: ApiInteger>(
    to: u64,
    from: u64,
    offset: N,
    bytes: N,
    on: u64,
) -> Outcome {
    stream(on)?;
    copy_array_to_host(to, from, offset, bytes)
}

fn copy_host_to_array<N: ApiInteger>(to: u64, offset: N, from: u64, bytes: N) -> Outcome {
    let to = array::address(to, offset.number(), bytes.number())?;
    mapping::copy(to, from, bytes.number());
    Ok(())
}

fn copy_host_to_array_async<N: ApiInteger>(
    to: u64,
    offset: N,
    from: u64,
    bytes: N,
    on: u64,
) -> Outcome {
    stream(on)?;
    copy_host_to_array(to, offset, from, bytes)
}

fn check(address: u64, bytes: u64) -> Outcome {
    if bytes == 0 || tables().covers(address, bytes) {
        Ok(())
    } else {
        Err(INVALID_VALUE)
    }
}

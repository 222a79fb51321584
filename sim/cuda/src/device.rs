//! Devices and their properties.

use std::ffi::c_char;

use apportion_sim_machine::CardFacts;

use crate::device_attributes;
use crate::driver::driver;
use crate::error::{INVALID_DEVICE, INVALID_VALUE, NOT_SUPPORTED, Outcome};
use crate::export::exports;
use crate::pointer::{Out, Text};

/// `CUdevprop`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct DeviceProperties {
    max_threads_per_block: i32,
    max_threads: [i32; 3],
    max_grid: [i32; 3],
    shared_memory: i32,
    constant_memory: i32,
    warp: i32,
    pitch: i32,
    registers: i32,
    clock: i32,
    texture_alignment: i32,
}

exports! {
    cuDeviceGet(device: Out<i32>, ordinal: i32) = get => "cuDeviceGet" @ 2000;
    cuDeviceGetCount(count: Out<i32>) = get_count => "cuDeviceGetCount" @ 2000;
    cuDeviceGetName(name: Out<c_char>, room: i32, device: i32) = get_name => "cuDeviceGetName" @ 2000;
    cuDeviceGetUuid(uuid: Out<[u8; 16]>, device: i32) = get_uuid => "cuDeviceGetUuid" @ 9020;
    cuDeviceGetUuid_v2(uuid: Out<[u8; 16]>, device: i32) = get_uuid => "cuDeviceGetUuid" @ 11040;
    cuDeviceGetLuid(luid: Out<c_char>, mask: Out<u32>, device: i32) = get_luid => "cuDeviceGetLuid" @ 10000;
    cuDeviceTotalMem(bytes: Out<u32>, device: i32) = total_memory_v1 => "cuDeviceTotalMem" @ 2000;
    cuDeviceTotalMem_v2(bytes: Out<usize>, device: i32) = total_memory => "cuDeviceTotalMem" @ 3020;
    cuDeviceGetAttribute(value: Out<i32>, attribute: i32, device: i32) = get_attribute => "cuDeviceGetAttribute" @ 2000;
    cuDeviceGetProperties(properties: Out<DeviceProperties>, device: i32) = get_properties => "cuDeviceGetProperties" @ 2000;
    cuDeviceComputeCapability(major: Out<i32>, minor: Out<i32>, device: i32) = compute_capability => "cuDeviceComputeCapability" @ 2000;
    cuDeviceGetByPCIBusId(device: Out<i32>, address: Text) = get_by_pci => "cuDeviceGetByPCIBusId" @ 4010;
    cuDeviceGetPCIBusId(address: Out<c_char>, room: i32, device: i32) = get_pci => "cuDeviceGetPCIBusId" @ 4010;
    cuDeviceCanAccessPeer(can: Out<i32>, device: i32, peer: i32) = can_access_peer => "cuDeviceCanAccessPeer" @ 4000;
    cuDeviceGetP2PAttribute(value: Out<i32>, attribute: u32, from: i32, to: i32) = get_p2p_attribute => "cuDeviceGetP2PAttribute" @ 8000;
    cuDeviceGetExecAffinitySupport(supported: Out<i32>, kind: u32, device: i32) = get_affinity_support => "cuDeviceGetExecAffinitySupport" @ 11040;
    cuDeviceGetTexture1DLinearMaxWidth(width: Out<usize>, format: u32, channels: u32, device: i32) = get_texture_width => "cuDeviceGetTexture1DLinearMaxWidth" @ 11010;
}

fn get(device: Out<i32>, ordinal: i32) -> Outcome {
    driver()?.card(ordinal)?;
    device.put(ordinal)
}

fn get_count(count: Out<i32>) -> Outcome {
    count.put(i32::try_from(driver()?.count()).unwrap_or(i32::MAX))
}

fn get_name(name: Out<c_char>, room: i32, device: i32) -> Outcome {
    put_text(name, room, &driver()?.facts(device)?.model)
}

fn get_uuid(uuid: Out<[u8; 16]>, device: i32) -> Outcome {
    uuid.put(driver()?.facts(device)?.uuid_bytes)
}

/// Only Windows has LUIDs.
fn get_luid(_: Out<c_char>, _: Out<u32>, device: i32) -> Outcome {
    driver()?.facts(device)?;
    Err(NOT_SUPPORTED)
}

/// The first API has 32 bits and returns at most what fits.
fn total_memory_v1(bytes: Out<u32>, device: i32) -> Outcome {
    bytes.put(u32::try_from(driver()?.facts(device)?.usable).unwrap_or(u32::MAX))
}

fn total_memory(bytes: Out<usize>, device: i32) -> Outcome {
    bytes.check()?;
    bytes.put(driver()?.facts(device)?.usable as usize)
}

fn get_attribute(value: Out<i32>, attribute: i32, device: i32) -> Outcome {
    value.check()?;
    let facts = driver()?.facts(device)?;
    value.put(device_attributes::value(attribute, facts).ok_or(INVALID_VALUE)?)
}

fn get_properties(properties: Out<DeviceProperties>, device: i32) -> Outcome {
    driver()?.facts(device)?;
    properties.put(DeviceProperties {
        max_threads_per_block: 1024,
        max_threads: [1024, 1024, 64],
        max_grid: [i32::MAX, 65535, 65535],
        shared_memory: 49152,
        constant_memory: 65536,
        warp: 32,
        pitch: i32::MAX,
        registers: 65536,
        clock: 1_980_000,
        texture_alignment: 512,
    })
}

fn compute_capability(major: Out<i32>, minor: Out<i32>, device: i32) -> Outcome {
    let capability = driver()?.facts(device)?.compute_capability;
    major.put(capability.0)?;
    minor.put(capability.1)
}

fn get_by_pci(device: Out<i32>, address: Text) -> Outcome {
    device.check()?;
    let wanted = address.get()?;
    let wanted = wanted.split('.').next().unwrap_or(wanted);
    let driver = driver()?;
    for ordinal in 0..i32::try_from(driver.count()).unwrap_or(i32::MAX) {
        let own = pci_address(driver.facts(ordinal)?);
        let own = own.trim_end_matches(".0");
        if own.eq_ignore_ascii_case(wanted) || own[5..].eq_ignore_ascii_case(wanted) {
            return device.put(ordinal);
        }
    }
    Err(INVALID_DEVICE)
}

fn get_pci(address: Out<c_char>, room: i32, device: i32) -> Outcome {
    put_text(address, room, &pci_address(driver()?.facts(device)?))
}

/// All cards of a machine can reach each other.
fn can_access_peer(can: Out<i32>, device: i32, peer: i32) -> Outcome {
    let (one, other) = (driver()?.card(device)?, driver()?.card(peer)?);
    can.put(i32::from(one != other))
}

fn get_p2p_attribute(value: Out<i32>, attribute: u32, from: i32, to: i32) -> Outcome {
    let (one, other) = (driver()?.card(from)?, driver()?.card(to)?);
    if one == other {
        return Err(INVALID_DEVICE);
    }
    match attribute {
        1 => value.put(0),
        2..=4 => value.put(1),
        _ => Err(INVALID_VALUE),
    }
}

fn get_affinity_support(supported: Out<i32>, _kind: u32, device: i32) -> Outcome {
    driver()?.facts(device)?;
    supported.put(0)
}

fn get_texture_width(width: Out<usize>, _format: u32, channels: u32, device: i32) -> Outcome {
    driver()?.facts(device)?;
    if channels == 0 {
        Err(INVALID_VALUE)
    } else {
        width.put(1 << 28)
    }
}

fn pci_address(facts: &CardFacts) -> String {
    format!("0000:{:02x}:00.0", facts.pci_bus)
}

/// Writes as much of a text as fits into `room`, with a terminating zero.
fn put_text(out: Out<c_char>, room: i32, text: &str) -> Outcome {
    out.check()?;
    let room = usize::try_from(room)
        .ok()
        .filter(|room| *room > 0)
        .ok_or(INVALID_VALUE)?;
    let taken = text.len().min(room - 1);
    for (at, byte) in text.bytes().take(taken).enumerate() {
        out.put_at(at, byte.cast_signed() as c_char)?;
    }
    out.put_at(taken, 0)
}

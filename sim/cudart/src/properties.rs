//! `cudaDeviceProp` in its three layouts: CUDA 11's, which CUDA 12 still returns under the old name, CUDA 12's and CUDA
//! 13's. One table in the structure's order lists which layouts have a field and where its value comes from.

use std::ffi::{c_char, c_void};

use crate::context;
use crate::driver::{cuDeviceGetAttribute, driver_functions};
use crate::entry::entry_points;
use crate::error::{CudartError, INVALID_VALUE, Outcome};

driver_functions! {
    cuDeviceGetName(text: *mut c_char, room: i32, device: i32) => c"cuDeviceGetName" @ 2000;
    cuDeviceGetUuid(out: *mut c_void, device: i32) => c"cuDeviceGetUuid" @ 11040;
    cuDeviceTotalMem(bytes: *mut usize, device: i32) => c"cuDeviceTotalMem" @ 3020;
}

entry_points! {
    driver cudaGetDeviceProperties_11(out: *mut u8, device: i32) = properties_11;
    driver cudaGetDeviceProperties_12(out: *mut u8, device: i32) = properties_12;
    driver cudaGetDeviceProperties_13(out: *mut u8, device: i32) = properties_13;
}

/// Which layouts have a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FieldLayouts {
    All,
    /// CUDA 11 and 12.
    Older,
    /// CUDA 12 and 13.
    Newer,
    Newest,
}

/// What a field holds.
#[derive(Debug, Clone, Copy)]
enum PropertyField {
    /// The name, in 256 bytes.
    Name,
    /// 16 bytes.
    Uuid,
    /// The LUID of eight bytes and its node mask. Only Windows fills them in.
    Luid,
    /// The memory of the device.
    Memory,
    /// 32-bit numbers, each from a driver attribute.
    Numbers(&'static [u32]),
    /// A 64-bit size from a driver attribute.
    Size(u32),
}

use FieldLayouts::{All, Newer, Newest, Older};
use PropertyField::{Luid, Memory, Name, Numbers, Size, Uuid};

/// The fields in the structure's order. The numbers are those of `CUdevice_attribute`.
const FIELDS: &[(FieldLayouts, PropertyField)] = &[
    (All, Name),
    (All, Uuid),
    (All, Luid),
    (All, Memory),
    (All, Size(8)),
    (All, Numbers(&[12, 10])),
    (All, Size(11)),
    (All, Numbers(&[1, 2, 3, 4, 5, 6, 7])),
    (Older, Numbers(&[13])),
    (All, Size(9)),
    (All, Numbers(&[75, 76])),
    (All, Size(14)),
    (All, Size(51)),
    (Older, Numbers(&[15])),
    (All, Numbers(&[16])),
    (Older, Numbers(&[17])),
    (All, Numbers(&[18, 19])),
    (Older, Numbers(&[20])),
    (All, Numbers(&[21, 77])),
    (Older, Numbers(&[69])),
    (All, Numbers(&[22, 23, 73, 74, 70, 71, 72, 45, 46])),
    (All, Numbers(&[24, 25, 26, 47, 48, 49, 52])),
    (All, Numbers(&[42, 43, 27, 28, 29, 53, 54])),
    (All, Numbers(&[55, 56, 57, 58, 59, 60])),
    (All, Numbers(&[61, 62, 63, 64, 65, 66, 67, 68])),
    (All, Size(30)),
    (All, Numbers(&[31, 32, 33, 34, 50, 35, 40, 41])),
    (Older, Numbers(&[36])),
    (All, Numbers(&[37, 38, 108, 39, 78, 79, 80])),
    (All, Size(81)),
    (All, Numbers(&[82, 83, 84, 85, 86])),
    (Older, Numbers(&[87])),
    (All, Numbers(&[88, 89, 90, 91, 95])),
    (Older, Numbers(&[96])),
    (All, Size(97)),
    (All, Numbers(&[100, 101, 106, 109])),
    (All, Size(111)),
    (
        Newer,
        Numbers(&[99, 112, 113, 114, 115, 116, 117, 118, 119, 121]),
    ),
    (Newer, Numbers(&[125, 120, 129])),
    (Newest, Numbers(&[130, 131, 133, 134, 139, 140, 143])),
];

/// The sizes of the layouts.
const BYTES_11: usize = 728;
const BYTES_12: usize = 1032;
const BYTES_13: usize = 1008;

/// Writes a structure from start to end, each field aligned to its size.
struct StructWriter {
    out: *mut u8,
    at: usize,
    room: usize,
}

impl StructWriter {
    /// Writes a field. A field beyond the end is not part of this layout and is skipped.
    fn put<T>(&mut self, value: T) {
        let start = self.at.next_multiple_of(align_of::<T>());
        let end = start + size_of::<T>();
        if end <= self.room {
            let place = self.out.wrapping_add(start).cast::<T>();
            // SAFETY: the address is inside the structure that the program gave.
            unsafe { place.write_unaligned(value) };
        }
        self.at = end;
    }
}

fn properties_11(out: *mut u8, device: i32) -> Outcome {
    fill(out, device, BYTES_11, |field| matches!(field, All | Older))
}

fn properties_12(out: *mut u8, device: i32) -> Outcome {
    fill(out, device, BYTES_12, |field| field != Newest)
}

fn properties_13(out: *mut u8, device: i32) -> Outcome {
    fill(out, device, BYTES_13, |field| field != Older)
}

fn fill(out: *mut u8, device: i32, bytes: usize, has: impl Fn(FieldLayouts) -> bool) -> Outcome {
    if out.is_null() {
        return Err(INVALID_VALUE);
    }
    context::check_device(device)?;
    // SAFETY: the program gave a structure of this size.
    unsafe { out.write_bytes(0, bytes) };
    let mut writer = StructWriter {
        out,
        at: 0,
        room: bytes,
    };
    for (_, field) in FIELDS.iter().filter(|(layouts, _)| has(*layouts)) {
        put(&mut writer, *field, device)?;
    }
    Ok(())
}

/// An attribute that the driver does not know stays zero.
fn attribute(attribute: u32, device: i32) -> i32 {
    let mut value = 0;
    let asked = cuDeviceGetAttribute(&raw mut value, attribute, device);
    asked.map_or(0, |()| value)
}

fn put(writer: &mut StructWriter, field: PropertyField, device: i32) -> Result<(), CudartError> {
    match field {
        Name => {
            let mut name = [0_u8; 256];
            cuDeviceGetName(name.as_mut_ptr().cast(), 256, device)?;
            writer.put(name);
        }
        Uuid => {
            let mut uuid = [0_u8; 16];
            cuDeviceGetUuid(uuid.as_mut_ptr().cast(), device)?;
            writer.put(uuid);
        }
        Luid => {
            writer.put([0_u8; 8]);
            writer.put(0_u32);
        }
        Memory => {
            let mut bytes = 0;
            cuDeviceTotalMem(&raw mut bytes, device)?;
            writer.put(bytes);
        }
        Numbers(attributes) => {
            for number in attributes {
                writer.put(attribute(*number, device));
            }
        }
        Size(number) => writer.put(usize::try_from(attribute(number, device)).unwrap_or(0)),
    }
    Ok(())
}

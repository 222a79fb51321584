//! `CUmemLocation` and the structures that contain one.

use apportion_sim_machine::MachineLocation;

use crate::driver::driver;
use crate::error::{CudaError, INVALID_VALUE};

/// `CUmemLocation`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct MemLocation {
    pub(crate) kind: u32,
    pub(crate) id: i32,
}

/// `CUmemAccessDesc`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct MemAccessDesc {
    pub(crate) place: MemLocation,
    pub(crate) flags: u32,
}

/// `CU_MEM_LOCATION_TYPE_DEVICE` and the types of host locations.
pub(crate) const DEVICE: u32 = 1;
pub(crate) const HOST: u32 = 2;
pub(crate) const HOST_NODE: u32 = 3;
pub(crate) const HOST_NODE_CURRENT: u32 = 4;

/// `CU_MEM_ACCESS_FLAGS_PROT_READWRITE` has both bits.
pub(crate) const READ: u32 = 1;
pub(crate) const READ_WRITE: u32 = 3;

impl MemLocation {
    /// The memory of a device.
    pub(crate) fn of_device(device: i32) -> Self {
        Self {
            kind: DEVICE,
            id: device,
        }
    }

    /// The location in the machine's terms.
    pub(crate) fn location(self) -> Result<MachineLocation, CudaError> {
        match self.kind {
            DEVICE => Ok(MachineLocation::Card(driver()?.card(self.id)?)),
            HOST | HOST_NODE | HOST_NODE_CURRENT => Ok(MachineLocation::Host),
            _ => Err(INVALID_VALUE),
        }
    }

    /// The device. Host locations have none.
    pub(crate) fn device(self) -> i32 {
        if self.kind == DEVICE { self.id } else { -1 }
    }
}

impl MemAccessDesc {
    /// Fails unless the access is one that the API allows: none, read, or both.
    pub(crate) fn checked(self) -> Result<Self, CudaError> {
        self.place.location()?;
        if [0, READ, READ_WRITE].contains(&self.flags) {
            Ok(self)
        } else {
            Err(INVALID_VALUE)
        }
    }
}

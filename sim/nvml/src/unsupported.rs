//! Features that a simulated machine does not have: units of cards, vGPUs and MIG partitions, confidential computing,
//! profiling counters. Each function is found under its name and returns an error: an invalid handle is one that
//! nothing could have created, everything else is not supported.

use std::ffi::c_uint;

use nvml_wrapper_sys::bindings::{nvmlGpmSupport_t, nvmlReturn_t};

use crate::foreign::ForeignPointer;
use crate::handles::DeviceHandle;
use crate::session;
use crate::status::NvmlStatus;

/// `NVML_GPM_SUPPORT_VERSION`.
const GPM_SUPPORT: c_uint = 1;

/// Defines `name`, which returns the given code on an initialised library, whatever its arguments are.
macro_rules! absent {
    ($status:ident: $($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name() -> nvmlReturn_t {
            $crate::rows::answer(stringify!($name), || {
                session::running()?;
                Err(NvmlStatus::$status)
            })
        }
    )*};
}

absent! { InvalidArgument:
    nvmlComputeInstanceDestroy
    nvmlComputeInstanceGetInfo
    nvmlComputeInstanceGetInfo_v2
    nvmlGpuInstanceCreateComputeInstance
    nvmlGpuInstanceCreateComputeInstanceWithPlacement
    nvmlGpuInstanceDestroy
    nvmlGpuInstanceGetComputeInstanceById
    nvmlGpuInstanceGetComputeInstancePossiblePlacements
    nvmlGpuInstanceGetComputeInstanceProfileInfo
    nvmlGpuInstanceGetComputeInstanceProfileInfoV
    nvmlGpuInstanceGetComputeInstanceRemainingCapacity
    nvmlGpuInstanceGetComputeInstances
    nvmlGpuInstanceGetInfo
    nvmlUnitGetDevices
    nvmlUnitGetFanSpeedInfo
    nvmlUnitGetHandleByIndex
    nvmlUnitGetLedState
    nvmlUnitGetPsuInfo
    nvmlUnitGetTemperature
    nvmlUnitGetUnitInfo
    nvmlUnitSetLedState
    nvmlVgpuInstanceClearAccountingPids
    nvmlVgpuInstanceGetAccountingMode
    nvmlVgpuInstanceGetAccountingPids
    nvmlVgpuInstanceGetAccountingStats
    nvmlVgpuInstanceGetEccMode
    nvmlVgpuInstanceGetEncoderCapacity
    nvmlVgpuInstanceGetEncoderSessions
    nvmlVgpuInstanceGetEncoderStats
    nvmlVgpuInstanceGetFBCSessions
    nvmlVgpuInstanceGetFBCStats
    nvmlVgpuInstanceGetFbUsage
    nvmlVgpuInstanceGetFrameRateLimit
    nvmlVgpuInstanceGetGpuInstanceId
    nvmlVgpuInstanceGetGpuPciId
    nvmlVgpuInstanceGetLicenseInfo
    nvmlVgpuInstanceGetLicenseInfo_v2
    nvmlVgpuInstanceGetLicenseStatus
    nvmlVgpuInstanceGetMdevUUID
    nvmlVgpuInstanceGetMetadata
    nvmlVgpuInstanceGetPlacementId
    nvmlVgpuInstanceGetRuntimeStateSize
    nvmlVgpuInstanceGetType
    nvmlVgpuInstanceGetUUID
    nvmlVgpuInstanceGetVmDriverVersion
    nvmlVgpuInstanceGetVmID
    nvmlVgpuInstanceSetEncoderCapacity
    nvmlVgpuTypeGetBAR1Info
    nvmlVgpuTypeGetCapabilities
    nvmlVgpuTypeGetClass
    nvmlVgpuTypeGetDeviceID
    nvmlVgpuTypeGetFbReservation
    nvmlVgpuTypeGetFrameRateLimit
    nvmlVgpuTypeGetFramebufferSize
    nvmlVgpuTypeGetGpuInstanceProfileId
    nvmlVgpuTypeGetGspHeapSize
    nvmlVgpuTypeGetLicense
    nvmlVgpuTypeGetMaxInstances
    nvmlVgpuTypeGetMaxInstancesPerVm
    nvmlVgpuTypeGetName
    nvmlVgpuTypeGetNumDisplayHeads
    nvmlVgpuTypeGetResolution
}

absent! { NotSupported:
    nvmlDeviceDiscoverGpus
    nvmlDeviceModifyDrainState
    nvmlDeviceQueryDrainState
    nvmlDeviceRemoveGpu
    nvmlDeviceRemoveGpu_v2
    nvmlGetVgpuCompatibility
    nvmlGetVgpuDriverCapabilities
    nvmlGetVgpuVersion
    nvmlGpmMetricsGet
    nvmlGpmSampleAlloc
    nvmlGpmSampleFree
    nvmlSetVgpuVersion
    nvmlSystemGetConfComputeCapabilities
    nvmlSystemGetConfComputeGpusReadyState
    nvmlSystemGetConfComputeKeyRotationThresholdInfo
    nvmlSystemGetConfComputeSettings
    nvmlSystemGetConfComputeState
    nvmlSystemGetNvlinkBwMode
    nvmlSystemSetConfComputeGpusReadyState
    nvmlSystemSetConfComputeKeyRotationThresholdInfo
    nvmlSystemSetNvlinkBwMode
}

/// `nvmlGetExcludedDeviceCount`: the driver excludes no card. `nvmlSystemGetHicVersion`: there is no such card.
pub(crate) fn none(count: ForeignPointer<c_uint>) -> Result<(), NvmlStatus> {
    session::running()?;
    count.put(0)
}

/// `nvmlSystemGetHicVersion`. Leaves the list unchanged.
pub(crate) fn no_hosts(
    count: ForeignPointer<c_uint>,
    _list: ForeignPointer<u8>,
) -> Result<(), NvmlStatus> {
    none(count)
}

/// `nvmlGetExcludedDeviceInfoByIndex`: no index is valid.
pub(crate) fn no_excluded(_index: c_uint, _info: ForeignPointer<u8>) -> Result<(), NvmlStatus> {
    session::running()?;
    Err(NvmlStatus::InvalidArgument)
}

/// `nvmlGpmQueryDeviceSupport`: no card has such counters.
pub(crate) fn no_counters(
    device: DeviceHandle,
    support: ForeignPointer<nvmlGpmSupport_t>,
) -> Result<(), NvmlStatus> {
    device.card()?;
    let asked = support.get()?;
    if asked.version != GPM_SUPPORT {
        return Err(NvmlStatus::VersionMismatch);
    }
    support.put(nvmlGpmSupport_t {
        isSupportedDevice: 0,
        ..asked
    })
}

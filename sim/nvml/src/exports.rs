//! What the library exports: one row per function. Each version of a function is a row of its own, because a program
//! asks for it by its own name.

use std::ffi::{c_char, c_int, c_uint, c_ulong, c_ulonglong};

use nvml_wrapper_sys::bindings::{
    nvmlBAR1Memory_t, nvmlConfComputeMemSizeInfo_t, nvmlDeviceAddressingMode_t, nvmlEventData_t,
    nvmlFieldValue_t, nvmlGpmSupport_t, nvmlMemory_t, nvmlMemory_v2_t, nvmlPciInfo_t,
    nvmlPciInfoExt_t, nvmlProcessDetailList_t, nvmlProcessInfo_v1_t, nvmlProcessInfo_v2_t,
    nvmlProcessUtilizationSample_t, nvmlReturn_t, nvmlSystemDriverBranchInfo_t, nvmlTemperature_t,
    nvmlUUID_t, nvmlUtilization_t,
};

use crate::events::{self, EventData, EventSet};
use crate::foreign::ForeignPointer;
use crate::handles::{self, DeviceHandle};
use crate::identity::{PciInfoV1, PciInfoV2};
use crate::limits::{self, GetMemoryLimits, SetMemoryLimits};
use crate::rows::{calls, texts, unsupported, values};
use crate::status::NvmlStatus;
use crate::{
    fields, health, identity, links, memory, modes, processes, session, system, topology,
    unsupported,
};

calls! {
    nvmlInit() = session::init;
    nvmlInit_v2() = session::init;
    nvmlInitWithFlags(flags: c_uint) = session::init_with_flags;
    nvmlShutdown() = session::shutdown;

    nvmlSystemGetDriverVersion(text: ForeignPointer<c_char>, length: c_uint) = system::driver_version;
    nvmlSystemGetNVMLVersion(text: ForeignPointer<c_char>, length: c_uint) = system::nvml_version;
    nvmlSystemGetCudaDriverVersion(version: ForeignPointer<c_int>) = system::cuda_version;
    nvmlSystemGetCudaDriverVersion_v2(version: ForeignPointer<c_int>) = system::cuda_version;
    nvmlSystemGetDriverBranch(branch: ForeignPointer<nvmlSystemDriverBranchInfo_t>, length: c_uint)
        = system::driver_branch;
    nvmlSystemGetProcessName(pid: c_uint, text: ForeignPointer<c_char>, length: c_uint)
        = system::process_name;
    nvmlSystemGetTopologyGpuSet(
        processor: c_uint, count: ForeignPointer<c_uint>, list: ForeignPointer<DeviceHandle>,
    ) = topology::near_processor;
    nvmlSystemGetHicVersion(count: ForeignPointer<c_uint>, list: ForeignPointer<u8>) = unsupported::no_hosts;
    nvmlGetExcludedDeviceCount(count: ForeignPointer<c_uint>) = unsupported::none;
    nvmlGetBlacklistDeviceCount(count: ForeignPointer<c_uint>) = unsupported::none;
    nvmlGetExcludedDeviceInfoByIndex(index: c_uint, info: ForeignPointer<u8>) = unsupported::no_excluded;
    nvmlGetBlacklistDeviceInfoByIndex(index: c_uint, info: ForeignPointer<u8>) = unsupported::no_excluded;
    nvmlGpmQueryDeviceSupport(device: DeviceHandle, support: ForeignPointer<nvmlGpmSupport_t>)
        = unsupported::no_counters;
    nvmlUnitGetCount(count: ForeignPointer<c_uint>) = system::unit_count;

    nvmlDeviceGetCount(count: ForeignPointer<c_uint>) = identity::count;
    nvmlDeviceGetCount_v2(count: ForeignPointer<c_uint>) = identity::count;
    nvmlDeviceGetHandleByIndex(index: c_uint, device: ForeignPointer<DeviceHandle>) = handles::by_index;
    nvmlDeviceGetHandleByIndex_v2(index: c_uint, device: ForeignPointer<DeviceHandle>) = handles::by_index;
    nvmlDeviceGetHandleByUUID(uuid: ForeignPointer<c_char>, device: ForeignPointer<DeviceHandle>) = identity::by_uuid;
    nvmlDeviceGetHandleByUUIDV(uuid: ForeignPointer<nvmlUUID_t>, device: ForeignPointer<DeviceHandle>)
        = identity::by_uuid_value;
    nvmlDeviceGetHandleBySerial(number: ForeignPointer<c_char>, device: ForeignPointer<DeviceHandle>)
        = identity::by_serial;
    nvmlDeviceGetHandleByPciBusId(bus_id: ForeignPointer<c_char>, device: ForeignPointer<DeviceHandle>)
        = identity::by_pci;
    nvmlDeviceGetHandleByPciBusId_v2(bus_id: ForeignPointer<c_char>, device: ForeignPointer<DeviceHandle>)
        = identity::by_pci;
    nvmlDeviceGetIndex(device: DeviceHandle, index: ForeignPointer<c_uint>) = handles::index;
    nvmlDeviceGetMinorNumber(device: DeviceHandle, number: ForeignPointer<c_uint>) = handles::index;
    nvmlDeviceGetCudaComputeCapability(
        device: DeviceHandle, major: ForeignPointer<c_int>, minor: ForeignPointer<c_int>,
    ) = identity::compute_capability;
    nvmlDeviceOnSameBoard(first: DeviceHandle, second: DeviceHandle, same: ForeignPointer<c_int>)
        = topology::on_same_board;
    nvmlDeviceGetNvLinkState(device: DeviceHandle, link: c_uint, state: ForeignPointer<c_uint>)
        = links::state;
    nvmlDeviceGetNvLinkRemotePciInfo_v2(device: DeviceHandle, link: c_uint, info: ForeignPointer<nvmlPciInfo_t>)
        = links::remote;
    nvmlDeviceGetTopologyCommonAncestor(first: DeviceHandle, second: DeviceHandle, level: ForeignPointer<c_uint>)
        = topology::common_ancestor;
    nvmlDeviceGetP2PStatus(first: DeviceHandle, second: DeviceHandle, kind: c_uint, status: ForeignPointer<c_int>)
        = topology::peer_status;
    nvmlDeviceGetCpuAffinity(device: DeviceHandle, words: c_uint, set: ForeignPointer<c_ulong>)
        = topology::cpu_affinity;
    nvmlDeviceGetCpuAffinityWithinScope(
        device: DeviceHandle, words: c_uint, set: ForeignPointer<c_ulong>, scope: c_uint,
    ) = topology::cpu_affinity_within;
    nvmlDeviceGetMemoryAffinity(
        device: DeviceHandle, words: c_uint, set: ForeignPointer<c_ulong>, scope: c_uint,
    ) = topology::memory_affinity;
    nvmlDeviceGetTopologyNearestGpus(
        device: DeviceHandle, level: c_uint, count: ForeignPointer<c_uint>, list: ForeignPointer<DeviceHandle>,
    ) = topology::nearest;
    nvmlDeviceGetPciInfoExt(device: DeviceHandle, info: ForeignPointer<nvmlPciInfoExt_t>)
        = identity::pci_info_ext;
    nvmlDeviceGetAddressingMode(device: DeviceHandle, mode: ForeignPointer<nvmlDeviceAddressingMode_t>)
        = modes::addressing;

    nvmlDeviceGetMemoryInfo_v2(device: DeviceHandle, memory: ForeignPointer<nvmlMemory_v2_t>) = memory::info_v2;
    nvmlDeviceSetMemoryLimits_v1(device: DeviceHandle, limits: ForeignPointer<SetMemoryLimits>) = limits::set;
    nvmlDeviceGetMemoryLimits_v1(device: DeviceHandle, limits: ForeignPointer<GetMemoryLimits>) = limits::get;

    nvmlDeviceGetComputeRunningProcesses(
        device: DeviceHandle, count: ForeignPointer<c_uint>, list: ForeignPointer<nvmlProcessInfo_v1_t>,
    ) = processes::compute_v1;
    nvmlDeviceGetComputeRunningProcesses_v2(
        device: DeviceHandle, count: ForeignPointer<c_uint>, list: ForeignPointer<nvmlProcessInfo_v2_t>,
    ) = processes::compute_v3;
    nvmlDeviceGetComputeRunningProcesses_v3(
        device: DeviceHandle, count: ForeignPointer<c_uint>, list: ForeignPointer<nvmlProcessInfo_v2_t>,
    ) = processes::compute_v3;
    nvmlDeviceGetGraphicsRunningProcesses(device: DeviceHandle, count: ForeignPointer<c_uint>, list: ForeignPointer<u8>)
        = processes::none;
    nvmlDeviceGetGraphicsRunningProcesses_v2(
        device: DeviceHandle, count: ForeignPointer<c_uint>, list: ForeignPointer<u8>,
    ) = processes::none;
    nvmlDeviceGetGraphicsRunningProcesses_v3(
        device: DeviceHandle, count: ForeignPointer<c_uint>, list: ForeignPointer<u8>,
    ) = processes::none;
    nvmlDeviceGetMPSComputeRunningProcesses(
        device: DeviceHandle, count: ForeignPointer<c_uint>, list: ForeignPointer<u8>,
    ) = processes::none;
    nvmlDeviceGetMPSComputeRunningProcesses_v2(
        device: DeviceHandle, count: ForeignPointer<c_uint>, list: ForeignPointer<u8>,
    ) = processes::none;
    nvmlDeviceGetMPSComputeRunningProcesses_v3(
        device: DeviceHandle, count: ForeignPointer<c_uint>, list: ForeignPointer<u8>,
    ) = processes::none;
    nvmlDeviceGetRunningProcessDetailList(device: DeviceHandle, list: ForeignPointer<nvmlProcessDetailList_t>)
        = processes::detail_list;
    nvmlDeviceGetProcessUtilization(
        device: DeviceHandle, list: ForeignPointer<nvmlProcessUtilizationSample_t>, count: ForeignPointer<c_uint>,
        last_seen: c_ulonglong,
    ) = processes::utilisation;

    nvmlDeviceGetEncoderUtilization(
        device: DeviceHandle, utilisation: ForeignPointer<c_uint>, period: ForeignPointer<c_uint>,
    ) = health::encoder;
    nvmlDeviceGetDecoderUtilization(
        device: DeviceHandle, utilisation: ForeignPointer<c_uint>, period: ForeignPointer<c_uint>,
    ) = health::decoder;
    nvmlDeviceGetTemperature(device: DeviceHandle, sensor: c_uint, degrees: ForeignPointer<c_uint>)
        = health::temperature;
    nvmlDeviceGetTemperatureV(device: DeviceHandle, temperature: ForeignPointer<nvmlTemperature_t>)
        = health::temperature_value;
    nvmlDeviceGetTemperatureThreshold(device: DeviceHandle, threshold: c_uint, degrees: ForeignPointer<c_uint>)
        = health::temperature_threshold;
    nvmlDeviceGetPowerManagementLimitConstraints(
        device: DeviceHandle, least: ForeignPointer<c_uint>, most: ForeignPointer<c_uint>,
    ) = health::power_constraints;
    nvmlDeviceGetClockInfo(device: DeviceHandle, kind: c_uint, clock: ForeignPointer<c_uint>) = health::clock;
    nvmlDeviceGetMaxClockInfo(device: DeviceHandle, kind: c_uint, clock: ForeignPointer<c_uint>)
        = health::max_clock;
    nvmlDeviceGetPcieThroughput(device: DeviceHandle, counter: c_uint, throughput: ForeignPointer<c_uint>)
        = health::pcie_throughput;
    nvmlDeviceGetFieldValues(device: DeviceHandle, count: c_int, values: ForeignPointer<nvmlFieldValue_t>)
        = fields::values;

    nvmlDeviceGetEccMode(device: DeviceHandle, current: ForeignPointer<c_uint>, pending: ForeignPointer<c_uint>)
        = modes::ecc;
    nvmlDeviceGetTotalEccErrors(
        device: DeviceHandle, kind: c_uint, counter: c_uint, errors: ForeignPointer<c_ulonglong>,
    ) = modes::ecc_errors;
    nvmlDeviceGetRemappedRows(
        device: DeviceHandle, corrected: ForeignPointer<c_uint>, uncorrected: ForeignPointer<c_uint>,
        pending: ForeignPointer<c_uint>, failed: ForeignPointer<c_uint>,
    ) = modes::remapped_rows;
    nvmlDeviceGetMigMode(device: DeviceHandle, current: ForeignPointer<c_uint>, pending: ForeignPointer<c_uint>)
        = modes::mig;
    nvmlDeviceGetMigDeviceHandleByIndex(device: DeviceHandle, index: c_uint, part: ForeignPointer<DeviceHandle>)
        = modes::mig_device;

    nvmlEventSetCreate(set: ForeignPointer<EventSet>) = events::create;
    nvmlEventSetFree(set: EventSet) = events::free;
    nvmlEventSetWait(set: EventSet, data: ForeignPointer<EventData>, milliseconds: c_uint)
        = events::wait_v1;
    nvmlEventSetWait_v2(set: EventSet, data: ForeignPointer<nvmlEventData_t>, milliseconds: c_uint)
        = events::wait_v2;
    nvmlDeviceRegisterEvents(device: DeviceHandle, kinds: c_ulonglong, set: EventSet) = events::register;
    nvmlDeviceGetSupportedEventTypes(device: DeviceHandle, kinds: ForeignPointer<c_ulonglong>)
        = events::supported;
}

values! {
    nvmlDeviceGetPciInfo: PciInfoV1 = identity::pci_info_v1;
    nvmlDeviceGetPciInfo_v2: PciInfoV2 = identity::pci_info_v2;
    nvmlDeviceGetPciInfo_v3: nvmlPciInfo_t = identity::pci_info_v3;
    nvmlDeviceGetArchitecture: c_uint = identity::architecture;
    nvmlDeviceGetBrand: c_uint = identity::brand;
    nvmlDeviceGetNumGpuCores: c_uint = identity::cores;
    nvmlDeviceGetBoardId: c_uint = identity::board;
    nvmlDeviceGetBusType: c_uint = identity::bus_type;
    nvmlDeviceGetModuleId: c_uint = identity::module;
    nvmlDeviceGetMultiGpuBoard: c_uint = modes::off;

    nvmlDeviceGetMemoryInfo: nvmlMemory_t = memory::info;
    nvmlDeviceGetBAR1MemoryInfo: nvmlBAR1Memory_t = memory::bar1;
    nvmlDeviceGetConfComputeMemSizeInfo: nvmlConfComputeMemSizeInfo_t = memory::confidential;

    nvmlDeviceGetUtilizationRates: nvmlUtilization_t = health::utilisation;
    nvmlDeviceGetPowerUsage: c_uint = health::power;
    nvmlDeviceGetPowerManagementLimit: c_uint = health::power_limit;
    nvmlDeviceGetPowerManagementDefaultLimit: c_uint = health::power_limit;
    nvmlDeviceGetEnforcedPowerLimit: c_uint = health::power_limit;
    nvmlDeviceGetPerformanceState: c_uint = health::performance_state;
    nvmlDeviceGetPowerState: c_uint = health::performance_state;
    nvmlDeviceGetMemoryBusWidth: c_uint = health::memory_bus;
    nvmlDeviceGetCurrPcieLinkGeneration: c_uint = health::pcie_generation;
    nvmlDeviceGetMaxPcieLinkGeneration: c_uint = health::pcie_generation;
    nvmlDeviceGetGpuMaxPcieLinkGeneration: c_uint = health::pcie_generation;
    nvmlDeviceGetCurrPcieLinkWidth: c_uint = health::pcie_width;
    nvmlDeviceGetMaxPcieLinkWidth: c_uint = health::pcie_width;
    nvmlDeviceGetPcieReplayCounter: c_uint = modes::off;
    nvmlDeviceGetCurrentClocksThrottleReasons: c_ulonglong = modes::reasons;
    nvmlDeviceGetCurrentClocksEventReasons: c_ulonglong = modes::reasons;

    nvmlDeviceGetSupportedClocksThrottleReasons: c_ulonglong = modes::all_reasons;
    nvmlDeviceGetSupportedClocksEventReasons: c_ulonglong = modes::all_reasons;
    nvmlDeviceGetPersistenceMode: c_uint = modes::on;
    nvmlDeviceGetComputeMode: c_uint = modes::off;
    nvmlDeviceGetDisplayMode: c_uint = modes::off;
    nvmlDeviceGetDisplayActive: c_uint = modes::off;
    nvmlDeviceGetAccountingMode: c_uint = modes::off;
    nvmlDeviceGetVirtualizationMode: c_uint = modes::off;
    nvmlDeviceIsMigDeviceHandle: c_uint = modes::off;
    nvmlDeviceGetMaxMigDeviceCount: c_uint = modes::max_mig_devices;
}

texts! {
    nvmlDeviceGetName = identity::name;
    nvmlDeviceGetUUID = identity::uuid;
    nvmlDeviceGetSerial = identity::serial;
    nvmlDeviceGetVbiosVersion = identity::vbios;
    nvmlDeviceGetBoardPartNumber = identity::part_number;
}

unsupported! {
    nvmlDeviceClearAccountingPids
    nvmlDeviceClearCpuAffinity
    nvmlDeviceClearEccErrorCounts
    nvmlDeviceClearFieldValues
    nvmlDeviceCreateGpuInstance
    nvmlDeviceCreateGpuInstanceWithPlacement
    nvmlDeviceFreezeNvLinkUtilizationCounter
    nvmlDeviceGetAPIRestriction
    nvmlDeviceGetAccountingBufferSize
    nvmlDeviceGetAccountingPids
    nvmlDeviceGetAccountingStats
    nvmlDeviceGetActiveVgpus
    nvmlDeviceGetAdaptiveClockInfoStatus
    nvmlDeviceGetApplicationsClock
    nvmlDeviceGetAttributes
    nvmlDeviceGetAttributes_v2
    nvmlDeviceGetAutoBoostedClocksEnabled
    nvmlDeviceGetBridgeChipInfo
    nvmlDeviceGetC2cModeInfoV
    nvmlDeviceGetCapabilities
    nvmlDeviceGetClkMonStatus
    nvmlDeviceGetClock
    nvmlDeviceGetClockOffsets
    nvmlDeviceGetComputeInstanceId
    nvmlDeviceGetConfComputeGpuAttestationReport
    nvmlDeviceGetConfComputeGpuCertificate
    nvmlDeviceGetConfComputeProtectedMemoryUsage
    nvmlDeviceGetCoolerInfo
    nvmlDeviceGetCreatableVgpus
    nvmlDeviceGetCurrentClockFreqs
    nvmlDeviceGetDefaultApplicationsClock
    nvmlDeviceGetDefaultEccMode
    nvmlDeviceGetDetailedEccErrors
    nvmlDeviceGetDeviceHandleFromMigDeviceHandle
    nvmlDeviceGetDramEncryptionMode
    nvmlDeviceGetDriverModel
    nvmlDeviceGetDriverModel_v2
    nvmlDeviceGetDynamicPstatesInfo
    nvmlDeviceGetEncoderCapacity
    nvmlDeviceGetEncoderSessions
    nvmlDeviceGetEncoderStats
    nvmlDeviceGetFBCSessions
    nvmlDeviceGetFBCStats
    nvmlDeviceGetFanControlPolicy_v2
    nvmlDeviceGetFanSpeed
    nvmlDeviceGetFanSpeedRPM
    nvmlDeviceGetFanSpeed_v2
    nvmlDeviceGetGpcClkMinMaxVfOffset
    nvmlDeviceGetGpcClkVfOffset
    nvmlDeviceGetGpuFabricInfo
    nvmlDeviceGetGpuFabricInfoV
    nvmlDeviceGetGpuInstanceById
    nvmlDeviceGetGpuInstanceId
    nvmlDeviceGetGpuInstancePossiblePlacements
    nvmlDeviceGetGpuInstancePossiblePlacements_v2
    nvmlDeviceGetGpuInstanceProfileInfo
    nvmlDeviceGetGpuInstanceProfileInfoV
    nvmlDeviceGetGpuInstanceRemainingCapacity
    nvmlDeviceGetGpuInstances
    nvmlDeviceGetGpuOperationMode
    nvmlDeviceGetGridLicensableFeatures
    nvmlDeviceGetGridLicensableFeatures_v2
    nvmlDeviceGetGridLicensableFeatures_v3
    nvmlDeviceGetGridLicensableFeatures_v4
    nvmlDeviceGetGspFirmwareMode
    nvmlDeviceGetGspFirmwareVersion
    nvmlDeviceGetHostVgpuMode
    nvmlDeviceGetInforomConfigurationChecksum
    nvmlDeviceGetInforomImageVersion
    nvmlDeviceGetInforomVersion
    nvmlDeviceGetIrqNum
    nvmlDeviceGetJpgUtilization
    nvmlDeviceGetLastBBXFlushTime
    nvmlDeviceGetMarginTemperature
    nvmlDeviceGetMaxCustomerBoostClock
    nvmlDeviceGetMemClkMinMaxVfOffset
    nvmlDeviceGetMemClkVfOffset
    nvmlDeviceGetMemoryErrorCounter
    nvmlDeviceGetMinMaxClockOfPState
    nvmlDeviceGetMinMaxFanSpeed
    nvmlDeviceGetNumFans
    nvmlDeviceGetNumaNodeId
    nvmlDeviceGetNvLinkCapability
    nvmlDeviceGetNvLinkErrorCounter
    nvmlDeviceGetNvLinkRemoteDeviceType
    nvmlDeviceGetNvLinkRemotePciInfo
    nvmlDeviceGetNvLinkUtilizationControl
    nvmlDeviceGetNvLinkUtilizationCounter
    nvmlDeviceGetNvLinkVersion
    nvmlDeviceGetNvlinkBwMode
    nvmlDeviceGetNvlinkSupportedBwModes
    nvmlDeviceGetOfaUtilization
    nvmlDeviceGetPcieLinkMaxSpeed
    nvmlDeviceGetPcieSpeed
    nvmlDeviceGetPerformanceModes
    nvmlDeviceGetPgpuMetadataString
    nvmlDeviceGetPlatformInfo
    nvmlDeviceGetPowerManagementMode
    nvmlDeviceGetPowerSource
    nvmlDeviceGetProcessesUtilizationInfo
    nvmlDeviceGetRepairStatus
    nvmlDeviceGetRetiredPages
    nvmlDeviceGetRetiredPagesPendingStatus
    nvmlDeviceGetRetiredPages_v2
    nvmlDeviceGetRowRemapperHistogram
    nvmlDeviceGetSamples
    nvmlDeviceGetSramEccErrorStatus
    nvmlDeviceGetSupportedGraphicsClocks
    nvmlDeviceGetSupportedMemoryClocks
    nvmlDeviceGetSupportedPerformanceStates
    nvmlDeviceGetSupportedVgpus
    nvmlDeviceGetTargetFanSpeed
    nvmlDeviceGetThermalSettings
    nvmlDeviceGetTotalEnergyConsumption
    nvmlDeviceGetVgpuCapabilities
    nvmlDeviceGetVgpuHeterogeneousMode
    nvmlDeviceGetVgpuInstancesUtilizationInfo
    nvmlDeviceGetVgpuMetadata
    nvmlDeviceGetVgpuProcessUtilization
    nvmlDeviceGetVgpuProcessesUtilizationInfo
    nvmlDeviceGetVgpuSchedulerCapabilities
    nvmlDeviceGetVgpuSchedulerLog
    nvmlDeviceGetVgpuSchedulerState
    nvmlDeviceGetVgpuTypeCreatablePlacements
    nvmlDeviceGetVgpuTypeSupportedPlacements
    nvmlDeviceGetVgpuUtilization
    nvmlDeviceGetViolationStatus
    nvmlDevicePowerSmoothingActivatePresetProfile
    nvmlDevicePowerSmoothingSetState
    nvmlDevicePowerSmoothingUpdatePresetProfileParam
    nvmlDeviceResetApplicationsClocks
    nvmlDeviceResetGpuLockedClocks
    nvmlDeviceResetMemoryLockedClocks
    nvmlDeviceResetNvLinkErrorCounters
    nvmlDeviceResetNvLinkUtilizationCounter
    nvmlDeviceSetAPIRestriction
    nvmlDeviceSetAccountingMode
    nvmlDeviceSetApplicationsClocks
    nvmlDeviceSetAutoBoostedClocksEnabled
    nvmlDeviceSetClockOffsets
    nvmlDeviceSetComputeMode
    nvmlDeviceSetConfComputeUnprotectedMemSize
    nvmlDeviceSetCpuAffinity
    nvmlDeviceSetDefaultAutoBoostedClocksEnabled
    nvmlDeviceSetDefaultFanSpeed_v2
    nvmlDeviceSetDramEncryptionMode
    nvmlDeviceSetDriverModel
    nvmlDeviceSetEccMode
    nvmlDeviceSetFanControlPolicy
    nvmlDeviceSetFanSpeed_v2
    nvmlDeviceSetGpcClkVfOffset
    nvmlDeviceSetGpuLockedClocks
    nvmlDeviceSetGpuOperationMode
    nvmlDeviceSetMemClkVfOffset
    nvmlDeviceSetMemoryLockedClocks
    nvmlDeviceSetMigMode
    nvmlDeviceSetNvLinkDeviceLowPowerThreshold
    nvmlDeviceSetNvLinkUtilizationControl
    nvmlDeviceSetNvlinkBwMode
    nvmlDeviceSetPersistenceMode
    nvmlDeviceSetPowerManagementLimit
    nvmlDeviceSetPowerManagementLimit_v2
    nvmlDeviceSetTemperatureThreshold
    nvmlDeviceSetVgpuCapabilities
    nvmlDeviceSetVgpuHeterogeneousMode
    nvmlDeviceSetVgpuSchedulerState
    nvmlDeviceSetVirtualizationMode
    nvmlDeviceValidateInforom
    nvmlDeviceWorkloadPowerProfileClearRequestedProfiles
    nvmlDeviceWorkloadPowerProfileGetCurrentProfiles
    nvmlDeviceWorkloadPowerProfileGetProfilesInfo
    nvmlDeviceWorkloadPowerProfileSetRequestedProfiles
    nvmlGpmMigSampleGet
    nvmlGpmQueryIfStreamingEnabled
    nvmlGpmSampleGet
    nvmlGpmSetStreamingEnabled
}

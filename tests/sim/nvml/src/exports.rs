//! What the library exports: one row a function. Versions of one function are rows of their own,
//! because a program asks for each by its own name.

use std::ffi::{c_char, c_int, c_uint, c_ulong, c_ulonglong};

use nvml_wrapper_sys::bindings::{
    nvmlBAR1Memory_t, nvmlConfComputeMemSizeInfo_t, nvmlDeviceAddressingMode_t, nvmlEventData_t,
    nvmlFieldValue_t, nvmlGpmSupport_t, nvmlMemory_t, nvmlMemory_v2_t, nvmlPciInfo_t,
    nvmlPciInfoExt_t, nvmlProcessDetailList_t, nvmlProcessInfo_v1_t, nvmlProcessInfo_v2_t,
    nvmlProcessUtilizationSample_t, nvmlReturn_t, nvmlSystemDriverBranchInfo_t, nvmlTemperature_t,
    nvmlUUID_t, nvmlUtilization_t,
};

use crate::events::{self, EventData, EventSet};
use crate::foreign::Foreign;
use crate::handles::{self, Device};
use crate::identity::{PciInfoV1, PciInfoV2};
use crate::limits::{self, GetLimits, SetLimits};
use crate::rows::{calls, texts, unsupported, values};
use crate::status::Status;
use crate::{
    absent, fields, health, identity, links, memory, modes, processes, session, system, topology,
};

calls! {
    nvmlInit() = session::init;
    nvmlInit_v2() = session::init;
    nvmlInitWithFlags(flags: c_uint) = session::init_with_flags;
    nvmlShutdown() = session::shutdown;

    nvmlSystemGetDriverVersion(text: Foreign<c_char>, length: c_uint) = system::driver_version;
    nvmlSystemGetNVMLVersion(text: Foreign<c_char>, length: c_uint) = system::nvml_version;
    nvmlSystemGetCudaDriverVersion(version: Foreign<c_int>) = system::cuda_version;
    nvmlSystemGetCudaDriverVersion_v2(version: Foreign<c_int>) = system::cuda_version;
    nvmlSystemGetDriverBranch(branch: Foreign<nvmlSystemDriverBranchInfo_t>, length: c_uint)
        = system::driver_branch;
    nvmlSystemGetProcessName(pid: c_uint, text: Foreign<c_char>, length: c_uint)
        = system::process_name;
    nvmlSystemGetTopologyGpuSet(
        processor: c_uint, count: Foreign<c_uint>, list: Foreign<Device>,
    ) = topology::near_processor;
    nvmlSystemGetHicVersion(count: Foreign<c_uint>, list: Foreign<u8>) = absent::no_hosts;
    nvmlGetExcludedDeviceCount(count: Foreign<c_uint>) = absent::none;
    nvmlGetBlacklistDeviceCount(count: Foreign<c_uint>) = absent::none;
    nvmlGetExcludedDeviceInfoByIndex(index: c_uint, info: Foreign<u8>) = absent::no_excluded;
    nvmlGetBlacklistDeviceInfoByIndex(index: c_uint, info: Foreign<u8>) = absent::no_excluded;
    nvmlGpmQueryDeviceSupport(device: Device, support: Foreign<nvmlGpmSupport_t>)
        = absent::no_counters;
    nvmlUnitGetCount(count: Foreign<c_uint>) = system::unit_count;

    nvmlDeviceGetCount(count: Foreign<c_uint>) = identity::count;
    nvmlDeviceGetCount_v2(count: Foreign<c_uint>) = identity::count;
    nvmlDeviceGetHandleByIndex(index: c_uint, device: Foreign<Device>) = handles::by_index;
    nvmlDeviceGetHandleByIndex_v2(index: c_uint, device: Foreign<Device>) = handles::by_index;
    nvmlDeviceGetHandleByUUID(uuid: Foreign<c_char>, device: Foreign<Device>) = identity::by_uuid;
    nvmlDeviceGetHandleByUUIDV(uuid: Foreign<nvmlUUID_t>, device: Foreign<Device>)
        = identity::by_uuid_value;
    nvmlDeviceGetHandleBySerial(number: Foreign<c_char>, device: Foreign<Device>)
        = identity::by_serial;
    nvmlDeviceGetHandleByPciBusId(bus_id: Foreign<c_char>, device: Foreign<Device>)
        = identity::by_pci;
    nvmlDeviceGetHandleByPciBusId_v2(bus_id: Foreign<c_char>, device: Foreign<Device>)
        = identity::by_pci;
    nvmlDeviceGetIndex(device: Device, index: Foreign<c_uint>) = handles::index;
    nvmlDeviceGetMinorNumber(device: Device, number: Foreign<c_uint>) = handles::index;
    nvmlDeviceGetCudaComputeCapability(
        device: Device, major: Foreign<c_int>, minor: Foreign<c_int>,
    ) = identity::compute_capability;
    nvmlDeviceOnSameBoard(first: Device, second: Device, same: Foreign<c_int>)
        = topology::on_same_board;
    nvmlDeviceGetNvLinkState(device: Device, link: c_uint, state: Foreign<c_uint>)
        = links::state;
    nvmlDeviceGetNvLinkRemotePciInfo_v2(device: Device, link: c_uint, info: Foreign<nvmlPciInfo_t>)
        = links::remote;
    nvmlDeviceGetTopologyCommonAncestor(first: Device, second: Device, level: Foreign<c_uint>)
        = topology::common_ancestor;
    nvmlDeviceGetP2PStatus(first: Device, second: Device, kind: c_uint, status: Foreign<c_int>)
        = topology::peer_status;
    nvmlDeviceGetCpuAffinity(device: Device, words: c_uint, set: Foreign<c_ulong>)
        = topology::cpu_affinity;
    nvmlDeviceGetCpuAffinityWithinScope(
        device: Device, words: c_uint, set: Foreign<c_ulong>, scope: c_uint,
    ) = topology::cpu_affinity_within;
    nvmlDeviceGetMemoryAffinity(
        device: Device, words: c_uint, set: Foreign<c_ulong>, scope: c_uint,
    ) = topology::memory_affinity;
    nvmlDeviceGetTopologyNearestGpus(
        device: Device, level: c_uint, count: Foreign<c_uint>, list: Foreign<Device>,
    ) = topology::nearest;
    nvmlDeviceGetPciInfoExt(device: Device, info: Foreign<nvmlPciInfoExt_t>)
        = identity::pci_info_ext;
    nvmlDeviceGetAddressingMode(device: Device, mode: Foreign<nvmlDeviceAddressingMode_t>)
        = modes::addressing;

    nvmlDeviceGetMemoryInfo_v2(device: Device, memory: Foreign<nvmlMemory_v2_t>) = memory::info_v2;
    nvmlDeviceSetMemoryLimits_v1(device: Device, limits: Foreign<SetLimits>) = limits::set;
    nvmlDeviceGetMemoryLimits_v1(device: Device, limits: Foreign<GetLimits>) = limits::get;

    nvmlDeviceGetComputeRunningProcesses(
        device: Device, count: Foreign<c_uint>, list: Foreign<nvmlProcessInfo_v1_t>,
    ) = processes::compute_v1;
    nvmlDeviceGetComputeRunningProcesses_v2(
        device: Device, count: Foreign<c_uint>, list: Foreign<nvmlProcessInfo_v2_t>,
    ) = processes::compute_v3;
    nvmlDeviceGetComputeRunningProcesses_v3(
        device: Device, count: Foreign<c_uint>, list: Foreign<nvmlProcessInfo_v2_t>,
    ) = processes::compute_v3;
    nvmlDeviceGetGraphicsRunningProcesses(device: Device, count: Foreign<c_uint>, list: Foreign<u8>)
        = processes::none;
    nvmlDeviceGetGraphicsRunningProcesses_v2(
        device: Device, count: Foreign<c_uint>, list: Foreign<u8>,
    ) = processes::none;
    nvmlDeviceGetGraphicsRunningProcesses_v3(
        device: Device, count: Foreign<c_uint>, list: Foreign<u8>,
    ) = processes::none;
    nvmlDeviceGetMPSComputeRunningProcesses(
        device: Device, count: Foreign<c_uint>, list: Foreign<u8>,
    ) = processes::none;
    nvmlDeviceGetMPSComputeRunningProcesses_v2(
        device: Device, count: Foreign<c_uint>, list: Foreign<u8>,
    ) = processes::none;
    nvmlDeviceGetMPSComputeRunningProcesses_v3(
        device: Device, count: Foreign<c_uint>, list: Foreign<u8>,
    ) = processes::none;
    nvmlDeviceGetRunningProcessDetailList(device: Device, list: Foreign<nvmlProcessDetailList_t>)
        = processes::detail_list;
    nvmlDeviceGetProcessUtilization(
        device: Device, list: Foreign<nvmlProcessUtilizationSample_t>, count: Foreign<c_uint>,
        last_seen: c_ulonglong,
    ) = processes::utilisation;

    nvmlDeviceGetEncoderUtilization(
        device: Device, utilisation: Foreign<c_uint>, period: Foreign<c_uint>,
    ) = health::encoder;
    nvmlDeviceGetDecoderUtilization(
        device: Device, utilisation: Foreign<c_uint>, period: Foreign<c_uint>,
    ) = health::decoder;
    nvmlDeviceGetTemperature(device: Device, sensor: c_uint, degrees: Foreign<c_uint>)
        = health::temperature;
    nvmlDeviceGetTemperatureV(device: Device, temperature: Foreign<nvmlTemperature_t>)
        = health::temperature_value;
    nvmlDeviceGetTemperatureThreshold(device: Device, threshold: c_uint, degrees: Foreign<c_uint>)
        = health::temperature_threshold;
    nvmlDeviceGetPowerManagementLimitConstraints(
        device: Device, least: Foreign<c_uint>, most: Foreign<c_uint>,
    ) = health::power_constraints;
    nvmlDeviceGetClockInfo(device: Device, kind: c_uint, clock: Foreign<c_uint>) = health::clock;
    nvmlDeviceGetMaxClockInfo(device: Device, kind: c_uint, clock: Foreign<c_uint>)
        = health::max_clock;
    nvmlDeviceGetPcieThroughput(device: Device, counter: c_uint, throughput: Foreign<c_uint>)
        = health::pcie_throughput;
    nvmlDeviceGetFieldValues(device: Device, count: c_int, values: Foreign<nvmlFieldValue_t>)
        = fields::values;

    nvmlDeviceGetEccMode(device: Device, current: Foreign<c_uint>, pending: Foreign<c_uint>)
        = modes::ecc;
    nvmlDeviceGetTotalEccErrors(
        device: Device, kind: c_uint, counter: c_uint, errors: Foreign<c_ulonglong>,
    ) = modes::ecc_errors;
    nvmlDeviceGetRemappedRows(
        device: Device, corrected: Foreign<c_uint>, uncorrected: Foreign<c_uint>,
        pending: Foreign<c_uint>, failed: Foreign<c_uint>,
    ) = modes::remapped_rows;
    nvmlDeviceGetMigMode(device: Device, current: Foreign<c_uint>, pending: Foreign<c_uint>)
        = modes::mig;
    nvmlDeviceGetMigDeviceHandleByIndex(device: Device, index: c_uint, part: Foreign<Device>)
        = modes::mig_device;

    nvmlEventSetCreate(set: Foreign<EventSet>) = events::create;
    nvmlEventSetFree(set: EventSet) = events::free;
    nvmlEventSetWait(set: EventSet, data: Foreign<EventData>, milliseconds: c_uint)
        = events::wait_v1;
    nvmlEventSetWait_v2(set: EventSet, data: Foreign<nvmlEventData_t>, milliseconds: c_uint)
        = events::wait_v2;
    nvmlDeviceRegisterEvents(device: Device, kinds: c_ulonglong, set: EventSet) = events::register;
    nvmlDeviceGetSupportedEventTypes(device: Device, kinds: Foreign<c_ulonglong>)
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

//! Identity of a card: its names, and how to find it by one of them.

use std::ffi::{CStr, c_char, c_int, c_uint};

use apportion_sim_machine::{CardSnapshot, PciAddress};
use nvml_wrapper_sys::bindings::{
    nvmlPciInfo_t, nvmlPciInfoExt_t, nvmlUUID_t, nvmlUUIDType_t_NVML_UUID_TYPE_ASCII as ASCII,
    nvmlUUIDType_t_NVML_UUID_TYPE_BINARY as BINARY,
};

use crate::foreign::{ForeignPointer, characters};
use crate::handles::{self, DeviceHandle};
use crate::memory::version_word;
use crate::model;
use crate::session;
use crate::status::NvmlStatus;

/// NVIDIA's PCI vendor number, in the low half of the device id.
const VENDOR: u32 = 0x10de;

pub(crate) fn count(count: ForeignPointer<c_uint>) -> Result<(), NvmlStatus> {
    let cards = session::snapshot()?.cards.len();
    count.put(c_uint::try_from(cards).map_err(|_| NvmlStatus::Unknown)?)
}

pub(crate) fn by_uuid(
    uuid: ForeignPointer<c_char>,
    device: ForeignPointer<DeviceHandle>,
) -> Result<(), NvmlStatus> {
    let uuid = uuid.text()?;
    handles::find(device, |card| card.uuid == uuid)
}

/// `nvmlDeviceGetHandleByUUIDV`: as text or as 16 bytes.
pub(crate) fn by_uuid_value(
    value: ForeignPointer<nvmlUUID_t>,
    device: ForeignPointer<DeviceHandle>,
) -> Result<(), NvmlStatus> {
    let value = value.get()?;
    if value.version != version_word::<nvmlUUID_t>(1) {
        return Err(NvmlStatus::VersionMismatch);
    }
    // SAFETY: both forms are arrays of bytes, so any bytes are valid as either.
    let characters = unsafe { value.value.str_ };
    let bytes = characters.map(c_char::to_ne_bytes).map(|[byte]| byte);
    match value.type_ {
        ASCII => {
            let text =
                CStr::from_bytes_until_nul(&bytes).map_err(|_| NvmlStatus::InvalidArgument)?;
            handles::find(device, |card| card.uuid.as_bytes() == text.to_bytes())
        }
        BINARY => handles::find(device, |card| bytes.starts_with(&bytes_of(&card.uuid))),
        _ => Err(NvmlStatus::InvalidArgument),
    }
}

/// The 16 bytes that a UUID's text stands for.
fn bytes_of(uuid: &str) -> [u8; 16] {
    let digits = uuid.trim_start_matches("GPU-").replace('-', "");
    u128::from_str_radix(&digits, 16)
        .unwrap_or_default()
        .to_be_bytes()
}

pub(crate) fn by_serial(
    number: ForeignPointer<c_char>,
    device: ForeignPointer<DeviceHandle>,
) -> Result<(), NvmlStatus> {
    let number = number.text()?;
    handles::find(device, |card| serial(card).is_ok_and(|own| own == number))
}

pub(crate) fn by_pci(
    bus_id: ForeignPointer<c_char>,
    device: ForeignPointer<DeviceHandle>,
) -> Result<(), NvmlStatus> {
    let address = parse_bus_id(&bus_id.text()?).ok_or(NvmlStatus::InvalidArgument)?;
    handles::find(device, |card| card.pci == address)
}

pub(crate) fn name(card: &CardSnapshot) -> Result<String, NvmlStatus> {
    Ok(card.name.clone())
}

pub(crate) fn uuid(card: &CardSnapshot) -> Result<String, NvmlStatus> {
    Ok(card.uuid.clone())
}

/// `nvmlDeviceGetSerial`: thirteen digits, here those of the UUID's end.
pub(crate) fn serial(card: &CardSnapshot) -> Result<String, NvmlStatus> {
    let (_, end) = card.uuid.rsplit_once('-').ok_or(NvmlStatus::NotSupported)?;
    let number = u64::from_str_radix(end, 16).map_err(|_| NvmlStatus::NotSupported)?;
    Ok(format!("{:013}", number % 10_u64.pow(13)))
}

pub(crate) fn vbios(card: &CardSnapshot) -> Result<String, NvmlStatus> {
    let (major, minor) = card.compute_capability;
    Ok(format!("9{major}.0{minor}.45.00.01"))
}

/// The result of the first version of `nvmlDeviceGetPciInfo`: its callers have no room for more.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct PciInfoV1 {
    bus_id: [c_char; 16],
    place: [c_uint; 3],
    device_id: c_uint,
}

/// The result of its second version.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct PciInfoV2 {
    first: PciInfoV1,
    subsystem_id: c_uint,
    reserved: [c_uint; 4],
}

pub(crate) fn pci_info_v1(card: &CardSnapshot) -> Result<PciInfoV1, NvmlStatus> {
    let PciAddress {
        domain,
        bus,
        device,
    } = card.pci;
    Ok(PciInfoV1 {
        bus_id: characters(&format!("{domain:04X}:{bus:02X}:{device:02X}.0")),
        place: [domain, bus, device],
        device_id: (model::of(card).pci_device << 16) | VENDOR,
    })
}

pub(crate) fn pci_info_v2(card: &CardSnapshot) -> Result<PciInfoV2, NvmlStatus> {
    let first = pci_info_v1(card)?;
    let subsystem_id = first.device_id;
    Ok(PciInfoV2 {
        first,
        subsystem_id,
        reserved: [0; 4],
    })
}

/// `nvmlDeviceGetPciInfo_v3`: with a bus id that has room for a long domain.
pub(crate) fn pci_info_v3(card: &CardSnapshot) -> Result<nvmlPciInfo_t, NvmlStatus> {
    let PciInfoV1 {
        bus_id,
        place: [domain, bus, device],
        device_id,
    } = pci_info_v1(card)?;
    Ok(nvmlPciInfo_t {
        busIdLegacy: bus_id,
        domain,
        bus,
        device,
        pciDeviceId: device_id,
        pciSubSystemId: device_id,
        busId: characters(&format!("{domain:08X}:{bus:02X}:{device:02X}.0")),
    })
}

/// `nvmlDeviceGetPciInfoExt`: the same with the device's class.
pub(crate) fn pci_info_ext(
    device: DeviceHandle,
    info: ForeignPointer<nvmlPciInfoExt_t>,
) -> Result<(), NvmlStatus> {
    const DISPLAY_CONTROLLER: c_uint = 3;
    const WITHOUT_SCREEN: c_uint = 2;
    let known = pci_info_v3(&device.card()?)?;
    let version = version_word::<nvmlPciInfoExt_t>(1);
    if info.get()?.version != version {
        return Err(NvmlStatus::VersionMismatch);
    }
    info.put(nvmlPciInfoExt_t {
        version,
        domain: known.domain,
        bus: known.bus,
        device: known.device,
        pciDeviceId: known.pciDeviceId,
        pciSubSystemId: known.pciSubSystemId,
        baseClass: DISPLAY_CONTROLLER,
        subClass: WITHOUT_SCREEN,
        busId: known.busId,
    })
}

pub(crate) fn compute_capability(
    device: DeviceHandle,
    major: ForeignPointer<c_int>,
    minor: ForeignPointer<c_int>,
) -> Result<(), NvmlStatus> {
    let capability = device.card()?.compute_capability;
    major.put(capability.0)?;
    minor.put(capability.1)
}

pub(crate) fn architecture(card: &CardSnapshot) -> Result<c_uint, NvmlStatus> {
    Ok(model::of(card).architecture)
}

/// `nvmlDeviceGetBrand`, derived from the product's name.
pub(crate) fn brand(card: &CardSnapshot) -> Result<c_uint, NvmlStatus> {
    const BRANDS: [(&str, c_uint); 4] = [("Tesla", 2), ("GeForce", 5), ("TITAN", 6), ("RTX", 13)];
    const NVIDIA: c_uint = 14;
    let found = BRANDS.iter().find(|(word, _)| card.name.contains(word));
    Ok(found.map_or(NVIDIA, |(_, brand)| *brand))
}

pub(crate) fn cores(card: &CardSnapshot) -> Result<c_uint, NvmlStatus> {
    Ok(card.multiprocessors * model::of(card).cores_per_multiprocessor)
}

pub(crate) fn part_number(card: &CardSnapshot) -> Result<String, NvmlStatus> {
    Ok(format!("900-2{:04X}-0000-000", model::of(card).pci_device))
}

pub(crate) fn bus_type(_: &CardSnapshot) -> Result<c_uint, NvmlStatus> {
    const PCIE: c_uint = 2;
    Ok(PCIE)
}

/// `nvmlDeviceGetModuleId`: the slot on the baseboard, here derived from the bus.
pub(crate) fn module(card: &CardSnapshot) -> Result<c_uint, NvmlStatus> {
    Ok(card.pci.bus >> 3)
}

pub(crate) fn board(card: &CardSnapshot) -> Result<c_uint, NvmlStatus> {
    Ok((card.pci.domain << 16) | (card.pci.bus << 8))
}

/// `[domain:]bus:device[.function]` in hexadecimal, in any of the lengths that are in use.
fn parse_bus_id(text: &str) -> Option<PciAddress> {
    let text = text.split_once('.').map_or(text, |(address, _)| address);
    let mut parts = text
        .rsplit(':')
        .map(|part| u32::from_str_radix(part, 16).ok());
    let device = parts.next()??;
    let bus = parts.next()??;
    let domain = parts.next().unwrap_or(Some(0))?;
    parts.next().is_none().then_some(PciAddress {
        domain,
        bus,
        device,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bus_id_may_have_a_short_a_long_or_no_domain() {
        let address = PciAddress {
            domain: 0,
            bus: 0x3b,
            device: 0,
        };
        for text in ["00000000:3B:00.0", "0000:3b:00.0", "3b:00.0", "3b:00"] {
            assert_eq!(parse_bus_id(text), Some(address), "{text}");
        }
    }

    #[test]
    fn a_bus_id_of_other_words_is_none() {
        for text in ["", "3b", "GPU-1", "0:0:3b:00.0", "zz:00.0"] {
            assert_eq!(parse_bus_id(text), None, "{text}");
        }
    }
}

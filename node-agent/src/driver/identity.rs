//! What a card is, in the words of NVIDIA's DRA driver, for the selectors of resource claims. What NVML or the kernel
//! does not report is left out.

use std::fs;
use std::path::Path;

use nvml_wrapper::Device;
use nvml_wrapper::enum_wrappers::device::Brand;
use nvml_wrapper::enums::device::DeviceArchitecture;

/// Where the kernel lists PCI devices, as links to their places in the tree of buses.
const PCI_DEVICES: &str = "/sys/bus/pci/devices";

/// What a card is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CardIdentity {
    pub(crate) brand: Option<String>,
    pub(crate) architecture: Option<String>,
    /// Major and minor.
    pub(crate) compute_capability: Option<(i32, i32)>,
    /// Domain, bus, device and function, such as `0000:3b:00.0`.
    pub(crate) pci_bus_id: Option<String>,
    /// The root of its tree of buses, such as `pci0000:3a`.
    pub(crate) pcie_root: Option<String>,
}

impl CardIdentity {
    pub(super) fn read(device: &Device<'_>) -> Self {
        let capability = device.cuda_compute_capability().ok();
        let pci = device.pci_info().ok();
        let pci_bus_id =
            pci.map(|pci| format!("{:04x}:{:02x}:{:02x}.0", pci.domain, pci.bus, pci.device));
        Self {
            brand: device
                .brand()
                .ok()
                .map(|brand| brand_word(&brand).to_owned()),
            architecture: device.architecture().ok().map(|of| architecture_words(&of)),
            compute_capability: capability.map(|of| (of.major, of.minor)),
            pcie_root: pci_bus_id.as_deref().and_then(pcie_root),
            pci_bus_id,
        }
    }
}

/// The first folder of the device's place below `/sys/devices`.
fn pcie_root(bus_id: &str) -> Option<String> {
    let place = fs::read_link(Path::new(PCI_DEVICES).join(bus_id)).ok()?;
    let mut folders = place.iter().filter_map(|folder| folder.to_str());
    folders
        .find(|folder| folder.starts_with("pci"))
        .map(str::to_owned)
}

/// NVIDIA's DRA driver has other words than NVML for one architecture.
fn architecture_words(of: &DeviceArchitecture) -> String {
    match of {
        DeviceArchitecture::Ada => "Ada Lovelace".to_owned(),
        other => other.to_string(),
    }
}

fn brand_word(brand: &Brand) -> &'static str {
    match brand {
        Brand::Quadro => "Quadro",
        Brand::Tesla => "Tesla",
        Brand::NVS => "NVS",
        Brand::GRID => "Grid",
        Brand::GeForce => "GeForce",
        Brand::Titan => "Titan",
        Brand::VApps => "NvidiaVApps",
        Brand::VPC => "NvidiaVPC",
        Brand::VCS => "NvidiaVCS",
        Brand::VWS => "NvidiaVWS",
        Brand::CloudGaming | Brand::VGaming => "NvidiaCloudGaming",
        Brand::QuadroRTX => "QuadroRTX",
        Brand::NvidiaRTX => "NvidiaRTX",
        Brand::Nvidia => "Nvidia",
        Brand::GeForceRTX => "GeForceRTX",
        Brand::TitanRTX => "TitanRTX",
        Brand::Unknown => "Unknown",
    }
}

//! A grant inside a container: what is mounted where, and which driver files come with it.
//!
//! The account is at a fixed path and no variable names it, so changing a variable cannot hide it. The library is
//! preloaded in two ways. `LD_PRELOAD`, if set through CDI, cannot be replaced by the tenant's own value.
//! `/etc/ld.so.preload` also reaches programs that start with an empty environment. The second can be turned off,
//! because a container with a read-only volume at `/etc` cannot start with it.
//!
//! # Simulated cards
//! The driver's libraries are mounted in the default loader folders of Debian and Red Hat, which need no variable or
//! cache. A simulated card is the driver's socket, mounted under the card's name, like the device file of a real
//! card. A card that is not mounted is not visible.

use apportion_abi::names::{ENV_GRANT, ENV_VISIBLE};
use apportion_abi::paths::{
    BURST_FILE, CONTAINER_ACCOUNT, CONTAINER_SIM_CARDS, LIMITS_FILE, PRELOAD_LIBRARY, SIM_CUDA,
    SIM_NVML, USAGE_FILE, WAKE_FIFO,
};

use crate::container_edits::{ContainerEdits, ContainerMount, DeviceNode};
use crate::grant::{Grant, GrantedCard};

/// Host files that containers get beside their account and the library.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerFiles {
    /// The container's `/etc/ld.so.preload`, which names the library's path in the container.
    pub preload_list: Option<String>,
    /// The folder on the host whose `dev` has the driver's device files, such as `/run/nvidia/driver`; empty for the
    /// host's own `/dev`.
    pub device_root: String,
    /// Those of [`CONTROL_DEVICES`] that the host is known not to have. A runtime creates no container with a missing one.
    pub missing_devices: Vec<&'static str>,
    /// Where the driver's files come from.
    pub driver: DriverFiles,
}

/// How a container gets its cards and the driver's files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum DriverFiles {
    /// We add the device files; NVIDIA's runtime adds the libraries if the container runs with it.
    #[default]
    Devices,
    /// We add the device files and the libraries. The runtime adds nothing.
    Host {
        /// The driver's libraries on the host. They keep their names in the container.
        libraries: Vec<String>,
    },
    /// The NVIDIA toolkit's CDI spec, merged into ours, adds everything. The runtime adds nothing.
    Toolkit,
    /// Simulated cards.
    Simulated {
        /// The folder with the simulated driver's libraries.
        libraries: String,
        /// The socket at which the simulated driver listens.
        socket: String,
    },
}

/// The library must be executable and the account must not. The container may write only the usage file, and the files
/// in which the programs of an elastic share ask for more.
const LIBRARY_OPTIONS: &[&str] = &["ro", "bind", "exec", "nosuid", "nodev"];
const FILE_OPTIONS: &[&str] = &["ro", "bind", "noexec", "nosuid", "nodev"];
const USAGE_OPTIONS: &[&str] = &["rw", "bind", "noexec", "nosuid", "nodev"];

/// The files that only the accounts of elastic shares have.
const OF_ELASTIC: [&str; 2] = [BURST_FILE, WAKE_FIFO];

/// The device files that every CUDA program needs beside its cards.
pub const CONTROL_DEVICES: &[&str] =
    &["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"];

/// The default library folders of the dynamic loaders.
#[cfg(target_arch = "aarch64")]
const LOADER_FOLDERS: &[&str] = &["/usr/lib64", "/usr/lib/aarch64-linux-gnu"];
#[cfg(not(target_arch = "aarch64"))]
const LOADER_FOLDERS: &[&str] = &["/usr/lib64", "/usr/lib/x86_64-linux-gnu"];

/// Where NVIDIA's runtime looks for the names of requested cards, if it is configured to.
const RUNTIME_DEVICES: &str = "/var/run/nvidia-container-devices";

const PRELOAD_LIST: &str = "/etc/ld.so.preload";

/// The edits of `grant` in a container.
pub(crate) fn in_container(grant: &Grant, files: &ContainerFiles) -> ContainerEdits {
    let mut edits = with_cards(grant, files);
    let mut mounts = account_mounts(grant);
    let list = files.preload_list.clone();
    mounts.extend(list.map(|host| mount(host, PRELOAD_LIST.to_owned(), FILE_OPTIONS)));
    edits.mounts.splice(0..0, mounts);
    edits.env.insert(1, ("LD_PRELOAD", inside(PRELOAD_LIBRARY)));
    edits
}

/// The edits for a container with whole cards: no library and no account to charge. The limits page is mounted for
/// programs that want to read it. The agent also uses it to tell the pod's containers from its sandbox.
pub(crate) fn with_whole_cards(grant: &Grant, files: &ContainerFiles) -> ContainerEdits {
    let mut edits = with_cards(grant, files);
    let limits = format!("{}/{LIMITS_FILE}", grant.account);
    let limits = mount(limits, inside(LIMITS_FILE), FILE_OPTIONS);
    edits.mounts.insert(0, limits);
    edits
}

/// The cards and the driver's files.
fn with_cards(grant: &Grant, files: &ContainerFiles) -> ContainerEdits {
    let mut mounts = Vec::new();
    let visible = match files.driver {
        // The card is not known yet: request the driver's libraries and no card.
        DriverFiles::Devices if grant.cards.is_empty() => "none".to_owned(),
        DriverFiles::Devices => grant.uuids(),
        DriverFiles::Host { .. } | DriverFiles::Toolkit | DriverFiles::Simulated { .. } => {
            "void".to_owned()
        }
    };
    let devices = match &files.driver {
        DriverFiles::Devices => {
            mounts.extend(grant.cards.iter().map(asked_by_mount));
            device_nodes(grant, files)
        }
        DriverFiles::Host { libraries } => {
            mounts.extend(libraries.iter().flat_map(|host| in_loader_folders(host)));
            device_nodes(grant, files)
        }
        DriverFiles::Toolkit => Vec::new(),
        DriverFiles::Simulated { libraries, socket } => {
            mounts.extend(simulated_mounts(grant, libraries, socket));
            Vec::new()
        }
    };
    let env = vec![(ENV_GRANT, grant.id.clone()), (ENV_VISIBLE, visible)];
    ContainerEdits {
        env,
        mounts,
        devices,
    }
}

fn account_mounts(grant: &Grant) -> Vec<ContainerMount> {
    let account = |file: &str| format!("{}/{file}", grant.account);
    let library = grant.library.clone();
    let mut mounts = vec![
        mount(library, inside(PRELOAD_LIBRARY), LIBRARY_OPTIONS),
        mount(account(LIMITS_FILE), inside(LIMITS_FILE), FILE_OPTIONS),
        mount(account(USAGE_FILE), inside(USAGE_FILE), USAGE_OPTIONS),
    ];
    if grant.is_elastic {
        let asking = OF_ELASTIC.map(|file| mount(account(file), inside(file), USAGE_OPTIONS));
        mounts.extend(asking);
    }
    mounts
}

/// What stands in a slot for the files that only elastic shares have: the usage file, which the container has anyway. The
/// library of a fixed share does not look for them.
pub(crate) fn absent_files(grant: &Grant) -> impl Iterator<Item = ContainerMount> {
    let is_elastic = grant.is_elastic;
    let absent = OF_ELASTIC.into_iter().filter(move |_| !is_elastic);
    let usage = format!("{}/{USAGE_FILE}", grant.account);
    absent.map(move |file| mount(usage.clone(), inside(file), USAGE_OPTIONS))
}

fn device_nodes(grant: &Grant, files: &ContainerFiles) -> Vec<DeviceNode> {
    let cards = grant
        .cards
        .iter()
        .filter_map(|card| card.minor)
        .map(|minor| format!("/dev/nvidia{minor}"));
    let control = CONTROL_DEVICES
        .iter()
        .filter(|path| !files.missing_devices.contains(path));
    let paths = cards.chain(control.map(|path| (*path).to_owned()));
    paths
        .map(|path| DeviceNode {
            host_path: format!("{}{path}", files.device_root),
            path,
        })
        .collect()
}

fn simulated_mounts(grant: &Grant, libraries: &str, socket: &str) -> Vec<ContainerMount> {
    let libraries = [SIM_CUDA, SIM_NVML].map(|library| format!("{libraries}/{library}"));
    let libraries = libraries
        .into_iter()
        .flat_map(|host| in_loader_folders(&host));
    let cards = grant.cards.iter().map(|card| {
        let place = format!("{CONTAINER_SIM_CARDS}/{}", card.uuid);
        mount(socket.to_owned(), place, FILE_OPTIONS)
    });
    libraries.chain(cards).collect()
}

/// A library of the host in the loader folders.
fn in_loader_folders(host: &str) -> Vec<ContainerMount> {
    let name = host.rsplit('/').next().unwrap_or_default();
    LOADER_FOLDERS
        .iter()
        .map(|folder| mount(host.to_owned(), format!("{folder}/{name}"), LIBRARY_OPTIONS))
        .collect()
}

/// Requests a card from an NVIDIA runtime that ignores the variable in unprivileged containers.
fn asked_by_mount(card: &GrantedCard) -> ContainerMount {
    let place = format!("{RUNTIME_DEVICES}/{}", card.uuid);
    mount("/dev/null".to_owned(), place, &["ro", "bind"])
}

fn inside(file: &str) -> String {
    format!("{CONTAINER_ACCOUNT}/{file}")
}

fn mount(
    host_path: String,
    container_path: String,
    options: &'static [&'static str],
) -> ContainerMount {
    ContainerMount {
        host_path,
        container_path,
        options,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::edits::{EditTarget, edits};
    use apportion_abi::{Bytes, Share};

    fn edited(files: &ContainerFiles) -> ContainerEdits {
        edits(&grant(), EditTarget::Container(files))
    }

    fn grant() -> Grant {
        let card = |minor: u32| GrantedCard {
            uuid: format!("GPU-{minor}"),
            minor: Some(minor),
            cuda_ordinal: None,
            limit: Bytes::from_mib(1000),
            allocatable: Bytes::from_mib(1000),
        };
        Grant {
            id: "1-1".into(),
            account: "/run/apportion/accounts/1-1".into(),
            library: "/usr/lib/apportion/libapportion_cuda.so".into(),
            share: Share::Whole,
            cards: vec![card(0), card(1)],
            is_elastic: false,
            driver_limit: None,
        }
    }

    fn simulated() -> ContainerFiles {
        let driver = DriverFiles::Simulated {
            libraries: "/opt/sim".into(),
            socket: "/run/driver.sock".into(),
        };
        ContainerFiles {
            preload_list: Some("/run/apportion/preload".into()),
            driver,
            ..ContainerFiles::default()
        }
    }

    fn value<'a>(edits: &'a ContainerEdits, name: &str) -> &'a str {
        let found = edits.env.iter().find(|(key, _)| *key == name);
        found.map_or("", |(_, value)| value)
    }

    #[test]
    fn an_elastic_share_can_also_write_where_it_asks_for_more() {
        let elastic = Grant {
            is_elastic: true,
            ..grant()
        };
        let files = simulated();
        let edits = edits(&elastic, EditTarget::Container(&files));
        let mounts = edits.mounts.iter();
        let writable = mounts.filter(|m| !m.options.contains(&"ro"));
        let writable: Vec<_> = writable.map(|m| m.container_path.as_str()).collect();
        let expected = ["/.apportion/usage", "/.apportion/burst", "/.apportion/wake"];
        assert_eq!(writable, expected);
    }

    #[test]
    fn a_container_can_write_its_usage_only() {
        let edits = edited(&simulated());
        let mounts = edits.mounts.iter();
        let writable: Vec<_> = mounts.filter(|m| !m.options.contains(&"ro")).collect();
        assert_eq!(writable.len(), 1);
        assert_eq!(writable[0].container_path, "/.apportion/usage");
        let preload = value(&edits, "LD_PRELOAD");
        assert!(edits.mounts.iter().any(|m| m.container_path == preload));
    }

    #[test]
    fn a_container_opens_the_devices_of_its_cards_only() {
        let edits = edited(&ContainerFiles::default());
        let paths: Vec<_> = edits
            .devices
            .iter()
            .map(|device| device.path.as_str())
            .collect();
        assert_eq!(
            paths[..3],
            ["/dev/nvidia0", "/dev/nvidia1", "/dev/nvidiactl"]
        );
        assert_eq!(value(&edits, "NVIDIA_VISIBLE_DEVICES"), "GPU-0,GPU-1");
    }

    #[test]
    fn without_nvidias_runtime_the_libraries_lie_where_loaders_look() {
        let edits = edited(&ContainerFiles {
            preload_list: None,
            device_root: "/run/nvidia/driver".into(),
            missing_devices: vec!["/dev/nvidia-uvm-tools"],
            driver: DriverFiles::Host {
                libraries: vec!["/run/nvidia/driver/usr/lib64/libcuda.so.1".into()],
            },
        });
        let mut mounts = edits.mounts.iter();
        assert!(mounts.any(|m| m.container_path == "/usr/lib64/libcuda.so.1"));
        assert_eq!(edits.devices[0].path, "/dev/nvidia0");
        let device = &edits.devices[0].host_path;
        assert_eq!(device, "/run/nvidia/driver/dev/nvidia0");
        let mut devices = edits.devices.iter();
        assert!(!devices.any(|device| device.path == "/dev/nvidia-uvm-tools"));
        assert_eq!(value(&edits, "NVIDIA_VISIBLE_DEVICES"), "void");
    }

    #[test]
    fn nvidias_runtime_is_asked_by_variable_and_by_mount() {
        let edits = edited(&ContainerFiles::default());
        let mut mounts = edits.mounts.iter();
        let place = "/var/run/nvidia-container-devices/GPU-1";
        assert!(mounts.any(|m| m.container_path == place && m.host_path == "/dev/null"));
    }

    #[test]
    fn where_the_toolkit_describes_the_cards_the_runtime_adds_none() {
        let edits = edited(&ContainerFiles {
            driver: DriverFiles::Toolkit,
            ..ContainerFiles::default()
        });
        assert_eq!(edits.devices, []);
        assert_eq!(value(&edits, "NVIDIA_VISIBLE_DEVICES"), "void");
    }

    #[test]
    fn a_simulated_card_is_there_by_its_name_and_its_libraries_where_loaders_look() {
        let edits = edited(&simulated());
        let places: Vec<_> = edits
            .mounts
            .iter()
            .map(|m| m.container_path.as_str())
            .collect();
        for place in [
            "/etc/ld.so.preload",
            "/usr/lib64/libcuda.so.1",
            "/.apportion/sim/GPU-0",
            "/.apportion/sim/GPU-1",
        ] {
            assert!(places.contains(&place), "{place} is not in {places:?}");
        }
    }

    #[test]
    fn a_container_with_whole_cards_has_the_cards_and_nothing_that_limits_it() {
        for files in [simulated(), ContainerFiles::default()] {
            let (whole, shared) = (edits(&grant(), EditTarget::Whole(&files)), edited(&files));
            assert_eq!(whole.devices, shared.devices);
            let names: Vec<_> = whole.env.iter().map(|(name, _)| *name).collect();
            assert_eq!(names, [ENV_GRANT, "NVIDIA_VISIBLE_DEVICES"]);
            assert_eq!(
                whole.mounts.iter().find(|m| !m.options.contains(&"ro")),
                None
            );
            assert!(
                whole
                    .mounts
                    .iter()
                    .any(|m| m.container_path == "/.apportion/limits")
            );
            assert!(
                !whole
                    .mounts
                    .iter()
                    .any(|m| m.container_path.contains("libapportion"))
            );
            let cards = |edits: &ContainerEdits| {
                let mounts = edits.mounts.iter();
                mounts
                    .filter(|m| m.container_path.contains("/sim/"))
                    .count()
            };
            assert_eq!(cards(&whole), cards(&shared));
        }
    }

    #[test]
    fn nothing_in_a_containers_environment_names_its_account() {
        let edits = edited(&simulated());
        assert!(
            edits
                .env
                .iter()
                .all(|(_, value)| !value.contains("/accounts/"))
        );
    }
}

//! Rendering a grant.
//!
//! The words are those of a CDI file (variables, mounts, device nodes), from which a device plugin's
//! answer and an adjustment by NRI are translations.

use apportion_abi::place::{
    CONTAINER_ACCOUNT, ENV_ACCOUNT, LIMITS_FILE, PRELOAD_LIBRARY, USAGE_FILE,
};

use crate::grant::Grant;

/// Where the program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target<'a> {
    /// As a process of this machine, with the `LD_PRELOAD` that it would have had.
    Host {
        /// The value so far, if any; it is kept behind ours.
        preload: Option<&'a str>,
    },
    /// In a container, which gets the files mounted.
    Container,
}

/// What is changed for the program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerEdits {
    /// Variables, each name once.
    pub env: Vec<(&'static str, String)>,
    /// Files of the host that appear in the container.
    pub mounts: Vec<Mount>,
    /// Device files that the container may open.
    pub devices: Vec<DeviceNode>,
}

/// One bind mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// The file on the host.
    pub host_path: String,
    /// Its place in the container.
    pub container_path: String,
    /// The mount's options.
    pub options: &'static [&'static str],
}

/// One device file, at the same place on the host and in the container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceNode {
    /// Where it is.
    pub path: String,
}

/// The library runs code; the account must not; only usage is the container's to write.
const LIBRARY_OPTIONS: &[&str] = &["ro", "bind", "exec", "nosuid", "nodev"];
const LIMITS_OPTIONS: &[&str] = &["ro", "bind", "noexec", "nosuid", "nodev"];
const USAGE_OPTIONS: &[&str] = &["rw", "bind", "noexec", "nosuid", "nodev"];

/// The device files that every user of CUDA needs beside its cards.
const CONTROL_DEVICES: &[&str] = &["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"];

/// Everything that `grant` changes for a program that runs at `target`.
#[must_use]
pub fn edits(grant: &Grant, target: Target<'_>) -> ContainerEdits {
    let mut edits = match target {
        Target::Host { preload } => on_host(grant, preload),
        Target::Container => in_container(grant),
    };
    edits
        .env
        .extend(grant.portion().map(|value| ("GPU_PORTION", value)));
    edits.env.extend(
        grant
            .memory_limit()
            .map(|value| ("CUDA_DEVICE_MEMORY_LIMIT", value)),
    );
    edits
}

fn on_host(grant: &Grant, preload: Option<&str>) -> ContainerEdits {
    let preload = match preload.filter(|list| !list.is_empty()) {
        Some(list) => format!("{}:{list}", grant.library),
        None => grant.library.clone(),
    };
    let env = vec![
        ("LD_PRELOAD", preload),
        (ENV_ACCOUNT, grant.account.clone()),
        ("CUDA_VISIBLE_DEVICES", grant.uuids()),
        ("NVIDIA_VISIBLE_DEVICES", grant.uuids()),
    ];
    ContainerEdits {
        env,
        ..ContainerEdits::default()
    }
}

/// The account is found by its fixed place: no variable names it, so none can be changed to hide it.
fn in_container(grant: &Grant) -> ContainerEdits {
    let inside = |file: &str| format!("{CONTAINER_ACCOUNT}/{file}");
    let account = |file: &str| format!("{}/{file}", grant.account);
    let mount = |host_path, file: &str, options| Mount {
        host_path,
        container_path: inside(file),
        options,
    };
    let cards = grant.cards.iter().filter_map(|card| card.minor);
    let cards = cards.map(|minor| format!("/dev/nvidia{minor}"));
    let control = CONTROL_DEVICES.iter().map(|path| (*path).to_owned());
    ContainerEdits {
        env: vec![
            ("LD_PRELOAD", inside(PRELOAD_LIBRARY)),
            ("NVIDIA_VISIBLE_DEVICES", grant.uuids()),
        ],
        mounts: vec![
            mount(grant.library.clone(), PRELOAD_LIBRARY, LIBRARY_OPTIONS),
            mount(account(LIMITS_FILE), LIMITS_FILE, LIMITS_OPTIONS),
            mount(account(USAGE_FILE), USAGE_FILE, USAGE_OPTIONS),
        ],
        devices: cards
            .chain(control)
            .map(|path| DeviceNode { path })
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grant::GrantedCard;
    use apportion_abi::{Bytes, Share};

    fn grant(share: Share, limits: &[u64]) -> Grant {
        let card = |(minor, limit): (u32, &u64)| GrantedCard {
            uuid: format!("GPU-{minor}"),
            minor: Some(minor),
            limit: Bytes::from_mib(*limit),
            allocatable: Bytes::from_mib(1000),
        };
        Grant {
            account: "/run/apportion/accounts/a1".into(),
            library: "/usr/lib/apportion/libapportion_cuda.so".into(),
            share,
            cards: (0..).zip(limits).map(card).collect(),
        }
    }

    fn value(edits: &ContainerEdits, name: &str) -> Option<String> {
        let mut values = edits.env.iter().filter(|(key, _)| *key == name);
        let value = values.next().map(|(_, value)| value.clone());
        assert_eq!(values.next(), None, "{name} is set twice");
        value
    }

    #[test]
    fn a_process_keeps_what_it_preloaded_behind_our_library() {
        let grant = grant(Share::Memory(Bytes::from_mib(250)), &[250]);
        let with = |preload| value(&edits(&grant, Target::Host { preload }), "LD_PRELOAD");
        assert_eq!(with(None), Some(grant.library.clone()));
        assert_eq!(with(Some("")), Some(grant.library.clone()));
        let both = format!("{}:/usr/lib/libjemalloc.so", grant.library);
        assert_eq!(with(Some("/usr/lib/libjemalloc.so")), Some(both));
    }

    #[test]
    fn a_process_sees_its_cards_and_finds_its_account() {
        let grant = grant(Share::Memory(Bytes::from_mib(250)), &[250, 250]);
        let edits = edits(&grant, Target::Host { preload: None });
        assert_eq!(
            value(&edits, "CUDA_VISIBLE_DEVICES").unwrap(),
            "GPU-0,GPU-1"
        );
        assert_eq!(value(&edits, "APPORTION_ACCOUNT").unwrap(), grant.account);
        assert!(edits.mounts.is_empty() && edits.devices.is_empty());
    }

    #[test]
    fn kais_variables_say_what_kai_says() {
        let half = Share::Fraction("0.375".parse().unwrap());
        for (share, limit, portion) in [
            (half, 374, "0.38"),
            (Share::Memory(Bytes::from_mib(250)), 250, "0.25"),
            (Share::Whole, 1000, "1.00"),
        ] {
            for target in [Target::Host { preload: None }, Target::Container] {
                let edits = edits(&grant(share, &[limit]), target);
                assert_eq!(value(&edits, "GPU_PORTION").unwrap(), portion);
                let memory = value(&edits, "CUDA_DEVICE_MEMORY_LIMIT").unwrap();
                assert_eq!(memory, format!("{limit}m"));
            }
        }
    }

    #[test]
    fn a_container_can_write_its_usage_only() {
        let edits = edits(&grant(Share::Whole, &[1000]), Target::Container);
        let writable: Vec<_> = edits
            .mounts
            .iter()
            .filter(|m| !m.options.contains(&"ro"))
            .collect();
        assert_eq!(writable.len(), 1);
        assert_eq!(writable[0].container_path, "/.apportion/usage");
        let preload = value(&edits, "LD_PRELOAD").unwrap();
        assert!(edits.mounts.iter().any(|m| m.container_path == preload));
    }

    #[test]
    fn a_container_opens_the_devices_of_its_cards_only() {
        let edits = edits(&grant(Share::Whole, &[1000, 1000]), Target::Container);
        let paths: Vec<_> = edits
            .devices
            .iter()
            .map(|device| device.path.as_str())
            .collect();
        assert_eq!(
            paths[..3],
            ["/dev/nvidia0", "/dev/nvidia1", "/dev/nvidiactl"]
        );
    }

    #[test]
    fn nothing_in_a_containers_environment_names_its_account() {
        let grant = grant(Share::Whole, &[1000]);
        let edits = edits(&grant, Target::Container);
        assert!(
            edits
                .env
                .iter()
                .all(|(_, value)| !value.contains(&grant.account))
        );
    }
}

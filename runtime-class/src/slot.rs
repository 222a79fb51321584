//! A grant for a runtime without CDI: what the kubelet is told of a slot before the pod is known, and what is put
//! behind the slot later.
//!
//! `Allocate` is answered once for a container of a pod, for all its restarts. The answer names only paths in the
//! slot's own folder: links, which the runtime resolves when it creates the container, and a folder of device files,
//! which the runtime walks. So the slot always delivers the pod's current allocation and the running agent's
//! library. Both come from the same edits as a CDI spec.
//!
//! # Nothing before the pod is known
//! Without the folder of device files the runtime creates no container. The folder is created with the grant, even
//! if it stays empty. So no container starts on a slot without a grant, even with simulated cards.
//!
//! # What is weaker than with CDI
//! A pod's own variables override these, and its own mounts hide these. The account needs no variable, and
//! `/etc/ld.so.preload` loads the library if `LD_PRELOAD` is removed. The agent must refuse pods whose mounts hide
//! these files. KAI's variables are missing: they depend on the grant, which does not exist yet at `Allocate`.

use apportion_abi::Share;
use apportion_abi::paths::CONTAINER_SIM_CARDS;

use crate::container::{ContainerFiles, DriverFiles, absent_files};
use crate::container_edits::{ContainerEdits, ContainerMount};
use crate::edits::{EditTarget, edits};
use crate::grant::Grant;

/// The folder of device files in a slot's folder, and its path in the container.
const DEVICES: &str = "dev";
const CONTAINER_DEVICES: &str = "/dev";
/// The folder of simulated cards in a slot's folder.
const SIM_CARDS: &str = "sim";

/// What a slot stands for: a share, or whole cards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A share of each card.
    Share,
    /// Whole cards, with nothing between them and the program.
    Whole,
}

impl Kind {
    fn target(self, files: &ContainerFiles) -> EditTarget<'_> {
        match self {
            Self::Share => EditTarget::Container(files),
            Self::Whole => EditTarget::Whole(files),
        }
    }
}

/// The answer to the kubelet for a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotResponse {
    /// Variables, each name once.
    pub env: Vec<(&'static str, String)>,
    /// Paths in the slot's folder.
    pub mounts: Vec<ContainerMount>,
    /// A folder of device files on the host, and the container's folder for them.
    pub devices: (String, &'static str),
}

/// An entry of a slot's folder, with its path there.
#[expect(missing_docs, reason = "the message of each error names its fields")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SlotContent {
    Folder(&'static str),
    /// A link to a file of the host.
    Link {
        path: String,
        /// The path of the file.
        to: String,
    },
    /// A device file for the same device as one of the host's.
    Device {
        path: String,
        /// The path of the host's device file.
        of: String,
    },
    /// A hard link to a socket of the host: a symbolic link would lead nowhere in a container.
    Socket {
        path: String,
        /// The path of the host's socket.
        of: String,
    },
}

/// The answer for a slot whose folder on the host is `folder`.
#[must_use]
pub fn answer(slot: &str, folder: &str, files: &ContainerFiles, kind: Kind) -> SlotResponse {
    let nobody = Grant {
        id: slot.to_owned(),
        account: String::new(),
        library: String::new(),
        share: Share::Whole,
        cards: Vec::new(),
        // Nobody knows yet whether the share will be. What a fixed one does not have leads to its usage.
        is_elastic: true,
        driver_limit: None,
    };
    let ContainerEdits { env, mounts, .. } = edits(&nobody, kind.target(files));
    let cards = matches!(files.driver, DriverFiles::Simulated { .. }).then(|| ContainerMount {
        host_path: format!("{folder}/{SIM_CARDS}"),
        container_path: CONTAINER_SIM_CARDS.to_owned(),
        options: &["ro", "bind"],
    });
    SlotResponse {
        env,
        mounts: mounts
            .into_iter()
            .map(|mount| ContainerMount {
                host_path: format!("{folder}/{}", link(&mount.container_path)),
                ..mount
            })
            .chain(cards)
            .collect(),
        devices: (format!("{folder}/{DEVICES}"), CONTAINER_DEVICES),
    }
}

/// The content of the slot's folder for `grant`.
#[must_use]
pub fn contents(grant: &Grant, files: &ContainerFiles, kind: Kind) -> Vec<SlotContent> {
    let edits = edits(grant, kind.target(files));
    let folders = [DEVICES, SIM_CARDS].map(SlotContent::Folder);
    // The answer cannot name files of a single card, so they are not linked.
    let named = answer("", "", files, kind).mounts;
    let mounts = edits
        .mounts
        .into_iter()
        .filter(|mount| {
            let mut named = named.iter();
            named.any(|named| is_within(&mount.container_path, &named.container_path))
        })
        .map(behind);
    let absent = absent_files(grant)
        .filter(|_| kind == Kind::Share)
        .map(behind);
    let devices = edits.devices.into_iter().map(|device| SlotContent::Device {
        path: format!(
            "{DEVICES}{}",
            device
                .path
                .strip_prefix(CONTAINER_DEVICES)
                .unwrap_or(&device.path)
        ),
        of: device.host_path,
    });
    let links = mounts.chain(absent);
    folders.into_iter().chain(links).chain(devices).collect()
}

fn behind(mount: ContainerMount) -> SlotContent {
    let card = mount.container_path.strip_prefix(CONTAINER_SIM_CARDS);
    match card {
        Some(card) => SlotContent::Socket {
            path: format!("{SIM_CARDS}{card}"),
            of: mount.host_path,
        },
        None => SlotContent::Link {
            path: link(&mount.container_path),
            to: mount.host_path,
        },
    }
}

fn is_within(path: &str, place: &str) -> bool {
    let rest = path.strip_prefix(place);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// The name of the link for a path in the container.
fn link(container_path: &str) -> String {
    container_path.trim_start_matches('/').replace('/', "_")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grant::GrantedCard;
    use apportion_abi::Bytes;
    use std::collections::BTreeSet;

    fn grant(minors: &[u32]) -> Grant {
        Grant {
            id: "1-1".into(),
            account: "/run/apportion/accounts/1-1".into(),
            library: "/lib/libapportion_cuda.so".into(),
            share: Share::Memory(Bytes::from_mib(1000)),
            cards: minors
                .iter()
                .map(|minor| GrantedCard {
                    uuid: format!("GPU-{minor}"),
                    minor: Some(*minor),
                    cuda_ordinal: None,
                    limit: Bytes::from_mib(1000),
                    allocatable: Bytes::from_mib(4000),
                })
                .collect(),
            is_elastic: false,
            driver_limit: None,
        }
    }

    fn with(driver: DriverFiles) -> ContainerFiles {
        ContainerFiles {
            preload_list: Some("/run/apportion/preload.list".into()),
            driver,
            ..ContainerFiles::default()
        }
    }

    fn kinds() -> [ContainerFiles; 3] {
        [
            with(DriverFiles::Devices),
            with(DriverFiles::Host {
                libraries: vec!["/usr/lib/libcuda.so.1".into()],
            }),
            with(DriverFiles::Simulated {
                libraries: "/opt/sim".into(),
                socket: "/run/driver.sock".into(),
            }),
        ]
    }

    #[test]
    fn everything_that_an_answer_names_is_in_the_folder_of_a_bound_slot_and_nothing_else() {
        let both = [Kind::Share, Kind::Whole].into_iter();
        for (files, kind) in both.flat_map(|kind| kinds().map(|files| (files, kind))) {
            let answer = answer("s-0001", "/f", &files, kind);
            let named: BTreeSet<_> = answer
                .mounts
                .iter()
                .map(|mount| mount.host_path.strip_prefix("/f/").unwrap().to_owned())
                .chain([answer.devices.0.strip_prefix("/f/").unwrap().to_owned()])
                .collect();
            let there: BTreeSet<_> = contents(&grant(&[3]), &files, kind)
                .into_iter()
                .filter_map(|content| match content {
                    SlotContent::Folder(name) => Some(name.to_owned()),
                    SlotContent::Link { path, .. } => Some(path),
                    SlotContent::Device { .. } | SlotContent::Socket { .. } => None,
                })
                .collect();
            assert!(named.is_subset(&there), "{named:?} {there:?}");
            let spare: Vec<_> = there.difference(&named).collect();
            assert!(spare.iter().all(|name| *name == SIM_CARDS), "{spare:?}");
        }
    }

    #[test]
    fn a_fixed_share_has_its_usage_where_an_elastic_one_asks_for_more() {
        let target = |is_elastic: bool, name: &str| {
            let grant = Grant {
                is_elastic,
                ..grant(&[3])
            };
            let all = contents(&grant, &kinds()[0], Kind::Share);
            let found = all.into_iter().filter_map(|content| match content {
                SlotContent::Link { path, to } if path == name => Some(to),
                _ => None,
            });
            found.collect::<Vec<_>>()
        };
        let account = "/run/apportion/accounts/1-1";
        for (link, file) in [(".apportion_burst", "burst"), (".apportion_wake", "wake")] {
            assert_eq!(target(true, link), [format!("{account}/{file}")]);
            assert_eq!(target(false, link), [format!("{account}/usage")]);
        }
    }

    #[test]
    fn an_answer_is_the_same_for_whoever_will_hold_the_slot() {
        let answer = answer("s-0001", "/f", &kinds()[0], Kind::Share);
        assert_eq!(answer.env[0], ("APPORTION_GRANT", "s-0001".into()));
        assert!(
            answer
                .env
                .contains(&("NVIDIA_VISIBLE_DEVICES", "none".into()))
        );
        assert_eq!(answer.devices, ("/f/dev".into(), "/dev"));
        assert!(answer.env.iter().all(|(name, _)| *name != "GPU_PORTION"));
    }

    #[test]
    fn a_bound_slot_has_the_devices_of_its_cards_under_their_own_names() {
        let contents = contents(&grant(&[3]), &kinds()[0], Kind::Share);
        let device = |path: &str, of: &str| SlotContent::Device {
            path: path.into(),
            of: of.into(),
        };
        assert!(contents.contains(&device("dev/nvidia3", "/dev/nvidia3")));
        assert!(contents.contains(&device("dev/nvidiactl", "/dev/nvidiactl")));
        assert!(!contents.contains(&device("dev/nvidia0", "/dev/nvidia0")));
    }

    #[test]
    fn whole_cards_come_without_the_library() {
        let whole = contents(&grant(&[3, 4]), &kinds()[0], Kind::Whole);
        for card in ["/dev/nvidia3", "/dev/nvidia4"] {
            assert!(
                whole
                    .iter()
                    .any(|of| matches!(of, SlotContent::Device { of, .. } if of == card)),
                "{card}"
            );
        }
        let answer = answer("w-0001", "/f", &kinds()[0], Kind::Whole);
        let names: Vec<_> = answer.env.iter().map(|(name, _)| *name).collect();
        assert_eq!(names, ["APPORTION_GRANT", "NVIDIA_VISIBLE_DEVICES"]);
        let mut mounts = answer.mounts.iter();
        assert!(mounts.all(|mount| mount.container_path == "/.apportion/limits"));
    }

    #[test]
    fn a_bound_slot_leads_to_its_account_and_to_its_simulated_cards() {
        let contents = contents(&grant(&[0]), &kinds()[2], Kind::Share);
        assert!(contents.contains(&SlotContent::Link {
            path: ".apportion_limits".into(),
            to: "/run/apportion/accounts/1-1/limits".into(),
        }));
        assert!(contents.contains(&SlotContent::Socket {
            path: "sim/GPU-0".into(),
            of: "/run/driver.sock".into(),
        }));
    }
}

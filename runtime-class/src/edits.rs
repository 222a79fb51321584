//! Renders a grant.
//!
//! The terms are those of a CDI spec (variables, mounts, device nodes). The answer of a device plugin is derived
//! from them.

use apportion_abi::names::{
    ENV_DRIVER_LIMIT, ENV_DRIVER_REQUEST, ENV_MEMORY_LIMIT, ENV_PORTION, ENV_VISIBLE,
};
use apportion_abi::paths::ENV_ACCOUNT;

use crate::container::{ContainerFiles, in_container, with_whole_cards};
use crate::container_edits::ContainerEdits;
use crate::grant::Grant;

/// Where the program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EditTarget<'a> {
    /// As a process of this machine.
    Host {
        /// The previous value of `LD_PRELOAD`, if any. Ours is put before it.
        preload: Option<&'a str>,
    },
    /// In a container, which gets these files mounted.
    Container(&'a ContainerFiles),
    /// In a container with whole cards: nothing is between the cards and the program.
    Whole(&'a ContainerFiles),
}

/// All changes that `grant` makes for a program that runs at `target`.
#[must_use]
pub fn edits(grant: &Grant, target: EditTarget<'_>) -> ContainerEdits {
    let mut edits = match target {
        EditTarget::Host { preload } => on_host(grant, preload),
        EditTarget::Container(files) => in_container(grant, files),
        EditTarget::Whole(files) => return with_whole_cards(grant, files),
    };
    edits
        .env
        .extend(grant.portion().map(|value| (ENV_PORTION, value)));
    edits
        .env
        .extend(grant.memory_limit().map(|value| (ENV_MEMORY_LIMIT, value)));
    edits.env.extend(driver_limit(grant));
    edits
}

/// What NVIDIA's hook reads. Without a request it would make the whole limit a soft limit, too.
fn driver_limit(grant: &Grant) -> Vec<(&'static str, String)> {
    match grant.driver_limit {
        Some(mib) => vec![
            (ENV_DRIVER_REQUEST, "0".to_owned()),
            (ENV_DRIVER_LIMIT, mib.to_string()),
        ],
        None => Vec::new(),
    }
}

fn on_host(grant: &Grant, preload: Option<&str>) -> ContainerEdits {
    let preload = match preload.filter(|list| !list.is_empty()) {
        Some(list) => format!("{}:{list}", grant.library),
        None => grant.library.clone(),
    };
    let mut env = vec![
        ("LD_PRELOAD", preload),
        (ENV_ACCOUNT, grant.account.clone()),
        (ENV_VISIBLE, grant.uuids()),
    ];
    // Some programs expect numbers here and fail on a UUID (vLLM). A number identifies a card only with the device
    // order, so set both, whatever the environment had.
    match grant.cuda_ordinals() {
        Some(ordinals) => env.extend([
            ("CUDA_DEVICE_ORDER", "PCI_BUS_ID".to_owned()),
            ("CUDA_VISIBLE_DEVICES", ordinals),
        ]),
        None => env.push(("CUDA_VISIBLE_DEVICES", grant.uuids())),
    }
    ContainerEdits {
        env,
        ..ContainerEdits::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grant::GrantedCard;
    use apportion_abi::{Bytes, Share};

    fn grant(share: Share, limits: &[u64]) -> Grant {
        Grant {
            id: "1-1".into(),
            account: "/run/apportion/accounts/a1".into(),
            library: "/usr/lib/apportion/libapportion_cuda.so".into(),
            share,
            cards: (0..)
                .zip(limits)
                .map(|(minor, limit)| GrantedCard {
                    uuid: format!("GPU-{minor}"),
                    minor: Some(minor),
                    cuda_ordinal: None,
                    limit: Bytes::from_mib(*limit),
                    allocatable: Bytes::from_mib(1000),
                })
                .collect(),
            is_elastic: false,
            driver_limit: None,
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
        let with = |preload| value(&edits(&grant, EditTarget::Host { preload }), "LD_PRELOAD");
        assert_eq!(with(None), Some(grant.library.clone()));
        assert_eq!(with(Some("")), Some(grant.library.clone()));
        let both = format!("{}:/usr/lib/libjemalloc.so", grant.library);
        assert_eq!(with(Some("/usr/lib/libjemalloc.so")), Some(both));
    }

    #[test]
    fn a_process_sees_its_cards_and_finds_its_account() {
        let grant = grant(Share::Memory(Bytes::from_mib(250)), &[250, 250]);
        let edits = edits(&grant, EditTarget::Host { preload: None });
        assert_eq!(
            value(&edits, "CUDA_VISIBLE_DEVICES").unwrap(),
            "GPU-0,GPU-1"
        );
        assert_eq!(value(&edits, "APPORTION_ACCOUNT").unwrap(), grant.account);
        assert!(edits.mounts.is_empty() && edits.devices.is_empty());
    }

    #[test]
    fn a_process_gets_numbers_where_those_of_all_its_cards_are_certain() {
        let mut grant = grant(Share::Memory(Bytes::from_mib(250)), &[250, 250]);
        let visible = |grant: &Grant| {
            let edits = edits(grant, EditTarget::Host { preload: None });
            let of = |name| value(&edits, name);
            (of("CUDA_DEVICE_ORDER"), of("CUDA_VISIBLE_DEVICES").unwrap())
        };
        grant.cards[0].cuda_ordinal = Some(3);
        assert_eq!(visible(&grant), (None, "GPU-0,GPU-1".to_owned()));
        grant.cards[1].cuda_ordinal = Some(0);
        let in_order = Some("PCI_BUS_ID".to_owned());
        assert_eq!(visible(&grant), (in_order, "3,0".to_owned()));
        let files = ContainerFiles::default();
        let inside = edits(&grant, EditTarget::Container(&files));
        assert_eq!(value(&inside, "CUDA_DEVICE_ORDER"), None);
    }

    #[test]
    fn nvidias_hook_gets_a_hard_limit_and_no_soft_one() {
        let files = ContainerFiles::default();
        let mut grant = grant(Share::Memory(Bytes::from_mib(250)), &[250]);
        let set = |grant: &Grant| {
            let edits = edits(grant, EditTarget::Container(&files));
            let of = |name| value(&edits, name);
            (
                of("NVIDIA_GPU_MEMORY_REQUEST"),
                of("NVIDIA_GPU_MEMORY_LIMIT"),
            )
        };
        assert_eq!(set(&grant), (None, None));
        grant.driver_limit = Some(550);
        assert_eq!(set(&grant), (Some("0".to_owned()), Some("550".to_owned())));
    }

    #[test]
    fn kais_variables_say_what_kai_says() {
        let half = Share::Fraction("0.375".parse().unwrap());
        for (share, limit, portion) in [
            (half, 374, "0.38"),
            (Share::Memory(Bytes::from_mib(250)), 250, "0.25"),
            (Share::Whole, 1000, "1.00"),
        ] {
            let files = ContainerFiles::default();
            for target in [
                EditTarget::Host { preload: None },
                EditTarget::Container(&files),
            ] {
                let edits = edits(&grant(share, &[limit]), target);
                assert_eq!(value(&edits, "GPU_PORTION").unwrap(), portion);
                let memory = value(&edits, "CUDA_DEVICE_MEMORY_LIMIT").unwrap();
                assert_eq!(memory, format!("{limit}m"));
            }
        }
    }
}

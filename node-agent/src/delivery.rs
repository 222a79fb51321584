//! How the containers of a node get what their pods were given: the slots, the files on disk, and what
//! the kubelet has said so far. The agent's loop owns it; see `agent/deliver.rs` for what happens when.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use apportion_abi::place::{self, PRELOAD_LIBRARY};
use apportion_ledger::{SlotId, Slots, Time};
use apportion_runtime_class::{ContainerFiles, DriverFiles};
use tokio::sync::watch;

use crate::kubelet::{Offers, Seen};
use crate::library::{InstallError, Libraries};
use crate::options::Options;
use crate::specs::Specs;

/// How long a pod that was given a share may take to appear on the node.
const APPEARS_IN: Duration = Duration::from_secs(120);

/// Why grants cannot be delivered.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DeliveryError {
    #[error(transparent)]
    Install(#[from] InstallError),
    #[error("there is no folder with the preload library")]
    NoLibrary,
    #[error("failed to write {path}")]
    Write {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// What delivering needs.
#[derive(Debug)]
pub(crate) struct Delivery {
    pub(crate) slots: Slots,
    pub(crate) specs: Specs,
    pub(crate) libraries: Libraries,
    pub(crate) files: ContainerFiles,
    /// The UIDs of pods that the kubelet has shown.
    pub(crate) shown: BTreeSet<String>,
    /// The pods that were being deleted when the kubelet was last looked at: they end with their last
    /// process, and nobody needs to look again to know it.
    pub(crate) ending: BTreeSet<String>,
    offers: watch::Sender<Vec<(SlotId, bool)>>,
}

impl Delivery {
    /// Puts everything in place that containers mount. `instance` is the instance's folder.
    pub(crate) fn prepare(
        kubelet: &Path,
        options: &Options,
        instance: &Path,
    ) -> Result<Self, DeliveryError> {
        let source = place::lib_dir().ok_or(DeliveryError::NoLibrary)?;
        let mut sources = vec![source.join(PRELOAD_LIBRARY)];
        if options.is_simulated {
            let folder = source.join(place::SIM_LIBRARIES);
            sources.extend([place::SIM_CUDA, place::SIM_NVML].map(|name| folder.join(name)));
        }
        let libraries = Libraries::install(kubelet, &sources)?;
        libraries.remove_others();
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| DeliveryError::Write { path, source }
        };
        let specs = Specs::new(&options.cdi_dir).map_err(failed(&options.cdi_dir))?;
        let list = instance.join(place::PRELOAD_LIST);
        let library = format!("{}/{PRELOAD_LIBRARY}\n", place::CONTAINER_ACCOUNT);
        std::fs::write(&list, library).map_err(failed(&list))?;
        let slots = Slots::new(options.slots);
        let files = ContainerFiles {
            preload_list: options.has_preload_list.then(|| list.display().to_string()),
            driver: driver_files(options, instance, &libraries),
        };
        let offers = watch::channel(slots.offers().collect()).0;
        Ok(Self {
            slots,
            specs,
            libraries,
            files,
            shown: BTreeSet::new(),
            ending: BTreeSet::new(),
            offers,
        })
    }

    /// Where the kubelet's plugin sees what can be had.
    pub(crate) fn offers(&self) -> Offers {
        self.offers.subscribe()
    }

    /// Tells the kubelet what can be had.
    pub(crate) fn offer(&self) {
        self.offers.send_replace(self.slots.offers().collect());
    }

    /// The library, on the host.
    pub(crate) fn library(&self) -> String {
        let library = self.libraries.folder().join(PRELOAD_LIBRARY);
        library.display().to_string()
    }
}

fn driver_files(options: &Options, instance: &Path, libraries: &Libraries) -> DriverFiles {
    if !options.is_simulated {
        return DriverFiles::Devices;
    }
    let socket = std::env::var_os(place::ENV_SIM_SOCKET).filter(|socket| !socket.is_empty());
    let socket = socket.map_or_else(|| instance.join(place::SIM_SOCKET), PathBuf::from);
    DriverFiles::Simulated {
        libraries: libraries.folder().display().to_string(),
        socket: socket.display().to_string(),
    }
}

/// Whether a pod that holds an allocation since `created` is gone for good, as far as that can be told.
/// A pod that the kubelet has lost from sight while its processes live is not.
pub(crate) fn is_gone(
    seen: &Seen,
    pod: &str,
    was_shown: bool,
    age: Duration,
    has_processes: impl FnOnce() -> bool,
) -> bool {
    if seen.ended.contains(pod) {
        return true;
    }
    if seen.ending.contains(pod) {
        return was_shown && !has_processes();
    }
    let is_there = seen.live.contains(pod) || seen.held.values().any(|holder| holder.pod == pod);
    if is_there || !seen.is_complete {
        return false;
    }
    (was_shown || age > APPEARS_IN) && !has_processes()
}

/// How long ago something was.
pub(crate) fn age(now: Time, then: Time) -> Duration {
    Duration::from_millis(now.0.saturating_sub(then.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubelet::Holder;

    const YOUNG: Duration = Duration::from_secs(1);

    fn seen() -> Seen {
        Seen {
            is_complete: true,
            ..Seen::default()
        }
    }

    fn set(pod: &str) -> BTreeSet<String> {
        [pod.to_owned()].into()
    }

    #[test]
    fn a_pod_is_gone_when_the_kubelet_no_longer_shows_it_and_nothing_of_it_runs() {
        assert!(is_gone(&seen(), "u", true, YOUNG, || false));
        assert!(!is_gone(&seen(), "u", true, YOUNG, || true));
        let holder = Holder {
            pod: "u".into(),
            name: None,
            containers: BTreeSet::new(),
        };
        let held = Seen {
            held: [(SlotId(1), holder)].into(),
            ..seen()
        };
        assert!(!is_gone(&held, "u", true, YOUNG, || false));
    }

    #[test]
    fn a_pod_that_has_not_appeared_is_waited_for() {
        assert!(!is_gone(&seen(), "u", false, YOUNG, || false));
        assert!(is_gone(&seen(), "u", false, APPEARS_IN * 2, || false));
    }

    #[test]
    fn a_kubelet_that_may_not_know_its_pods_is_not_believed() {
        assert!(!is_gone(&Seen::default(), "u", true, YOUNG, || false));
    }

    #[test]
    fn the_api_server_decides_where_it_speaks() {
        let ended = Seen {
            ended: set("u"),
            ..Seen::default()
        };
        assert!(is_gone(&ended, "u", true, YOUNG, || true));
        let live = Seen {
            live: set("u"),
            ..seen()
        };
        assert!(!is_gone(&live, "u", true, YOUNG, || false));
    }

    #[test]
    fn a_pod_that_is_being_deleted_is_gone_with_its_last_process() {
        let ending = Seen {
            ending: set("u"),
            live: set("u"),
            ..Seen::default()
        };
        assert!(!is_gone(&ending, "u", true, YOUNG, || true));
        assert!(is_gone(&ending, "u", true, YOUNG, || false));
    }
}

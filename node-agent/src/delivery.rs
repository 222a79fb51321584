//! How containers get what their pods were given: the slots, the files on disk, and the last report of the kubelet.
//! The agent's loop owns it; `agent/deliver.rs` has the sequence of events.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use apportion_abi::paths::{self, PRELOAD_LIBRARY};
use apportion_exit::error_chain;
use apportion_ledger::{AllocationId, EpochMillis, SlotId, SlotTable, WholeCardId, WholeCardTable};
use apportion_runtime_class::cdi::{self, CdiSpecLabel, PassthroughEdits};
use apportion_runtime_class::slot::Kind;
use apportion_runtime_class::{ContainerFiles, DriverFiles, EditTarget, Grant, edits, slot};
use tokio::sync::watch;

use crate::claims::device_offers::DeviceOffers;
use crate::delivery::cdi_specs::CdiSpecDir;
use crate::delivery::library::{InstallError, InstalledLibraries};
use crate::delivery::slot_folders::SlotFolders;
use crate::delivery::toolkit::{DriverFilesError, DriverSources};
use crate::kubelet::allocate_strategy::AllocateStrategy;
use crate::kubelet::offer_receivers::OfferReceivers;
use crate::kubelet::snapshot::KubeletSnapshot;
use crate::kubelet::whole_card_plugin::WholeCardOffers;
use crate::options::AgentOptions;
use crate::runtime::cri::RuntimeCapabilities;

mod cdi_specs;
pub(crate) mod library;
pub(crate) mod slot_folders;
mod toolkit;

/// How long a pod with a share may take to appear on the node.
const APPEARS_IN: Duration = Duration::from_secs(120);

/// The folder of the slots' folders, in the instance's folder.
const SLOTS: &str = "slots";

/// Why grants cannot be delivered.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DeliveryError {
    #[error(transparent)]
    Install(#[from] InstallError),
    #[error("the folder of the preload library was not found")]
    NoLibrary,
    #[error("failed to write {path}")]
    Write {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// The state of delivery.
#[derive(Debug)]
pub(crate) struct GrantDelivery {
    pub(crate) slots: SlotTable,
    specs: CdiSpecDir,
    folders: SlotFolders,
    /// Whether the runtime reads CDI specs. No slot is offered until this is known.
    has_cdi: bool,
    sources: DriverSources,
    pub(crate) libraries: InstalledLibraries,
    files: ContainerFiles,
    /// The UIDs of the pods that the kubelet has reported.
    pub(crate) reported: BTreeSet<String>,
    /// The pods that were being deleted at the last poll of the kubelet. They are released with their last process,
    /// without another poll.
    pub(crate) ending: BTreeSet<String>,
    /// Whole cards, if they are served.
    pub(crate) whole: Option<WholeCardDelivery>,
    /// Resource claims, if they are served.
    pub(crate) claims: Option<ClaimDelivery>,
    offers: watch::Sender<Vec<(SlotId, bool)>>,
}

/// The state of whole-card delivery.
#[derive(Debug)]
pub(crate) struct WholeCardDelivery {
    pub(crate) table: WholeCardTable,
    /// The allocation of each CDI spec on disk.
    pub(crate) written: BTreeMap<WholeCardId, AllocationId>,
    pub(crate) offers: watch::Sender<Arc<WholeCardOffers>>,
}

/// The state of the delivery to resource claims.
#[derive(Debug)]
pub(crate) struct ClaimDelivery {
    /// The allocation of each CDI spec on disk, by device name.
    pub(crate) written: BTreeMap<String, AllocationId>,
    pub(crate) offers: watch::Sender<Arc<DeviceOffers>>,
}

impl GrantDelivery {
    /// Installs all files that containers mount. `instance` is the instance's folder.
    pub(crate) fn prepare(
        kubelet: &Path,
        options: &AgentOptions,
        instance: &Path,
    ) -> Result<Self, DeliveryError> {
        let source = paths::lib_dir().ok_or(DeliveryError::NoLibrary)?;
        let mut sources = vec![source.join(PRELOAD_LIBRARY)];
        if options.sim {
            let folder = source.join(paths::SIM_LIBRARIES);
            sources.extend([paths::SIM_CUDA, paths::SIM_NVML].map(|name| folder.join(name)));
        }
        let libraries = InstalledLibraries::install(kubelet, &sources)?;
        libraries.remove_others();
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| DeliveryError::Write { path, source }
        };
        let specs =
            CdiSpecDir::new(&options.kubelet.cdi_dir).map_err(failed(&options.kubelet.cdi_dir))?;
        let list = instance.join(paths::PRELOAD_LIST);
        let library = format!("{}/{PRELOAD_LIBRARY}\n", paths::CONTAINER_ACCOUNT);
        std::fs::write(&list, library).map_err(failed(&list))?;
        let slots = SlotTable::new(options.kubelet.slots);
        let files = ContainerFiles {
            preload_list: options
                .kubelet
                .has_preload_list
                .then(|| list.display().to_string()),
            driver: driver_files(options, instance, &libraries),
            ..ContainerFiles::default()
        };
        let offers = watch::channel(slots.offers().collect()).0;
        Ok(Self {
            slots,
            specs,
            folders: SlotFolders::new(instance.join(SLOTS)),
            has_cdi: true,
            sources: driver_sources(options),
            libraries,
            files,
            reported: BTreeSet::new(),
            ending: BTreeSet::new(),
            whole: options.kubelet.has_whole_cards.then(|| WholeCardDelivery {
                table: WholeCardTable::default(),
                written: BTreeMap::new(),
                offers: watch::channel(Arc::default()).0,
            }),
            claims: options.kubelet.has_claims.then(|| ClaimDelivery {
                written: BTreeMap::new(),
                offers: watch::channel(Arc::default()).0,
            }),
            offers,
        })
    }

    /// The host paths that containers mount beside their accounts, in all spellings that a runtime may use.
    pub(crate) fn places(&self) -> Vec<String> {
        let libraries = self.libraries.folder().parent().map(Path::to_owned);
        let list = self.files.preload_list.clone().map(PathBuf::from);
        let socket = match &self.files.driver {
            DriverFiles::Simulated { socket, .. } => Some(PathBuf::from(socket)),
            DriverFiles::Devices | DriverFiles::Host { .. } | DriverFiles::Toolkit => None,
        };
        let slots = Some(self.folders.root().to_owned());
        let places = [libraries, list, socket, slots].into_iter().flatten();
        let names = places.flat_map(|place| [place.canonicalize().ok(), Some(place)]);
        let names = names.flatten().map(|place| place.display().to_string());
        names.collect()
    }

    /// Adapts to the container runtime. Returns how to answer the kubelet's `Allocate`.
    pub(crate) fn settle(
        &mut self,
        facts: &RuntimeCapabilities,
    ) -> Result<AllocateStrategy, DriverFilesError> {
        self.has_cdi = facts.has_cdi;
        self.sources.is_nvidia_default = facts.is_nvidia_default;
        Ok(if facts.has_cdi {
            AllocateStrategy::Cdi
        } else {
            AllocateStrategy::Folders(self.folders.clone(), self.undescribed()?)
        })
    }

    /// What containers get if no CDI spec describes the cards.
    fn undescribed(&self) -> Result<ContainerFiles, DriverFilesError> {
        let driver = if self.is_simulated() {
            self.files.driver.clone()
        } else {
            self.sources.undescribed()?
        };
        Ok(self.with(driver))
    }

    /// What containers get with the cards of `grant`, and the edits that CDI specs describe for these cards.
    fn described(
        &self,
        grant: &Grant,
    ) -> Result<(ContainerFiles, PassthroughEdits), DriverFilesError> {
        let (driver, described) = if self.is_simulated() {
            (self.files.driver.clone(), PassthroughEdits::default())
        } else {
            self.sources.of(&grant.cards)?
        };
        Ok((self.with(driver), described))
    }

    fn is_simulated(&self) -> bool {
        matches!(self.files.driver, DriverFiles::Simulated { .. })
    }

    fn with(&self, driver: DriverFiles) -> ContainerFiles {
        ContainerFiles {
            driver,
            device_root: self.sources.device_root(),
            missing_devices: self.sources.missing_devices(),
            ..self.files.clone()
        }
    }

    /// The labels of the grants that earlier agents left.
    pub(crate) fn found(&self) -> Vec<CdiSpecLabel> {
        let mut found = self.specs.found();
        let known = found.clone();
        let others = self.folders.found().into_iter();
        found.extend(others.filter(|label| !known.contains(label)));
        found
    }

    /// Writes a grant where the runtime finds it. A slot whose folder was mounted by an earlier agent, before the
    /// runtime supported CDI, is kept up to date, too.
    pub(crate) fn write(&self, label: &CdiSpecLabel, grant: &Grant) -> Result<(), String> {
        if !self.has_cdi || self.folders.has(&label.slot) {
            let files = self.undescribed().map_err(|error| error_chain(&error))?;
            let contents = slot::contents(grant, &files, Kind::Share);
            let written = self.folders.write(label, &contents);
            written.map_err(|error| error_chain(&error))?;
        }
        if self.has_cdi {
            let (files, mut described) =
                self.described(grant).map_err(|error| error_chain(&error))?;
            if grant.driver_limit.is_none() {
                described.without_limit_hook();
            }
            let edits = edits(grant, EditTarget::Container(&files));
            let file = cdi::render(label, &edits, described);
            let written = self.specs.write(&label.slot, &file);
            written.map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    /// Writes the grant of a container's whole cards. The first device adds all cards, and the other specs add no
    /// devices or mounts. Without CDI only the first has files.
    pub(crate) fn write_whole(&self, labels: &[CdiSpecLabel], grant: &Grant) -> Result<(), String> {
        let first = labels.first();
        if let Some(label) = first.filter(|of| !self.has_cdi || self.folders.has(&of.slot)) {
            let files = self.undescribed().map_err(|error| error_chain(&error))?;
            let contents = slot::contents(grant, &files, Kind::Whole);
            let written = self.folders.write(label, &contents);
            written.map_err(|error| error_chain(&error))?;
        }
        if !self.has_cdi {
            return Ok(());
        }
        let (files, mut described) = self.described(grant).map_err(|error| error_chain(&error))?;
        described.without_limit_hook();
        let mut edits = edits(grant, EditTarget::Whole(&files));
        let mut described = Some(described);
        for label in labels {
            let file = cdi::render(label, &edits, described.take().unwrap_or_default());
            let written = self.specs.write(&label.slot, &file);
            written.map_err(|error| error.to_string())?;
            edits.mounts.clear();
            edits.devices.clear();
        }
        Ok(())
    }

    /// Whether the container runtime reads CDI specs, without which no claim is delivered.
    pub(crate) fn has_cdi(&self) -> bool {
        self.has_cdi
    }

    /// The allocations, by the device ids of the kubelet that containers may name.
    pub(crate) fn named(&self) -> impl Iterator<Item = (String, &AllocationId)> {
        let slots = self
            .slots
            .prepared()
            .map(|(slot, id)| (slot.to_string(), id));
        let written = self.whole.iter().flat_map(|whole| &whole.written);
        slots.chain(written.map(|(device, id)| (device.to_string(), id)))
    }

    /// Removes a slot's grant.
    pub(crate) fn remove(&self, slot: &str) {
        self.specs.remove(slot);
        self.folders.remove(slot);
    }

    /// Where the plugins watch what they offer.
    pub(crate) fn offers(&self) -> OfferReceivers {
        let (whole, claims) = (self.whole.as_ref(), self.claims.as_ref());
        OfferReceivers {
            slots: self.offers.subscribe(),
            whole: whole.map(|whole| whole.offers.subscribe()),
            claims: claims.map(|claims| claims.offers.subscribe()),
        }
    }

    /// Updates the slots that are offered to the kubelet.
    pub(crate) fn offer(&self) {
        self.offers.send_replace(self.slots.offers().collect());
    }

    /// The path of the library on the host.
    pub(crate) fn library(&self) -> String {
        let library = self.libraries.folder().join(PRELOAD_LIBRARY);
        library.display().to_string()
    }
}

fn driver_sources(options: &AgentOptions) -> DriverSources {
    DriverSources {
        descriptions: vec![
            options.runtime.fixed_cdi_dir.clone(),
            options.kubelet.cdi_dir.clone(),
        ],
        libraries: options.runtime.driver_libraries.clone(),
        device_root: options.runtime.dev_root.clone(),
        is_nvidia_default: false,
    }
}

fn driver_files(
    options: &AgentOptions,
    instance: &Path,
    libraries: &InstalledLibraries,
) -> DriverFiles {
    if !options.sim {
        return DriverFiles::Devices;
    }
    let socket = std::env::var_os(paths::ENV_SIM_SOCKET).filter(|socket| !socket.is_empty());
    let socket = socket.map_or_else(|| instance.join(paths::SIM_SOCKET), PathBuf::from);
    DriverFiles::Simulated {
        libraries: libraries.folder().display().to_string(),
        socket: socket.display().to_string(),
    }
}

/// Whether a pod that has an allocation of this age is gone for good, as far as the agent can tell. A pod that the
/// kubelet no longer reports is not gone while its processes run.
pub(crate) fn is_gone(
    kubelet: &KubeletSnapshot,
    pod: &str,
    was_reported: bool,
    age: Duration,
    has_processes: impl FnOnce() -> bool,
) -> bool {
    if kubelet.ended.contains(pod) {
        return true;
    }
    if kubelet.ending.contains(pod) {
        return was_reported && !has_processes();
    }
    let is_there = kubelet.live.contains(pod)
        || kubelet.whole.claimants().any(|claimant| claimant == pod)
        || kubelet.others.contains_key(pod)
        || kubelet.held.values().any(|holder| holder.pod == pod);
    if is_there || !kubelet.is_complete {
        return false;
    }
    (was_reported || age > APPEARS_IN) && !has_processes()
}

/// The time from `then` to `now`.
pub(crate) fn age(now: EpochMillis, then: EpochMillis) -> Duration {
    Duration::from_millis(now.0.saturating_sub(then.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubelet::snapshot::Holder;

    const YOUNG: Duration = Duration::from_secs(1);

    fn kubelet() -> KubeletSnapshot {
        KubeletSnapshot {
            is_complete: true,
            ..KubeletSnapshot::default()
        }
    }

    fn set(pod: &str) -> BTreeSet<String> {
        [pod.to_owned()].into()
    }

    #[test]
    fn a_pod_is_gone_when_the_kubelet_no_longer_shows_it_and_nothing_of_it_runs() {
        assert!(is_gone(&kubelet(), "u", true, YOUNG, || false));
        assert!(!is_gone(&kubelet(), "u", true, YOUNG, || true));
        let holder = Holder {
            pod: "u".into(),
            name: None,
            containers: BTreeSet::new(),
        };
        let held = KubeletSnapshot {
            held: [(SlotId(1), holder)].into(),
            ..kubelet()
        };
        assert!(!is_gone(&held, "u", true, YOUNG, || false));
    }

    #[test]
    fn a_pod_that_has_not_appeared_is_waited_for() {
        assert!(!is_gone(&kubelet(), "u", false, YOUNG, || false));
        assert!(is_gone(&kubelet(), "u", false, APPEARS_IN * 2, || false));
    }

    #[test]
    fn a_kubelet_that_may_not_know_its_pods_is_not_believed() {
        assert!(!is_gone(
            &KubeletSnapshot::default(),
            "u",
            true,
            YOUNG,
            || false
        ));
    }

    #[test]
    fn the_api_server_decides_where_it_speaks() {
        let ended = KubeletSnapshot {
            ended: set("u"),
            ..KubeletSnapshot::default()
        };
        assert!(is_gone(&ended, "u", true, YOUNG, || true));
        let live = KubeletSnapshot {
            live: set("u"),
            ..kubelet()
        };
        assert!(!is_gone(&live, "u", true, YOUNG, || false));
    }

    #[test]
    fn a_pod_that_is_being_deleted_is_gone_with_its_last_process() {
        let ending = KubeletSnapshot {
            ending: set("u"),
            live: set("u"),
            ..KubeletSnapshot::default()
        };
        assert!(!is_gone(&ending, "u", true, YOUNG, || true));
        assert!(is_gone(&ending, "u", true, YOUNG, || false));
    }
}

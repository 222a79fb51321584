//! The program of a pod. The test writes its steps to a FIFO and reads the results from another, so that a step costs
//! neither a container nor a request to the API server.

use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use apportion_cluster::managed::MIB;
use nix::libc::O_NONBLOCK;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

/// The folder of the FIFOs, as seen on the node.
pub(super) const ON_NODE: &str = "/run/apportion/storm";
/// The same folder, as seen in a container.
pub(super) const IN_CONTAINER: &str = "/storm";
/// How long a step may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);
const GLANCE: Duration = Duration::from_micros(200);

/// The command of the container whose program is called `name`.
pub(super) fn command(name: &str) -> String {
    format!("exec victim - < {IN_CONTAINER}/{name}.in > {IN_CONTAINER}/{name}.out")
}

/// What the program holds.
struct HeldAllocation {
    /// The program's number for it.
    number: u64,
    mib: u64,
}

pub(super) struct PodProgram {
    name: String,
    fifos: [PathBuf; 2],
    steps: File,
    results: File,
    held: Vec<HeldAllocation>,
}

impl PodProgram {
    pub(super) fn new(folder: &Path, name: &str) -> Self {
        let fifos = ["in", "out"].map(|end| folder.join(format!("{name}.{end}")));
        let [steps, results] = fifos.each_ref().map(|path| {
            mkfifo(path, Mode::from_bits_truncate(0o666)).expect("the folder is writable");
            // Open at both ends, so that neither side waits for the other.
            let mut options = File::options();
            options.read(true).write(true).custom_flags(O_NONBLOCK);
            options.open(path).expect("it was just made")
        });
        Self {
            name: name.to_owned(),
            fifos,
            steps,
            results,
            held: Vec::new(),
        }
    }

    /// How much it holds by its own count.
    pub(super) fn held(&self) -> u64 {
        self.held.iter().map(|one| one.mib).sum()
    }

    /// Allocates memory. Returns the driver's result.
    pub(super) fn allocate(&mut self, mib: u64) -> u64 {
        let result = self.step(&format!("alloc {mib}M"));
        if let [0, number] = result[..] {
            self.held.push(HeldAllocation { number, mib });
        }
        result[0]
    }

    /// Frees one of its allocations, if there is one.
    pub(super) fn free(&mut self, chosen: usize) {
        if let Some(at) = chosen.checked_rem(self.held.len()) {
            let HeldAllocation { number, .. } = self.held.swap_remove(at);
            let result = self.step(&format!("free {number}"));
            assert_eq!(result, [0], "{} cannot free its memory", self.name);
        }
    }

    /// The memory of the GPU as the program sees it, in MiB.
    pub(super) fn total(&mut self) -> u64 {
        match self.step("total")[..] {
            [0, bytes] => bytes / MIB,
            ref result => panic!("{} sees no GPU: {result:?}", self.name),
        }
    }

    /// Performs one step. Returns its numbers, of which the first is the driver's result.
    fn step(&mut self, step: &str) -> Vec<u64> {
        writeln!(self.steps, "{step}").expect("a FIFO holds a line");
        let result = self.result();
        let words = result.split_whitespace().skip(1);
        let numbers: Vec<u64> = words.filter_map(|word| word.parse().ok()).collect();
        assert!(!numbers.is_empty(), "{}: {step}: {result:?}", self.name);
        numbers
    }

    /// The next result, which ends with a line of a single dot.
    fn result(&mut self) -> String {
        let deadline = Instant::now() + PATIENCE;
        let mut result = String::new();
        let mut bytes = [0; 256];
        loop {
            match self.results.read(&mut bytes) {
                Ok(count) => result.push_str(&String::from_utf8_lossy(&bytes[..count])),
                Err(error) if error.kind() == ErrorKind::WouldBlock => sleep(GLANCE),
                Err(error) => panic!("{}: {error}", self.name),
            }
            if let Some(result) = result.strip_suffix(".\n") {
                return result.to_owned();
            }
            assert!(
                Instant::now() < deadline,
                "{} does not answer: {result:?}",
                self.name
            );
        }
    }
}

impl Drop for PodProgram {
    fn drop(&mut self) {
        for path in &self.fifos {
            let _ = fs::remove_file(path);
        }
    }
}

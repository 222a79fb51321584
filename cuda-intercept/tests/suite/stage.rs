//! The staged tree, a simulated machine for each test, an account on it, and a test that starts again as the limited
//! program.

use std::any::type_name;
use std::env;
use std::ffi::CString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use apportion_abi::account::{LimitsMap, NewCard, UsageMap};
use apportion_abi::{Bytes, CardUuid, paths};

use crate::cuda::LoadedCuda;

/// Set for a test that runs inside.
const INSIDE: &str = "APPORTION_TEST_INSIDE";

pub(crate) const MIB: u64 = 1 << 20;
/// What the simulated driver takes for a first and a further context.
pub(crate) const CONTEXT: u64 = 384 * MIB;
pub(crate) const FURTHER_CONTEXT: u64 = 128 * MIB;

/// A file of the staged library folder.
pub(crate) fn staged(name: &str) -> PathBuf {
    let tree = env::var_os("APPORTION_STAGED").map_or_else(default_tree, PathBuf::from);
    let file = tree.join("lib/apportion").join(name);
    assert!(
        file.exists(),
        "{} is not there: run `cargo xtask build` first, or name the tree in APPORTION_STAGED",
        file.display()
    );
    file
}

/// `apportion` in Cargo's target folder: the running test is three levels below that.
fn default_tree() -> PathBuf {
    let test = env::current_exe().expect("a running program has a path");
    let target = test
        .ancestors()
        .nth(3)
        .expect("tests are built in Cargo's tree");
    target.join("apportion")
}

pub(crate) fn preload() -> PathBuf {
    staged("libapportion_cuda.so")
}

/// Retries until success, for at most ten seconds.
#[track_caller]
pub(crate) fn eventually<T>(what: &str, mut attempt: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + Duration::from_secs(10);
    loop {
        if let Some(done) = attempt() {
            return done;
        }
        assert!(Instant::now() < end, "{what}: not within ten seconds");
        thread::park_timeout(Duration::from_millis(2));
    }
}

/// The UUID of the n-th card, the same in every test.
pub(crate) fn uuid(card: usize) -> String {
    format!("GPU-00000000-0000-0000-0000-0000000000c{card}")
}

/// A simulated machine with its daemon, stopped when dropped.
pub(crate) struct MachineDaemon {
    daemon: Child,
    folder: tempfile::TempDir,
}

impl Drop for MachineDaemon {
    fn drop(&mut self) {
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
    }
}

impl MachineDaemon {
    /// A machine with cards of this many allocatable MiB.
    pub(crate) fn start(cards: &[u64]) -> Self {
        let folder = tempfile::tempdir().expect("there is room for a folder");
        let cards: Vec<_> = cards
            .iter()
            .enumerate()
            .map(|(place, mib)| {
                serde_json::json!({
                    "uuid": uuid(place), "memory": (mib + 256) * MIB, "reserved": 256 * MIB,
                    "context_bytes": CONTEXT, "further_context_bytes": FURTHER_CONTEXT,
                })
            })
            .collect();
        let config = folder.path().join("machine.json");
        let text = serde_json::json!({ "cards": cards }).to_string();
        fs::write(&config, text).expect("the folder is writable");
        let daemon = Command::new(staged("apportion-simd"))
            .arg("--socket")
            .arg(folder.path().join("driver.sock"))
            .arg("--config")
            .arg(config)
            .stdin(Stdio::null())
            .spawn()
            .expect("the simulated driver's daemon starts");
        let machine = Self { daemon, folder };
        eventually("the daemon serves", || ask(&machine.socket()));
        machine
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("driver.sock")
    }

    /// An account with a limit in MiB on each of the first cards.
    pub(crate) fn account(&self, limits: &[u64]) -> AgentAccount {
        AgentAccount::create(&self.folder.path().join("account"), limits)
    }

    /// A command on this machine, with the library preloaded.
    pub(crate) fn command(&self, program: impl AsRef<Path>, account: &Path) -> Command {
        let mut command = Command::new(program.as_ref());
        let libraries = staged("sim/libcuda.so.1");
        command
            .env("LD_PRELOAD", preload())
            .env(
                "LD_LIBRARY_PATH",
                libraries.parent().expect("it is in a folder"),
            )
            .env("APPORTION_SIM_SOCKET", self.socket())
            .env(paths::ENV_ACCOUNT, account);
        command
    }
}

/// The account of a program without a limit: an empty variable names none.
pub(crate) const NO_ACCOUNT: &str = "";

/// The agent's side of an account.
pub(crate) struct AgentAccount {
    folder: PathBuf,
    pub(crate) limits: LimitsMap,
    pub(crate) usage: UsageMap,
}

fn c_path(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).expect("paths hold no zero")
}

impl AgentAccount {
    fn create(folder: &Path, limits: &[u64]) -> Self {
        fs::create_dir(folder).expect("the folder is writable");
        let cards: Vec<_> = limits
            .iter()
            .enumerate()
            .map(|(place, mib)| NewCard {
                uuid: uuid(place).parse::<CardUuid>().expect("it is one"),
                total: Bytes(16384 * MIB),
                limit: Bytes(mib * MIB),
                context_reserve: Bytes(CONTEXT),
            })
            .collect();
        let at = |file| c_path(&folder.join(file));
        let limits = LimitsMap::create(&at(paths::LIMITS_FILE), &cards).expect("it is new");
        let usage = UsageMap::create(&at(paths::USAGE_FILE), cards.len()).expect("it is new");
        Self {
            folder: folder.to_owned(),
            limits,
            usage,
        }
    }

    /// The account that this program inherited.
    pub(crate) fn inherited() -> Self {
        let folder = env::var_os(paths::ENV_ACCOUNT).expect("the test outside has set it");
        let folder = PathBuf::from(folder);
        let at = |file| c_path(&folder.join(file));
        Self {
            limits: LimitsMap::adopt(&at(paths::LIMITS_FILE)).expect("the test outside made it"),
            usage: UsageMap::open(&at(paths::USAGE_FILE)).expect("the test outside made it"),
            folder,
        }
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// What all processes have claimed on a card.
    pub(crate) fn claimed(&self, card: usize) -> u64 {
        self.usage.usage().claimed(card).0
    }
}

/// What processes hold on each card, by the driver's count.
fn ask(socket: &Path) -> Option<Vec<u64>> {
    let output = Command::new(staged("apportion-simd"))
        .arg("--socket")
        .arg(socket)
        .args(["--ask", r#"{"Nvml":"Snapshot"}"#])
        .env_remove("LD_PRELOAD")
        .output()
        .expect("the daemon's program is there");
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout).ok()?;
    let cards = find(&answer, "cards")?.as_array()?;
    cards.iter().map(|card| card["used"].as_u64()).collect()
}

fn find<'a>(value: &'a serde_json::Value, name: &str) -> Option<&'a serde_json::Value> {
    let members = value.as_object()?;
    members
        .get(name)
        .or_else(|| members.values().find_map(|inner| find(inner, name)))
}

/// From inside: what all processes hold on a card, by the driver's count.
pub(crate) fn held(card: usize) -> u64 {
    let socket = env::var_os("APPORTION_SIM_SOCKET").expect("the test outside has set it");
    ask(Path::new(&socket)).expect("the daemon answers")[card]
}

/// Runs the calling test's body with limits of this many MiB on the first cards of a machine with cards of 8 GiB.
pub(crate) fn limited<F: Fn(&LoadedCuda, &AgentAccount)>(limits: &[u64], body: F) {
    on(&[8192, 8192], limits, body);
}

/// Runs the calling test's body with limits, on a machine with cards of this many MiB.
pub(crate) fn on<F: Fn(&LoadedCuda, &AgentAccount)>(cards: &[u64], limits: &[u64], body: F) {
    if env::var_os(INSIDE).is_some() {
        return body(&LoadedCuda::start(), &AgentAccount::inherited());
    }
    let machine = MachineDaemon::start(cards);
    let account = machine.account(limits);
    let mut command = machine.command(this_program(), account.folder());
    run_inside::<F>(&mut command);
    assert_eq!(account.limits.cards().len(), limits.len());
}

pub(crate) fn this_program() -> PathBuf {
    env::current_exe().expect("a running program has a path")
}

/// Starts the test with the body `F` again, inside.
pub(crate) fn run_inside<F>(command: &mut Command) {
    let name = type_name::<F>();
    let name = name.trim_end_matches("::{{closure}}");
    let name = name.split_once("::").map_or(name, |(_, test)| test);
    let output = command
        .args([name, "--exact", "--nocapture"])
        .env(INSIDE, "1")
        .output()
        .expect("a test can start itself");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(
        output.status.success(),
        "{name}, inside: {}\n{out}{err}",
        output.status
    );
    assert!(
        out.contains("1 passed"),
        "{name} did not run inside:\n{out}{err}"
    );
}

//! A machine for one test: the simulated driver, agents, and programs with a context. All end when it is dropped.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use apportion_proto::v1::{
    AllocateRequest, Allocation, CommitRequest, Holder, ListReply, ListRequest, Share, Shortfall,
    allocate_reply, holder,
};
use apportion_proto::{AgentClient, connect};
use tempfile::TempDir;

pub(crate) const MIB: u64 = 1 << 20;
/// The memory of each card of the simulated driver.
pub(crate) const CARD: u64 = 16 * 1024 * MIB;
/// The longest wait, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// Waits until `seen` returns something.
pub(crate) async fn eventually<T>(what: &str, mut seen: impl AsyncFnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = seen().await {
            return found;
        }
        assert!(Instant::now() < deadline, "not within {PATIENCE:?}: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// A child that is killed when dropped.
pub(crate) struct KillOnDrop(pub(crate) Child);

impl KillOnDrop {
    pub(crate) fn pid(&self) -> u32 {
        self.0.id()
    }

    /// Tells a program with a context to open another one.
    pub(crate) fn one_more_context(&mut self) {
        let input = self.0.stdin.as_mut().expect("its input is a pipe");
        input.write_all(b"\n").expect("it reads");
    }

    /// Kills it and waits for its end.
    pub(crate) fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        self.kill();
    }
}

pub(crate) struct Host {
    dir: TempDir,
    driver: KillOnDrop,
}

impl Host {
    pub(crate) fn new(gpus: u32) -> Self {
        let dir = tempfile::tempdir().expect("a folder for the test");
        let driver = start_driver(&dir.path().join("driver.sock"), gpus, "580");
        Self { dir, driver }
    }

    /// A machine with a driver of this release.
    pub(crate) fn with_release(release: &str) -> Self {
        let dir = tempfile::tempdir().expect("a folder for the test");
        let driver = start_driver(&dir.path().join("driver.sock"), 1, release);
        Self { dir, driver }
    }

    /// Replaces the simulated driver by one with other cards.
    pub(crate) fn replace_driver(&mut self, gpus: u32) {
        self.driver.kill();
        self.driver = start_driver(&self.dir.path().join("driver.sock"), gpus, "580");
    }

    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn instance(&self) -> PathBuf {
        self.dir.path().join("instance")
    }

    /// The agent's command on this machine, with options.
    pub(crate) fn agent_command(&self, options: &[&str]) -> Command {
        let mut command = self.program();
        command
            .arg("--dir")
            .arg(self.instance())
            .args(["--metrics-address", "127.0.0.1:0"]);
        command
            .args(["--tick", "50", "--log", "debug"])
            .args(options);
        command
    }

    fn program(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_apportion-agent"));
        command
            .env("APPORTION_SIM_SOCKET", self.dir.path().join("driver.sock"))
            .env("LD_LIBRARY_PATH", libraries().join("sim"))
            .env(
                "APPORTION_NVML_LIBRARY",
                libraries().join("sim/libnvidia-ml.so.1"),
            )
            .env_remove("APPORTION_ACCOUNT")
            .env_remove("LD_PRELOAD")
            .stdin(Stdio::null());
        command
    }

    /// Starts an agent and waits until it answers.
    pub(crate) async fn agent(&self, options: &[&str]) -> (KillOnDrop, AgentClient) {
        let log = fs::File::options()
            .create(true)
            .append(true)
            .open(self.log_path());
        let mut command = self.agent_command(options);
        command.stderr(log.expect("the folder is writable"));
        let agent = KillOnDrop(command.spawn().expect("the agent is built"));
        let client = self.client().await;
        (agent, client)
    }

    pub(crate) async fn client(&self) -> AgentClient {
        let socket = self.instance().join("agent.sock");
        eventually("an agent answers", async || {
            let mut client = connect(&socket).await.ok()?;
            client.list(ListRequest {}).await.ok().map(|_| client)
        })
        .await
    }

    /// Starts a program with a context on the first card that it sees.
    pub(crate) fn context(&self, account: Option<&Path>, cards: &str) -> KillOnDrop {
        self.start_context(self.program(), account, cards)
    }

    /// The same as another user.
    pub(crate) fn context_of(&self, account: Option<&Path>, cards: &str, user: u32) -> KillOnDrop {
        let mut command = self.program();
        command.uid(user).gid(user);
        self.start_context(command, account, cards)
    }

    fn start_context(
        &self,
        mut command: Command,
        account: Option<&Path>,
        cards: &str,
    ) -> KillOnDrop {
        command
            .arg("probe-context")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        command.env("CUDA_VISIBLE_DEVICES", cards);
        account.map(|account| command.env("APPORTION_ACCOUNT", account));
        let mut child = command.spawn().expect("the agent is built");
        let mut line = String::new();
        let output = child.stdout.as_mut().expect("its output is a pipe");
        BufReader::new(output)
            .read_line(&mut line)
            .expect("it says when it is ready");
        assert_eq!(line, "ready\n");
        KillOnDrop(child)
    }

    /// Controls the simulated hardware: sends one JSON request to the simulated driver.
    pub(crate) fn play(&self, request: &str) {
        self.ask(request);
    }

    /// The simulated driver's answer to one JSON request.
    pub(crate) fn ask(&self, request: &str) -> String {
        let mut command = Command::new(libraries().join("apportion-simd"));
        command
            .arg("--socket")
            .arg(self.dir.path().join("driver.sock"))
            .args(["--ask", request]);
        let said = command.output().expect("the simulated driver is staged");
        assert!(
            said.status.success(),
            "{}",
            String::from_utf8_lossy(&said.stderr)
        );
        String::from_utf8_lossy(&said.stdout).into_owned()
    }

    pub(crate) fn freeze_driver(&self, frozen: bool) {
        use rustix::process::{Pid, Signal, kill_process};
        let pid = Pid::from_child(&self.driver.0);
        let signal = if frozen { Signal::STOP } else { Signal::CONT };
        kill_process(pid, signal).expect("the driver runs");
    }

    fn log_path(&self) -> PathBuf {
        self.dir.path().join("agent.log")
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    pub(crate) fn http(&self, path: &str) -> String {
        let address = fs::read_to_string(self.instance().join("metrics.addr"));
        let mut stream = TcpStream::connect(address.expect("the agent wrote its address"))
            .expect("metrics are served");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        write!(
            stream,
            "GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
        )
        .expect("it listens");
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("it answers");
        text
    }

    /// The value of the first line that begins with `series` and contains `label`.
    pub(crate) fn metric(&self, series: &str, label: &str) -> Option<f64> {
        let text = self.http("/metrics");
        let mut lines = text
            .lines()
            .filter(|line| line.starts_with(series) && line.contains(label));
        lines.next()?.rsplit(' ').next()?.parse().ok()
    }
}

/// The library folder of the staged tree.
fn libraries() -> PathBuf {
    let staged = std::env::var_os("APPORTION_STAGED")
        .map(PathBuf::from)
        .or_else(|| {
            Path::new(env!("CARGO_BIN_EXE_apportion-agent"))
                .ancestors()
                .nth(2)
                .map(|t| t.join("apportion"))
        });
    let libraries = staged.unwrap_or_default().join("lib/apportion");
    assert!(
        libraries.exists(),
        "nothing in {}: run `cargo xtask build` first",
        libraries.display()
    );
    libraries
}

fn start_driver(socket: &Path, gpus: u32, release: &str) -> KillOnDrop {
    let mut daemon = Command::new(libraries().join("apportion-simd"));
    daemon
        .arg("--socket")
        .arg(socket)
        .args(["--gpus", &gpus.to_string(), "--driver", release]);
    let driver = daemon.stdin(Stdio::null()).spawn();
    let driver = KillOnDrop(driver.expect("the simulated driver is staged"));
    let deadline = Instant::now() + PATIENCE;
    while UnixStream::connect(socket).is_err() {
        assert!(
            Instant::now() < deadline,
            "the simulated driver does not listen"
        );
        std::thread::yield_now();
    }
    driver
}

/// Runs the command to its end.
pub(crate) fn output(mut command: Command) -> Output {
    command.output().expect("the agent is built")
}

pub(crate) async fn list(client: &mut AgentClient) -> ListReply {
    client
        .list(ListRequest {})
        .await
        .expect("the agent lists")
        .into_inner()
}

pub(crate) async fn card(client: &mut AgentClient, index: usize) -> apportion_proto::v1::Card {
    list(client).await.cards.swap_remove(index)
}

/// A request for `mib` MiB of the first card.
pub(crate) async fn wish(client: &mut AgentClient, name: &str, mib: u64) -> AllocateRequest {
    let card = card(client, 0).await.uuid;
    AllocateRequest {
        idempotency_key: name.into(),
        name: name.into(),
        shares: vec![Share {
            card,
            bytes: mib * MIB,
            limit_bytes: 0,
        }],
        ttl_ms: 0,
        ..AllocateRequest::default()
    }
}

pub(crate) async fn allocate(
    client: &mut AgentClient,
    name: &str,
    mib: u64,
) -> Result<Allocation, Shortfall> {
    let request = wish(client, name, mib).await;
    let reply = client
        .allocate(request)
        .await
        .expect("the agent answers")
        .into_inner();
    match reply.result.expect("a reply has a result") {
        allocate_reply::Result::Allocation(allocation) => Ok(allocation),
        allocate_reply::Result::Shortfall(shortfall) => Err(shortfall),
    }
}

pub(crate) async fn commit(client: &mut AgentClient, id: &str, pid: u32) -> Allocation {
    let holder = Some(Holder {
        kind: Some(holder::Kind::Pid(pid)),
    });
    let request = CommitRequest {
        id: id.into(),
        holder,
    };
    let reply = client.commit(request).await.expect("the agent commits");
    reply
        .into_inner()
        .allocation
        .expect("a commit has its allocation")
}

/// The allocation, if it exists.
pub(crate) async fn find(client: &mut AgentClient, id: &str) -> Option<Allocation> {
    list(client)
        .await
        .allocations
        .into_iter()
        .find(|allocation| allocation.id == id)
}

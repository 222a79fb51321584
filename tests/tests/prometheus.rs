//! Prometheus itself reads the metrics: its linter has no complaint, and a server scrapes them.
//! `PROMETHEUS` and `PROMTOOL` name the programs, or the `PATH` has them.

use std::ffi::OsString;
use std::io::Write;
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};

use apportion_tests::{MIB, PATIENCE, TestHost, eventually};

fn program(variable: &str, usual: &str) -> Command {
    Command::new(std::env::var_os(variable).unwrap_or_else(|| OsString::from(usual)))
}

#[test]
fn promtool_has_no_complaint() {
    let host = TestHost::new();
    let _agent = host.agent(&[]);
    let mut victim = host.victim(&["--gpu-memory", "2000", "--name", "team-a/train/main"]);
    victim.step("alloc 1M").ok();
    let answer = host.http("/metrics");
    let (_, metrics) = answer.split_once("\r\n\r\n").expect("a body");
    let mut promtool = program("PROMTOOL", "promtool");
    promtool.args(["check", "metrics"]).stdin(Stdio::piped());
    let mut promtool = promtool.stderr(Stdio::piped()).spawn().expect("promtool");
    let mut stdin = promtool.stdin.take().expect("it is piped");
    stdin.write_all(metrics.as_bytes()).expect("promtool reads");
    drop(stdin);
    let output = promtool.wait_with_output().expect("promtool ends");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.is_empty(), "{said}");
}

/// A Prometheus server that scrapes one address. Dropping this stops it.
struct PrometheusServer {
    child: Child,
    address: String,
    _folder: tempfile::TempDir,
}

impl PrometheusServer {
    fn start(target: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let config = folder.path().join("prometheus.yml");
        let text = format!(
            "global: {{scrape_interval: 1s}}\nscrape_configs: [{{job_name: apportion, honor_labels: true, \
             static_configs: [{{targets: [\"{target}\"]}}]}}]\n"
        );
        std::fs::write(&config, text).expect("the folder is writable");
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("it is bound").to_string();
        drop(listener);
        let mut command = program("PROMETHEUS", "prometheus");
        command
            .arg(format!("--config.file={}", config.display()))
            .arg(format!("--storage.tsdb.path={}", folder.path().display()))
            .arg(format!("--web.listen-address={address}"))
            .args(["--log.level=error"])
            .stdin(Stdio::null());
        Self {
            child: command.spawn().expect("prometheus"),
            address,
            _folder: folder,
        }
    }

    /// The value of the only series of `query`.
    fn ask(&self, query: &str) -> Option<String> {
        use std::io::Read;
        let mut stream = std::net::TcpStream::connect(&self.address).ok()?;
        let request = format!("GET /api/v1/query?query={query} HTTP/1.0\r\n\r\n");
        stream.write_all(request.as_bytes()).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let (_, body) = answer.split_once("\r\n\r\n")?;
        let body: serde_json::Value = serde_json::from_str(body).ok()?;
        let value = &body["data"]["result"][0]["value"][1];
        value.as_str().map(str::to_owned)
    }
}

impl Drop for PrometheusServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_server_scrapes_what_a_container_was_given() {
    let host = TestHost::new();
    let _agent = host.agent(&[]);
    let mut victim = host.victim(&["--gpu-memory", "2000", "--name", "team-a/train/main"]);
    victim.step("alloc 1M").ok();
    let server = PrometheusServer::start(host.metrics_address().trim());
    let limit =
        "apportion_container_memory_limit_bytes%7Bnamespace=%22team-a%22,pod=%22train%22%7D";
    // The server reloads its targets every five seconds.
    eventually(4 * PATIENCE, "the limit was scraped", || {
        server.ask(limit) == Some((2000 * MIB).to_string())
    });
    assert_eq!(
        server
            .ask("apportion_grants_total%7Bresult=%22accepted%22%7D")
            .as_deref(),
        Some("1")
    );
}

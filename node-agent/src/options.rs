//! The agent's settings, one row each. The parser, the help and the error messages use the rows. A flag takes
//! precedence over its environment variable, and that over the default.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use apportion_abi::units::parse_memory;
use apportion_abi::{Bytes, place};
use apportion_ledger::OffenderPolicy;

use crate::driver::Sizes;
use crate::failure::AgentFailure;
use crate::tenant::AllowedUsers;

mod cards;
mod kubelet;
mod nri;
mod runtime;
mod tcp;

pub(crate) use nri::NriOptions;
pub(crate) use runtime::RuntimeOptions;
pub(crate) use tcp::TcpOptions;

/// The NVML of the system's library path.
const SYSTEM_NVML: &str = "libnvidia-ml.so.1";

/// One setting.
struct AgentSetting {
    flag: &'static str,
    env: &'static str,
    form: &'static str,
    default: &'static str,
    help: &'static str,
    set: fn(&mut AgentOptions, &str) -> bool,
}

/// General settings. The switches `--sim`, `--help` and `--version` have no row.
const ROWS: &[AgentSetting] = &[
    AgentSetting {
        flag: "--dir",
        env: place::ENV_DIR,
        form: "PATH",
        default: "/run/apportion for root, else $XDG_RUNTIME_DIR/apportion; with --sim its subfolder sim",
        help: "Folder of the agent's socket, checkpoint and accounts",
        set: |options, text| {
            options.dir = PathBuf::from(text);
            !text.is_empty()
        },
    },
    AgentSetting {
        flag: "--metrics-address",
        env: "APPORTION_METRICS_ADDRESS",
        form: "IP:PORT or none",
        default: "127.0.0.1:9408, or another port if that one is taken",
        help: "Address of /metrics, /healthz and /readyz",
        set: |options, text| {
            options.metrics = match (text, text.parse()) {
                ("none", _) => MetricsAddress::Off,
                (_, Ok(address)) => MetricsAddress::At(address),
                (_, Err(_)) => return false,
            };
            true
        },
    },
    AgentSetting {
        flag: "--idle-exit",
        env: "APPORTION_IDLE_EXIT",
        form: "seconds, 0 for never",
        default: "0",
        help: "Exit after this time without an allocation and without a request",
        set: |options, text| {
            let seconds: Option<u32> = text.parse().ok();
            let wait = seconds.filter(|seconds| *seconds > 0);
            options.idle_exit = wait.map(|wait| Duration::from_secs(wait.into()));
            seconds.is_some()
        },
    },
    AgentSetting {
        flag: "--users",
        env: "APPORTION_USERS",
        form: "own or all",
        default: "own: the agent's user and root",
        help: "Users of this machine that may ask for shares. With all, which needs root, each user changes only its own allocations",
        set: |options, text| {
            options.users = match text {
                "all" if rustix::process::geteuid().is_root() => AllowedUsers::All,
                "own" => AllowedUsers::Own,
                _ => return false,
            };
            true
        },
    },
    AgentSetting {
        flag: "--user-quota",
        env: "APPORTION_USER_QUOTA",
        form: "MiB of each GPU; also 8192Mi or 8Gi",
        default: "none: what is free",
        help: "Most memory of each GPU that one user can be granted with --users all; root has no quota",
        set: |options, text| {
            options.user_quota = parse_memory(text);
            options.user_quota.is_some()
        },
    },
    AgentSetting {
        flag: "--node-name",
        env: "APPORTION_NODE_NAME",
        form: "name of a node",
        default: "none: the API server is not used",
        help: "Kubernetes node of this agent: publish its GPUs and events, and read its pods (in-cluster configuration or kubeconfig)",
        set: |options, text| {
            options.node = Some(text.to_owned());
            !text.is_empty()
        },
    },
    AgentSetting {
        flag: "--log",
        env: "APPORTION_LOG",
        form: "error, warn, info, debug or trace",
        default: "info",
        help: "Log level, on standard error",
        set: |options, text| {
            let level: Option<tracing::Level> = text.parse().ok();
            options.log = level.unwrap_or(tracing::Level::INFO);
            level.is_some()
        },
    },
    AgentSetting {
        flag: "--log-format",
        env: "APPORTION_LOG_FORMAT",
        form: "text or json",
        default: "text",
        help: "Format of log lines",
        set: |options, text| {
            options.is_json = text == "json";
            matches!(text, "text" | "json")
        },
    },
];

/// The settings by topic.
const GROUPS: [(&str, &[AgentSetting]); 6] = [
    ("The agent", ROWS),
    ("GPUs and limits", cards::ROWS),
    ("Requests over TCP", tcp::ROWS),
    ("The kubelet", kubelet::ROWS),
    ("The container runtime", runtime::ROWS),
    ("Containers without a grant", nri::ROWS),
];

/// Every setting with a value.
fn rows() -> impl Iterator<Item = &'static AgentSetting> {
    GROUPS.into_iter().flat_map(|(_, rows)| rows)
}

/// What happens to a pod that holds a slot but was placed by no scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UnplacedPolicy {
    /// It does not start.
    Deny,
    /// It gets its request on this node.
    LocalFit,
}

/// Where metrics are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MetricsAddress {
    /// The default address, or another port if that is taken.
    Usual,
    /// Exactly here.
    At(SocketAddr),
    /// Nowhere.
    Off,
}

/// The settings of one run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AgentOptions {
    pub(crate) dir: PathBuf,
    /// Whether the cards are the simulated ones.
    pub(crate) is_simulated: bool,
    pub(crate) nvml: OsString,
    pub(crate) metrics: MetricsAddress,
    /// For cards that do not report their memory size.
    pub(crate) card_memory: Sizes,
    pub(crate) policy: OffenderPolicy,
    /// Overrides of `policy`, by namespace.
    pub(crate) policies: BTreeMap<String, OffenderPolicy>,
    /// `None`: measure it with a probe.
    pub(crate) context_reserve: Option<Bytes>,
    pub(crate) tick: Duration,
    pub(crate) idle_exit: Option<Duration>,
    /// Which local users may send requests.
    pub(crate) users: AllowedUsers,
    /// The most memory of each card for each user other than root.
    pub(crate) user_quota: Option<Bytes>,
    /// The node to publish for; `None`: publish nothing.
    pub(crate) node: Option<String>,
    pub(crate) tcp: TcpOptions,
    pub(crate) second_lock: NriOptions,
    pub(crate) log: tracing::Level,
    pub(crate) is_json: bool,
    /// `None`: no kubelet.
    pub(crate) kubelet_dir: Option<PathBuf>,
    pub(crate) cdi_dir: PathBuf,
    pub(crate) runtime: RuntimeOptions,
    pub(crate) slots: u16,
    pub(crate) unplaced: UnplacedPolicy,
    /// Whether whole cards are served to the kubelet.
    pub(crate) has_whole_cards: bool,
    /// Whether containers get `/etc/ld.so.preload`.
    pub(crate) has_preload_list: bool,
}

impl AgentOptions {
    /// The socket of the simulated driver, if it is used.
    pub(crate) fn driver_socket(&self) -> Option<PathBuf> {
        let named = std::env::var_os(place::ENV_SIM_SOCKET).filter(|path| !path.is_empty());
        let usual = || self.dir.join(place::SIM_SOCKET);
        self.is_simulated
            .then(|| named.map_or_else(usual, PathBuf::from))
    }
}

/// What the command line requests.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum AgentCommand {
    /// Run the agent.
    Serve(Box<AgentOptions>),
    /// Run as the child that opens a context on a card, so that the agent can measure it.
    ProbeContext,
    /// Print this text.
    Print(String),
}

/// Reads the command line (without the program's name) and the environment.
pub(crate) fn parse(
    arguments: &[String],
    env: impl Fn(&str) -> Option<String>,
) -> Result<AgentCommand, AgentFailure> {
    match arguments.first().map(String::as_str) {
        Some("probe-context") => return Ok(AgentCommand::ProbeContext),
        _ if arguments.iter().any(|a| a == "--help" || a == "-h") => {
            return Ok(AgentCommand::Print(help()));
        }
        _ if arguments.iter().any(|a| a == "--version" || a == "-V") => {
            return Ok(AgentCommand::Print(format!(
                "apportion-agent {}\n",
                env!("CARGO_PKG_VERSION")
            )));
        }
        _ => {}
    }
    let is_simulated = arguments.iter().any(|a| a == "--sim")
        || env(place::ENV_SIM_SOCKET).is_some_and(|s| !s.is_empty());
    let mut options = defaults(is_simulated);
    let mut mistakes = Vec::new();
    for row in rows() {
        if let Some(text) = env(row.env).filter(|text| !text.is_empty()) {
            // The variable names the folder of the machine's own instance.
            let text = if is_simulated && row.flag == "--dir" {
                format!("{text}/{}", place::DIR_SIM)
            } else {
                text
            };
            enter(row, &mut options, row.env, &text, &mut mistakes);
        }
    }
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        let (flag, value) = match argument.split_once('=') {
            Some((flag, value)) => (flag, Some(value.to_owned())),
            None => (argument.as_str(), None),
        };
        if flag == "--sim" {
            continue;
        }
        let Some(row) = rows().find(|row| row.flag == flag) else {
            mistakes.push(format!("unknown option {argument:?}"));
            continue;
        };
        match value.or_else(|| rest.next().cloned()) {
            Some(text) => enter(row, &mut options, flag, &text, &mut mistakes),
            None => mistakes.push(format!("{flag} needs a value ({})", row.form)),
        }
    }
    mistakes.extend(options.tcp.mistake(options.node.as_deref()));
    if mistakes.is_empty() {
        Ok(AgentCommand::Serve(Box::new(options)))
    } else {
        Err(AgentFailure::usage(mistakes))
    }
}

fn enter(
    row: &AgentSetting,
    options: &mut AgentOptions,
    name: &str,
    text: &str,
    mistakes: &mut Vec<String>,
) {
    if !(row.set)(options, text) {
        mistakes.push(format!(
            "{name} {text:?} is not valid; expected: {}",
            row.form
        ));
    }
}

fn defaults(is_simulated: bool) -> AgentOptions {
    let mut dir = place::instance_dir(rustix::process::geteuid().as_raw());
    let mut nvml = PathBuf::from(SYSTEM_NVML);
    if is_simulated {
        dir.push(place::DIR_SIM);
        let beside = place::lib_dir().map(|lib| lib.join(place::SIM_LIBRARIES).join(SYSTEM_NVML));
        nvml = beside.filter(|library| library.exists()).unwrap_or(nvml);
    }
    AgentOptions {
        dir,
        is_simulated,
        nvml: nvml.into_os_string(),
        metrics: MetricsAddress::Usual,
        card_memory: Sizes::new(),
        policy: OffenderPolicy::Observe,
        policies: BTreeMap::new(),
        context_reserve: None,
        tick: Duration::from_millis(250),
        idle_exit: None,
        users: AllowedUsers::Own,
        user_quota: None,
        node: None,
        tcp: TcpOptions::default(),
        second_lock: NriOptions::default(),
        log: tracing::Level::INFO,
        is_json: false,
        kubelet_dir: None,
        cdi_dir: PathBuf::from("/var/run/cdi"),
        runtime: RuntimeOptions::default(),
        slots: 128,
        unplaced: UnplacedPolicy::Deny,
        has_whole_cards: false,
        has_preload_list: true,
    }
}

fn help() -> String {
    let mut text = String::from(
        "apportion-agent: grants shares of this machine's GPUs and enforces their limits\n\n\
         Usage: apportion-agent [OPTIONS]\n\nOptions:\n",
    );
    for row in rows() {
        let _ = writeln!(text, "  {} <{}>\n        {}", row.flag, row.form, row.help);
        let _ = writeln!(
            text,
            "        [env: {}] [default: {}]",
            row.env, row.default
        );
    }
    text.push_str(
        "  --sim\n        Use simulated GPUs (the default where APPORTION_SIM_SOCKET is set)\n  \
         -h, --help\n        Print help\n  -V, --version\n        Print version\n\n\
         Exit codes: 0 success; 1 failure while running; 64 bad usage or configuration.\n",
    );
    text
}

#[cfg(test)]
mod tests {
    use apportion_reference::{cell, code, hold, table};

    use super::*;

    fn parsed(arguments: &[&str], env: &[(&str, &str)]) -> Result<AgentOptions, AgentFailure> {
        let arguments: Vec<_> = arguments.iter().map(|a| (*a).to_owned()).collect();
        let env = |name: &str| {
            env.iter()
                .find(|(known, _)| *known == name)
                .map(|(_, value)| (*value).to_owned())
        };
        match parse(&arguments, env)? {
            AgentCommand::Serve(options) => Ok(*options),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_flag_beats_the_environment_and_that_beats_the_default() {
        let env = [("APPORTION_TICK", "50"), ("APPORTION_POLICY", "kill")];
        let options = parsed(&["--tick=100", "--idle-exit", "30"], &env).unwrap();
        assert_eq!(options.tick, Duration::from_millis(100));
        assert_eq!(options.policy, OffenderPolicy::Kill);
        assert_eq!(options.idle_exit, Some(Duration::from_secs(30)));
        assert_eq!(options.metrics, MetricsAddress::Usual);
    }

    #[test]
    fn every_mistake_is_said_with_name_value_and_form() {
        let env = [("APPORTION_POLICY", "maim")];
        let failure = parsed(&["--tick", "5", "--colour", "--dir"], &env).unwrap_err();
        let all = failure.lines.join("\n");
        for part in [
            "APPORTION_POLICY \"maim\"",
            "--tick \"5\"",
            "10 to 60000",
            "--colour",
            "--dir needs",
        ] {
            assert!(all.contains(part), "{part} is not in {all}");
        }
        assert_eq!(failure.lines.len(), 4);
    }

    #[test]
    fn a_namespace_can_have_a_policy_of_its_own() {
        let row = |namespace: &str, policy| (namespace.to_owned(), policy);
        let arguments = [
            "--policy=evict",
            "--policy-override=team-a=observe,team-b=kill",
            "--policy-override=team-c=evict",
        ];
        let options = parsed(&arguments, &[]).unwrap();
        let expected = BTreeMap::from([
            row("team-a", OffenderPolicy::Observe),
            row("team-b", OffenderPolicy::Kill),
            row("team-c", OffenderPolicy::Evict),
        ]);
        assert_eq!(options.policies, expected);
        for wrong in [
            "team-a",
            "=kill",
            "team-a=maim",
            "Team=kill",
            "a/b=kill",
            "",
        ] {
            assert!(
                parsed(&["--policy-override", wrong], &[]).is_err(),
                "{wrong:?}"
            );
        }
    }

    #[test]
    fn the_simulated_instance_lies_in_its_own_folder() {
        let env = [("APPORTION_DIR", "/x")];
        assert_eq!(
            parsed(&["--sim"], &env).unwrap().dir,
            PathBuf::from("/x/sim")
        );
        assert_eq!(parsed(&[], &env).unwrap().dir, PathBuf::from("/x"));
        assert_eq!(
            parsed(&["--sim", "--dir", "/y"], &env).unwrap().dir,
            PathBuf::from("/y")
        );
    }

    #[test]
    fn the_reference_has_every_setting() {
        let mut text = String::new();
        for (title, rows) in GROUPS {
            let rows = rows.iter().map(|row| {
                let form = code(&format!("{} <{}>", row.flag, row.form));
                let default = cell(row.default);
                [form, code(row.env), default, cell(row.help)]
            });
            let titles = ["option", "variable", "default", "meaning"];
            let _ = writeln!(text, "### {title}\n\n{}", table(titles, rows));
        }
        hold("agent", "options", &text);
    }

    #[test]
    fn the_help_names_every_setting() {
        let text = help();
        assert!(rows().all(|row| text.contains(row.flag) && text.contains(row.env)));
    }
}

//! The command line. The parser, the help texts and the reference page are generated from it.
//!
//! A flag takes precedence over its environment variable, and that over the default. An empty variable counts as unset.
//! What depends on other options or on the machine is settled after parsing: the folders of simulated GPUs, and whether
//! the options fit together.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use apportion_abi::paths;
use apportion_exit::CommandFailure;
use clap::parser::ValueSource;
use clap::{ArgMatches, CommandFactory, FromArgMatches, Parser, Subcommand};

mod api;
mod cards;
mod kubelet;
mod mistakes;
mod nri;
mod runtime;
mod tcp;
mod telemetry;

use api::ApiOptions;
pub(crate) use cards::{BurstReclaim, CardOptions};
use kubelet::KubeletOptions;
pub(crate) use kubelet::{RefusedClaimPolicy, UnplacedPolicy};
use nri::NriOptions;
pub(crate) use runtime::RuntimeOptions;
pub(crate) use tcp::TcpOptions;
pub(crate) use telemetry::{LogFormat, MetricsAddress, TelemetryOptions};

const EXIT_CODES: &str =
    "Exit codes: 0 success; 1 failure while running; 64 bad usage or configuration.";

/// Grant shares of this machine's GPUs and enforce their limits.
#[derive(Clone, Debug, Parser)]
#[command(
    name = "apportion-agent",
    version,
    disable_help_subcommand = true,
    args_override_self = true,
    next_help_heading = "The agent",
    after_help = EXIT_CODES
)]
pub(crate) struct AgentOptions {
    #[command(subcommand)]
    command: Option<AgentCommand>,

    /// Folder of the agent's socket, checkpoint and accounts
    /// [default: /run/apportion for root, else $XDG_RUNTIME_DIR/apportion; with --sim its subfolder sim]
    #[arg(
        long,
        env = paths::ENV_DIR,
        value_name = "PATH",
        default_value_os_t = paths::instance_dir(rustix::process::geteuid().as_raw()),
        hide_default_value = true
    )]
    pub(crate) dir: PathBuf,

    /// Use simulated GPUs (the default where APPORTION_SIM_SOCKET is set)
    #[arg(long)]
    pub(crate) sim: bool,

    /// Exit after this time without an allocation and without a request; 0 for never
    #[arg(
        long,
        env = "APPORTION_IDLE_EXIT",
        value_name = "SECONDS",
        default_value_t = 0
    )]
    idle_exit: u32,

    /// Kubernetes node of this agent: publish its GPUs and events, and read its pods (in-cluster configuration or
    /// kubeconfig) [default: none, the API server is not used]
    #[arg(long = "node-name", env = "APPORTION_NODE_NAME", value_name = "NODE",
        value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub(crate) node: Option<String>,

    #[command(flatten)]
    pub(crate) telemetry: TelemetryOptions,

    #[command(flatten)]
    pub(crate) api: ApiOptions,

    #[command(flatten)]
    pub(crate) cards: CardOptions,

    #[command(flatten)]
    pub(crate) kubelet: KubeletOptions,

    #[command(flatten)]
    pub(crate) runtime: RuntimeOptions,

    #[command(flatten)]
    pub(crate) nri: NriOptions,
}

/// What the program does instead of serving.
#[derive(Clone, Debug, Subcommand)]
enum AgentCommand {
    /// Open a context on a card, as a child of the agent, so that the agent can measure it
    #[command(hide = true)]
    ProbeContext,
    /// Put processes to sleep or wake them, as a child of the agent
    #[command(hide = true)]
    MoveProcesses,
}

impl AgentOptions {
    /// Reads the command line and the environment. `None`: the help or the version was printed.
    pub(crate) fn read() -> Result<Option<Self>, CommandFailure> {
        let Some(matches) = mistakes::matches(Self::command(), std::env::args_os().collect())?
        else {
            return Ok(None);
        };
        let options = Self::from_arg_matches(&matches);
        let mut options = options.map_err(|error| CommandFailure::from_clap(&error))?;
        options.settle_simulation(&matches);
        let node = options.node.as_deref();
        let of_tcp = options.api.tcp.mistake(node);
        let all: Vec<String> = of_tcp
            .into_iter()
            .chain(options.kubelet.mistake(node))
            .collect();
        if all.is_empty() {
            Ok(Some(options))
        } else {
            Err(mistakes::failure(all))
        }
    }

    /// Whether this process is the child that opens a context on a card.
    pub(crate) fn is_context_probe(&self) -> bool {
        matches!(self.command, Some(AgentCommand::ProbeContext))
    }

    /// Whether this process is the child that puts processes to sleep and wakes them.
    pub(crate) fn is_process_mover(&self) -> bool {
        matches!(self.command, Some(AgentCommand::MoveProcesses))
    }

    /// How long the agent stays without being needed; `None`: for ever.
    pub(crate) fn idle_exit(&self) -> Option<Duration> {
        (self.idle_exit > 0).then(|| Duration::from_secs(self.idle_exit.into()))
    }

    /// The socket of the simulated driver, if it is used.
    pub(crate) fn driver_socket(&self) -> Option<PathBuf> {
        if !self.sim {
            return None;
        }
        let named = simulated_socket().map(PathBuf::from);
        Some(named.unwrap_or_else(|| self.dir.join(paths::SIM_SOCKET)))
    }

    /// Simulated GPUs have a folder and libraries of their own. The variable names the folder of the machine's own
    /// instance; the flag names exactly the one to use.
    fn settle_simulation(&mut self, matches: &ArgMatches) {
        self.sim |= simulated_socket().is_some();
        if !self.sim {
            return;
        }
        if matches.value_source("dir") != Some(ValueSource::CommandLine) {
            self.dir.push(paths::DIR_SIM);
        }
        if matches.value_source("nvml_library") == Some(ValueSource::DefaultValue) {
            self.cards.use_simulated_nvml();
        }
    }
}

fn simulated_socket() -> Option<OsString> {
    std::env::var_os(paths::ENV_SIM_SOCKET).filter(|path| !path.is_empty())
}

#[cfg(test)]
mod tests {
    use apportion_ledger::OffenderPolicy;
    use apportion_reference::{HeadingDepth, hold, options};

    use super::*;

    fn parsed(arguments: &[&str]) -> Result<AgentOptions, clap::Error> {
        AgentOptions::try_parse_from([&["apportion-agent"], arguments].concat())
    }

    #[test]
    fn the_last_of_two_flags_counts() {
        let options = parsed(&["--tick=50", "--tick=100", "--idle-exit", "30"]).unwrap();
        assert_eq!(options.cards.tick, Duration::from_millis(100));
        assert_eq!(options.idle_exit(), Some(Duration::from_secs(30)));
        assert_eq!(options.telemetry.metrics(), MetricsAddress::Usual);
    }

    #[test]
    fn a_namespace_can_have_a_policy_of_its_own() {
        let arguments = [
            "--policy=evict",
            "--policy-override=team-a=observe,team-b=kill",
            "--policy-override=team-c=evict",
        ];
        let policies = parsed(&arguments).unwrap().cards.policy_override;
        let policies: Vec<_> = policies
            .iter()
            .map(|policy| (policy.namespace.as_str(), policy.policy))
            .collect();
        let expected = [
            ("team-a", OffenderPolicy::Observe),
            ("team-b", OffenderPolicy::Kill),
            ("team-c", OffenderPolicy::Evict),
        ];
        assert_eq!(policies, expected);
        for wrong in [
            "team-a",
            "=kill",
            "team-a=maim",
            "Team=kill",
            "a/b=kill",
            "",
        ] {
            assert!(parsed(&["--policy-override", wrong]).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_turn_is_a_time_with_a_unit() {
        let turn = |text: &str| {
            parsed(&["--suspend-turn", text]).map(|options| options.cards.suspend_turn.as_secs())
        };
        for (text, seconds) in [("1s", 1), ("30s", 30), ("5m", 300), ("24h", 86_400)] {
            assert_eq!(turn(text).unwrap(), seconds);
        }
        for wrong in ["", "s", "30", "0s", "25h", "1.5h", "-1s", "30\u{b5}"] {
            assert!(turn(wrong).is_err(), "{wrong:?}");
        }
        let deadline = |text: &str| {
            let options = parsed(&["--guarantee-deadline", text]);
            options.map(|options| options.cards.guarantee_deadline.as_secs())
        };
        for (text, seconds) in [("2s", 2), ("1m", 60)] {
            assert_eq!(deadline(text).unwrap(), seconds);
        }
        for wrong in ["", "1s", "61s", "30"] {
            assert!(deadline(wrong).is_err(), "{wrong:?}");
        }
        assert_eq!(
            parsed(&[]).unwrap().cards.burst_reclaim,
            BurstReclaim::Refuse
        );
    }

    #[test]
    fn exempt_namespaces_are_names_or_none() {
        let exempt = |text: &str| {
            parsed(&["--nri-exempt-namespaces", text]).map(|options| options.nri.exempt().to_vec())
        };
        assert_eq!(exempt("none").unwrap(), [""; 0]);
        assert_eq!(exempt("a,b").unwrap(), ["a", "b"]);
        assert!(exempt("a,,b").is_err() && exempt("").is_err());
    }

    #[test]
    fn the_reference_has_every_option() {
        let fresh = options(AgentOptions::command(), HeadingDepth(3));
        hold("agent", "options", &fresh);
    }
}

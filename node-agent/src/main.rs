//! The node agent: owns the GPUs of one machine, gives out shares of them, enforces the limits and reports the
//! state. It serves until it is stopped or nobody needs it. It leaves the accounts in place: the programs go on, and
//! the next agent takes them over.

#![forbid(unsafe_code)]

mod account;
mod agent;
mod api;
mod atomic_write;
mod claims;
mod delivery;
mod driver;
mod driver_wait;
mod instance;
mod kubelet;
mod options;
mod privilege;
mod processes;
mod runtime;
mod stop;
mod telemetry;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use apportion_abi::paths;
use apportion_bounded::ConnectionLimiter;
use apportion_exit::CommandFailure;
use tokio::sync::mpsc;
use tracing::{error, info, warn};

use crate::agent::NodeAgent;
use crate::api::fencing::FencingTokenStore;
use crate::api::request_tracker::RequestTracker;
use crate::api::service::AgentService;
use crate::api::tenant::AllowedUsers;
use crate::delivery::GrantDelivery;
use crate::instance::ServedInstance;
use crate::instance::machine::MachineLock;
use crate::options::{AgentOptions, LogFormat};

/// How long open requests may take when the agent stops.
const GRACE: Duration = Duration::from_secs(2);
/// How many requests may wait for the agent's loop.
const QUEUE: usize = 64;

fn main() -> ExitCode {
    let result = match AgentOptions::read() {
        Ok(None) => Ok(()),
        Ok(Some(options)) if options.is_context_probe() => {
            driver::probe::hold_contexts().map_err(|error| {
                CommandFailure::from_error(error.as_ref()).hint("only the agent runs this command")
            })
        }
        Ok(Some(options)) if options.is_process_mover() => driver::transition::carry_out_order()
            .map_err(|error| {
                CommandFailure::from_error(&error).hint("only the agent runs this command")
            }),
        Ok(Some(options)) => serve(options),
        Err(failure) => Err(failure),
    };
    apportion_exit::exit_code("apportion-agent", result)
}

fn serve(options: AgentOptions) -> Result<(), CommandFailure> {
    telemetry::log::start(&options.telemetry);
    let format = options.telemetry.log_format;
    start(options).map_err(|failure| match format {
        LogFormat::Text => failure,
        LogFormat::Json => {
            error!(problem = %failure, "Program failed");
            failure.logged()
        }
    })
}

fn start(options: AgentOptions) -> Result<(), CommandFailure> {
    // Must come before other threads start: capabilities belong to a thread.
    if rustix::process::geteuid().is_root() {
        let limits_groups =
            options.kubelet.kubelet_dir.is_some() && options.cards.has_driver_limits();
        privilege::drop_most(limits_groups)
            .map_err(|error| CommandFailure::from_error(&error).hint("see capabilities(7)"))?;
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime =
        runtime.map_err(|error| CommandFailure::from_error(&error).hint("see ulimit -n"))?;
    runtime.block_on(run(options))
}

async fn run(options: AgentOptions) -> Result<(), CommandFailure> {
    let mut instance = ServedInstance::take(&options.dir).map_err(|error| {
        CommandFailure::from_error(&error)
            .hint("use another folder with --dir, or stop the agent that uses this one")
    })?;
    let Some(driver) = driver_wait::driver(&options, &instance).await? else {
        return Ok(());
    };
    let machine = MachineLock::take(options.driver_socket().as_deref(), instance.dir()).await;
    match machine {
        Ok(machine) => instance.own(machine),
        // A user's agent must not keep the node's agent from starting.
        Err(error) if error.is_of_a_user() && options.kubelet.kubelet_dir.is_some() => {
            warn!(problem = %error, "GPUs are managed twice until the other agent ends");
        }
        Err(error) => return Err(CommandFailure::from_error(&error).hint(error.hint())),
    }
    info!(
        driver = driver.version,
        cards = driver.cards.len(),
        "Driver found"
    );

    if options.api.users == AllowedUsers::All {
        instance.open_to_all();
    }
    let file = instance.path(paths::METRICS_ADDRESS);
    let (metrics, address) = api::http::open(options.telemetry.metrics(), &file).await?;
    let listener = instance.listen().map_err(|error| {
        CommandFailure::from_error(&error)
            .hint("the path must be shorter than 108 bytes and its folder writable")
    })?;
    let socket = instance.path(paths::AGENT_SOCKET);
    let delivery = match &options.kubelet.kubelet_dir {
        Some(dir) => Some(
            GrantDelivery::prepare(dir, &options, instance.dir()).map_err(|error| {
                CommandFailure::from_error(&error)
                    .hint("the agent needs write access to --kubelet-dir and --cdi-dir")
            })?,
        ),
        None => None,
    };
    let node = options.node.clone();
    let certificate = instance.path("certificate.json");
    let fencing = FencingTokenStore::load(instance.path("term"));
    let (listeners, listening) = mpsc::channel(1);
    let mut agent = NodeAgent::new(options.clone(), instance, driver, listeners.clone());
    agent.set_metrics_address(address.clone());
    agent.take_first_sample().await;
    agent.try_driver_limits().await;
    let own = delivery
        .as_ref()
        .map(GrantDelivery::places)
        .unwrap_or_default();
    agent
        .start_nri(own)
        .map_err(|error| CommandFailure::from_error(&error).hint("see ulimit -u"))?;

    let contact = Arc::new(RequestTracker::new());
    let (requests, requested) = mpsc::channel(QUEUE);
    let handle = agent.handle();
    if let Some((delivery, dir)) = delivery.zip(options.kubelet.kubelet_dir.clone()) {
        // Check for rivals before the first request can arrive.
        let rival = kubelet::rival(&dir).await;
        if rival.is_some() {
            agent.meet(rival.as_ref());
        }
        kubelet::serve(
            dir,
            &options,
            requests.clone(),
            handle.clone(),
            delivery.offers(),
            rival,
        );
        agent.deliver(delivery);
    }
    let remote =
        api::tcp::TcpServer::open(&options.api.tcp, options.node.clone(), certificate).await?;
    let users = ConnectionLimiter::new("users", api::service::OF_USERS);
    if let Some(listener) = metrics {
        let limiter = remote
            .iter()
            .map(|remote| remote.limiter.clone())
            .chain([users.clone()])
            .collect();
        tokio::spawn(api::http::serve(listener, handle.views.clone(), limiter));
    }
    if let Some(node) = node {
        let address = remote.as_ref().map(|remote| remote.address.clone());
        tokio::spawn(telemetry::publish::publish(node, handle.clone(), address));
    }
    let service = AgentService {
        requests,
        agent: handle,
        contact: contact.clone(),
        users: options.api.users,
    };
    let (running, shutdown) = tokio::sync::oneshot::channel::<()>();
    // The channel has room for one listener, and this is the first.
    let _ = listeners.try_send(listener);
    let served = tokio::spawn(api::service::serve(
        service,
        listening,
        users,
        remote,
        fencing,
        async { drop(shutdown.await) },
    ));
    info!(socket = %socket.display(), metrics = address, "Agent started");

    agent.run(requested, contact, stop::stopped()?).await;
    drop(running);
    let _ = tokio::time::timeout(GRACE, served).await;
    info!("Agent stopped, accounts kept");
    Ok(())
}

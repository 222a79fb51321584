//! Keeps the plugin connected to a runtime.
//!
//! After a runtime restarts or drops the plugin, the plugin reconnects with growing pauses, and synchronization
//! tells it what it missed. A verdict never delays a runtime: it needs no lock, no disk and no other task. Only the start
//! of a container whose grant is limited by the driver waits, for a second at most.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::timeout;
use tracing::{info, warn};

use crate::container::NriContainer;
use crate::frame::{FrameDecoder, FrameError, encode};
use crate::session::{NriEvent, NriSession, NriSessionError, NriStage, WISHES};
use crate::verdict::{Grants, VerdictRules};

/// The pauses between attempts: each is twice the previous one, up to the last.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LAST_PAUSE: Duration = Duration::from_secs(5);
/// The most time from registration to synchronization. Runtimes allow a plugin 5 s.
const START_TIMEOUT: Duration = Duration::from_secs(15);
/// How long a container may wait for its limit before it starts. Runtimes drop a plugin that takes two seconds.
const START_PATIENCE: Duration = Duration::from_secs(1);
/// How long writing an answer may block.
const WRITE_TIMEOUT: Duration = Duration::from_secs(2);
/// The size of the read buffer.
const READ: usize = 64 << 10;

/// Where to connect, and the plugin's identity.
#[derive(Clone, Debug)]
pub struct NriClientConfig {
    /// The runtime's socket.
    pub socket: PathBuf,
    /// Letters, digits, `-`, `_`, `.` and `+`.
    pub name: String,
    /// Two digits that order the plugins.
    pub index: String,
    /// The rules for verdicts.
    pub rules: VerdictRules,
}

/// A container that starts when this is done with it, or a second later.
#[derive(Debug)]
pub struct StartingContainer {
    /// The container.
    pub container: NriContainer,
    /// To be answered or dropped once its limit is set.
    pub done: oneshot::Sender<()>,
}

/// Where a plugin reports.
#[derive(Clone, Debug)]
pub struct NriReceivers {
    /// All events.
    pub events: mpsc::Sender<NriEvent>,
    /// Containers with a limited grant that start.
    pub starting: mpsc::Sender<StartingContainer>,
}

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
enum NriConnectionError {
    #[error("failed to connect")]
    Connect(#[source] io::Error),
    #[error("the connection failed")]
    Socket(#[from] io::Error),
    #[error("the runtime closed the connection")]
    Closed,
    #[error("the runtime did not synchronise within {} s", START_TIMEOUT.as_secs())]
    Silent,
    #[error("the runtime does not read the answers")]
    Stuck,
    #[error(transparent)]
    Frame(#[from] FrameError),
    #[error(transparent)]
    Session(#[from] NriSessionError),
}

/// Keeps the plugin connected until the receiver of its events is gone.
pub async fn run(
    plugin: NriClientConfig,
    grants: watch::Receiver<Arc<Grants>>,
    receivers: NriReceivers,
) {
    let reports = &receivers.events;
    let mut pause = FIRST_PAUSE;
    let mut attempt = 0;
    let mut is_reported = false;
    while !reports.is_closed() {
        let mut stage = NriStage::Registering;
        let events = WISHES[attempt];
        let ended = connect(&plugin, events, &grants, &receivers, &mut stage).await;
        match stage {
            NriStage::Synchronized => {
                warn!(socket = %plugin.socket.display(), why = %ended, "NRI connection lost");
                let _ = reports.send(NriEvent::Disconnected).await;
                pause = FIRST_PAUSE;
                is_reported = true;
            }
            // The runtime closed the connection after it saw the events, so request fewer next time.
            NriStage::Configured
                if matches!(
                    ended,
                    NriConnectionError::Closed | NriConnectionError::Socket(_)
                ) =>
            {
                attempt = (attempt + 1) % WISHES.len()
            }
            NriStage::Configured | NriStage::Registering => {}
        }
        if !std::mem::replace(&mut is_reported, true) {
            warn!(socket = %plugin.socket.display(), why = %ended, "NRI connection failed");
        }
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = reports.closed() => return,
        }
        pause = LAST_PAUSE.min(pause * 2);
    }
}

/// Serves one connection. Sets how far it came, and returns why it ended.
async fn connect(
    plugin: &NriClientConfig,
    events: i32,
    grants: &watch::Receiver<Arc<Grants>>,
    receivers: &NriReceivers,
    stage: &mut NriStage,
) -> NriConnectionError {
    let reports = &receivers.events;
    let serving = async {
        let socket = UnixStream::connect(&plugin.socket);
        let mut socket = socket.await.map_err(NriConnectionError::Connect)?;
        let (mut session, (lane, register)) = NriSession::open(&plugin.name, &plugin.index, events);
        write(&mut socket, &encode(lane, &register)).await?;
        let mut decoder = FrameDecoder::default();
        let mut bytes = vec![0; READ];
        loop {
            let read = read(&mut socket, &mut bytes, *stage, reports).await?;
            for (lane, message) in decoder.feed(bytes.get(..read).unwrap_or_default())? {
                let grants = grants.borrow().clone();
                let step = session.take(lane, &message, &grants, &plugin.rules)?;
                if let Some(container) = step.starting {
                    await_limit(container, &receivers.starting).await;
                }
                if let Some((lane, answer)) = step.answer {
                    write(&mut socket, &encode(lane, &answer)).await?;
                }
                if session.stage() == NriStage::Synchronized && *stage != NriStage::Synchronized {
                    info!(socket = %plugin.socket.display(), events, "NRI plugin connected");
                }
                *stage = session.stage();
                if let Some(report) = step.events {
                    // Events are dropped if the receiver is slow; the runtime must never wait.
                    let _ = reports.try_send(report);
                }
            }
        }
    };
    let served: Result<std::convert::Infallible, NriConnectionError> = serving.await;
    match served {
        Err(ended) => ended,
        Ok(never) => match never {},
    }
}

/// Lets the receiver limit a container before it starts.
async fn await_limit(container: NriContainer, starting: &mpsc::Sender<StartingContainer>) {
    let (done, limited) = oneshot::channel();
    if starting
        .try_send(StartingContainer { container, done })
        .is_ok()
    {
        let _ = timeout(START_PATIENCE, limited).await;
    }
}

/// Reads the available bytes. Before synchronization the runtime must send something in time.
async fn read(
    socket: &mut UnixStream,
    bytes: &mut [u8],
    stage: NriStage,
    reports: &mpsc::Sender<NriEvent>,
) -> Result<usize, NriConnectionError> {
    let patience = match stage {
        NriStage::Synchronized => Duration::MAX,
        NriStage::Registering | NriStage::Configured => START_TIMEOUT,
    };
    let read = tokio::select! {
        read = timeout(patience, socket.read(bytes)) => read,
        () = reports.closed() => return Err(NriConnectionError::Closed),
    };
    match read.map_err(|_| NriConnectionError::Silent)?? {
        0 => Err(NriConnectionError::Closed),
        read => Ok(read),
    }
}

async fn write(socket: &mut UnixStream, bytes: &[u8]) -> Result<(), NriConnectionError> {
    let written = timeout(WRITE_TIMEOUT, socket.write_all(bytes)).await;
    Ok(written.map_err(|_| NriConnectionError::Stuck)??)
}

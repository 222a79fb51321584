//! Staying connected to a runtime.
//!
//! A runtime that restarts, or that threw the plugin out, is come back to with growing pauses; what went
//! on meanwhile is learned from its synchronisation. Nothing here holds a runtime up: an answer needs no
//! lock, no disk and nobody else.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;
use tracing::{info, warn};

use crate::frame::{FrameDecoder, FrameError, encode};
use crate::session::{NriEvent, NriSession, NriSessionError, NriStage, WISHES};
use crate::verdict::{Grants, VerdictRules};

/// The pauses between attempts: each is twice the one before, up to the last.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LAST_PAUSE: Duration = Duration::from_secs(5);
/// How long a runtime may take from the registration to the synchronisation. Runtimes allow a plugin 5 s.
const START_TIMEOUT: Duration = Duration::from_secs(15);
/// How long the socket may refuse to take an answer.
const WRITE_TIMEOUT: Duration = Duration::from_secs(2);
/// How much is read at once.
const READ: usize = 64 << 10;

/// Where to connect, and as whom.
#[derive(Clone, Debug)]
pub struct NriClientConfig {
    /// The runtime's socket.
    pub socket: PathBuf,
    /// Letters, digits, `-`, `_`, `.` and `+`.
    pub name: String,
    /// Two digits: plugins are asked in this order.
    pub index: String,
    /// How to judge.
    pub rules: VerdictRules,
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

/// Keeps the plugin connected until nobody listens to its news any more.
pub async fn run(
    plugin: NriClientConfig,
    grants: watch::Receiver<Arc<Grants>>,
    news: mpsc::Sender<NriEvent>,
) {
    let mut pause = FIRST_PAUSE;
    let mut wish = 0;
    let mut was_told = false;
    while !news.is_closed() {
        let mut stage = NriStage::Registering;
        let events = WISHES[wish];
        let ended = connect(&plugin, events, &grants, &news, &mut stage).await;
        match stage {
            NriStage::Synchronized => {
                warn!(socket = %plugin.socket.display(), why = %ended, "NRI connection lost");
                let _ = news.send(NriEvent::Disconnected).await;
                pause = FIRST_PAUSE;
                was_told = true;
            }
            // It went away on hearing the wish, so the next attempt wishes for less.
            NriStage::Configured
                if matches!(
                    ended,
                    NriConnectionError::Closed | NriConnectionError::Socket(_)
                ) =>
            {
                wish = (wish + 1) % WISHES.len()
            }
            NriStage::Configured | NriStage::Registering => {}
        }
        if !std::mem::replace(&mut was_told, true) {
            warn!(socket = %plugin.socket.display(), why = %ended, "NRI connection failed");
        }
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = news.closed() => return,
        }
        pause = LAST_PAUSE.min(pause * 2);
    }
}

/// Serves one connection, and says how far it came and why it ended.
async fn connect(
    plugin: &NriClientConfig,
    events: i32,
    grants: &watch::Receiver<Arc<Grants>>,
    news: &mpsc::Sender<NriEvent>,
    stage: &mut NriStage,
) -> NriConnectionError {
    let serving = async {
        let socket = UnixStream::connect(&plugin.socket);
        let mut socket = socket.await.map_err(NriConnectionError::Connect)?;
        let (mut session, (lane, register)) = NriSession::open(&plugin.name, &plugin.index, events);
        write(&mut socket, &encode(lane, &register)).await?;
        let mut decoder = FrameDecoder::default();
        let mut bytes = vec![0; READ];
        loop {
            let read = read(&mut socket, &mut bytes, *stage, news).await?;
            for (lane, message) in decoder.feed(bytes.get(..read).unwrap_or_default())? {
                let grants = grants.borrow().clone();
                let step = session.take(lane, &message, &grants, &plugin.rules)?;
                if let Some((lane, answer)) = step.answer {
                    write(&mut socket, &encode(lane, &answer)).await?;
                }
                if session.stage() == NriStage::Synchronized && *stage != NriStage::Synchronized {
                    info!(socket = %plugin.socket.display(), events, "NRI plugin connected");
                }
                *stage = session.stage();
                if let Some(told) = step.news {
                    // Who does not keep up with the news loses them; the runtime never waits.
                    let _ = news.try_send(told);
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

/// Reads what is there; a runtime that has not synchronised yet must say something in time.
async fn read(
    socket: &mut UnixStream,
    bytes: &mut [u8],
    stage: NriStage,
    news: &mpsc::Sender<NriEvent>,
) -> Result<usize, NriConnectionError> {
    let patience = match stage {
        NriStage::Synchronized => Duration::MAX,
        NriStage::Registering | NriStage::Configured => START_TIMEOUT,
    };
    let read = tokio::select! {
        read = timeout(patience, socket.read(bytes)) => read,
        () = news.closed() => return Err(NriConnectionError::Closed),
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

//! `apportion top`: cards and allocations as they change.

use std::io::{IsTerminal, stdin, stdout};

use apportion_exit::CommandFailure;
use apportion_proto::v1::{ListReply, WatchReply, watch_reply::Item};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::sleep;
use tonic::Streaming;

use crate::agent::{connect_or_start, refused};
use crate::instance::TargetInstance;
use crate::options::{ConnectionOptions, TopOptions};
use crate::report::AgentReport;
use crate::{block_on, output, view};

mod screen;

use screen::TerminalScreen;

/// Shows the list once, or until the user quits.
pub(crate) fn top(top: &TopOptions, address: ConnectionOptions) -> Result<(), CommandFailure> {
    let instance = TargetInstance::new(address)?;
    let is_live = !top.once && !top.json && stdout().is_terminal() && stdin().is_terminal();
    if is_live {
        return block_on(live(&instance));
    }
    let list = block_on(async { connect_or_start(&instance).await?.list().await })?;
    if top.json {
        output::json(&AgentReport::new(list))
    } else {
        output::all(&view::whole(&list))
    }
}

/// The events of the live view.
enum TopEvent {
    List(Box<ListReply>),
    Resized,
    /// No list came: the agent may be stopped, or its driver may be slow.
    Quiet,
    Ended,
}

async fn live(instance: &TargetInstance) -> Result<(), CommandFailure> {
    let failed = |e: std::io::Error| CommandFailure::new("failed to handle signals").because(e);
    let mut agent = connect_or_start(instance).await?;
    let mut watch = agent.watch().await?;
    let mut resized = signal(SignalKind::window_change()).map_err(failed)?;
    let mut terminated = signal(SignalKind::terminate()).map_err(failed)?;
    let mut hung_up = signal(SignalKind::hangup()).map_err(failed)?;
    let screen = TerminalScreen::open()?;
    let mut ends = ends_typed();
    let mut frame = String::new();
    loop {
        let event = tokio::select! {
            list = next_list(&mut watch) => TopEvent::List(Box::new(list?)),
            () = sleep(agent.patience()) => TopEvent::Quiet,
            () = received(&mut resized) => TopEvent::Resized,
            () = received(&mut terminated) => TopEvent::Ended,
            () = received(&mut hung_up) => TopEvent::Ended,
            _ = ends.recv() => TopEvent::Ended,
        };
        match event {
            TopEvent::List(list) => frame = view::whole(&list),
            TopEvent::Resized => {}
            TopEvent::Quiet => agent.greet().await?,
            TopEvent::Ended => return Ok(()),
        }
        screen.draw(&frame)?;
    }
}

async fn received(signal: &mut Signal) {
    signal.recv().await;
}

/// The next list of the stream. Each list is complete, so skipped changes are included.
async fn next_list(watch: &mut Streaming<WatchReply>) -> Result<ListReply, CommandFailure> {
    loop {
        let reply = watch
            .message()
            .await
            .map_err(refused("send the next update"))?;
        match reply.map(|reply| reply.item) {
            Some(Some(Item::List(list))) => return Ok(list),
            Some(Some(Item::Event(_)) | None) => {}
            None => return Err(CommandFailure::new("the agent stopped")),
        }
    }
}

/// Reports when the user types `q`, Ctrl-C or Ctrl-D.
fn ends_typed() -> mpsc::UnboundedReceiver<()> {
    let (typed, ends) = mpsc::unbounded_channel();
    // This is a thread, because a terminal read can't be cancelled. It ends with the process.
    std::thread::spawn(move || {
        use std::io::Read;
        let keys = stdin().lock().bytes().map_while(Result::ok);
        if keys
            .into_iter()
            .any(|key| matches!(key, b'q' | b'Q' | 0x03 | 0x04))
        {
            let _ = typed.send(());
        }
    });
    ends
}

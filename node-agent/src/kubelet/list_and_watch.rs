//! The device list that a plugin streams to the kubelet, now and after each change.
//!
//! The kubelet distinguishes plugins only by their resource. While another plugin serves the same resource, the
//! kubelet would take our list for the other plugin's, and an older kubelet the end of our stream for the other
//! plugin's end. So the stream then stays open and sends nothing. It ends when the other plugin has left, or may have left,
//! before this plugin registers again.

use apportion_proto::deviceplugin::{Device, ListAndWatchResponse};
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use super::rival_owner::RivalPresence;

/// The response of `ListAndWatch`.
pub(super) type Lists = ReceiverStream<Result<ListAndWatchResponse, Status>>;

/// Sends the device list until the kubelet or the agent is gone. `rival` says whether another plugin serves the same
/// resource, if that is possible.
pub(super) fn lists<T: Send + Sync + 'static>(
    mut offers: watch::Receiver<T>,
    mut rival: Option<watch::Receiver<RivalPresence>>,
    devices: fn(&T) -> Vec<Device>,
) -> Lists {
    let (replies, unread) = mpsc::channel(1);
    tokio::spawn(async move {
        loop {
            let known = rival.as_ref().map(|rival| *rival.borrow());
            if let Some(known) = known.filter(|known| known.is_there) {
                tokio::select! {
                    () = replies.closed() => return,
                    () = until(&mut rival, |now| {
                        !now.is_there || now.departures != known.departures
                    }) => return,
                }
            }
            let devices = devices(&offers.borrow_and_update());
            let list = ListAndWatchResponse { devices };
            if replies.send(Ok(list)).await.is_err() {
                return;
            }
            tokio::select! {
                () = replies.closed() => return,
                changed = offers.changed() => if changed.is_err() { return },
                () = until(&mut rival, |now| now.is_there) => {}
            }
        }
    });
    ReceiverStream::new(unread)
}

/// Waits for a change of the other plugin; for ever where there can be none.
async fn until(
    rival: &mut Option<watch::Receiver<RivalPresence>>,
    is_so: impl Fn(&RivalPresence) -> bool,
) {
    if let Some(rival) = rival
        && rival.wait_for(is_so).await.is_ok()
    {
        return;
    }
    std::future::pending().await
}

/// The kubelet's health value.
pub(super) fn health(is_offered: bool) -> String {
    let word = if is_offered { "Healthy" } else { "Unhealthy" };
    word.to_owned()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;
    use tokio_stream::StreamExt;

    use super::*;

    const SOON: Duration = Duration::from_secs(10);
    const SHORT: Duration = Duration::from_millis(50);

    fn devices(count: &usize) -> Vec<Device> {
        vec![Device::default(); *count]
    }

    const THERE: RivalPresence = RivalPresence {
        is_there: true,
        departures: 0,
    };

    async fn next(lists: &mut Lists, within: Duration) -> Option<Option<usize>> {
        let next = timeout(within, lists.next()).await.ok()?;
        Some(next.map(|list| list.unwrap().devices.len()))
    }

    #[tokio::test]
    async fn while_another_plugin_serves_nothing_is_said_and_then_the_stream_ends() {
        let may_have_left = RivalPresence {
            departures: 1,
            ..THERE
        };
        for end in [RivalPresence::default(), may_have_left] {
            let (offers, offered) = watch::channel(1);
            let (rival, is_there) = watch::channel(RivalPresence::default());
            let mut lists = lists(offered, Some(is_there), devices);
            assert_eq!(next(&mut lists, SOON).await, Some(Some(1)));
            offers.send_replace(2);
            assert_eq!(next(&mut lists, SOON).await, Some(Some(2)));
            rival.send_replace(THERE);
            offers.send_replace(3);
            assert_eq!(
                next(&mut lists, SHORT).await,
                None,
                "it says nothing and stays open"
            );
            rival.send_replace(end);
            assert_eq!(next(&mut lists, SOON).await, Some(None), "it ends");
        }
    }
}

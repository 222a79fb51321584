//! The device list that a plugin streams to the kubelet, now and after each change.
//!
//! The kubelet distinguishes plugins only by their resource. While another plugin serves the same resource, the
//! kubelet would take our list for the other plugin's, and the end of our stream for the other plugin's end. So the
//! stream then stays open and sends nothing. It ends when the other plugin has left, before this plugin registers
//! again.

use apportion_proto::deviceplugin::{Device, ListAndWatchResponse};
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

/// The response of `ListAndWatch`.
pub(super) type Lists = ReceiverStream<Result<ListAndWatchResponse, Status>>;

/// Sends the device list until the kubelet or the agent is gone. `rival` says whether another plugin serves the same
/// resource, if that is possible.
pub(super) fn lists<T: Send + Sync + 'static>(
    mut offers: watch::Receiver<T>,
    mut rival: Option<watch::Receiver<bool>>,
    devices: fn(&T) -> Vec<Device>,
) -> Lists {
    let (replies, unread) = mpsc::channel(1);
    tokio::spawn(async move {
        loop {
            if rival.as_ref().is_some_and(|rival| *rival.borrow()) {
                tokio::select! {
                    () = replies.closed() => return,
                    () = becomes(&mut rival, false) => return,
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
                () = becomes(&mut rival, true) => {}
            }
        }
    });
    ReceiverStream::new(unread)
}

/// Waits until another plugin is there (or is gone).
async fn becomes(rival: &mut Option<watch::Receiver<bool>>, there: bool) {
    if let Some(rival) = rival
        && rival.wait_for(|is_there| *is_there == there).await.is_ok()
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

    #[tokio::test]
    async fn while_another_plugin_serves_nothing_is_said_and_then_the_stream_ends() {
        let (offers, offered) = watch::channel(1);
        let (rival, is_there) = watch::channel(false);
        let mut lists = lists(offered, Some(is_there), devices);
        let next = async |lists: &mut Lists, within| {
            let next = timeout(within, lists.next()).await.ok()?;
            Some(next.map(|list| list.unwrap().devices.len()))
        };
        assert_eq!(next(&mut lists, SOON).await, Some(Some(1)));
        offers.send_replace(2);
        assert_eq!(next(&mut lists, SOON).await, Some(Some(2)));
        rival.send_replace(true);
        offers.send_replace(3);
        assert_eq!(
            next(&mut lists, SHORT).await,
            None,
            "it says nothing and stays open"
        );
        rival.send_replace(false);
        assert_eq!(next(&mut lists, SOON).await, Some(None), "it ends");
    }
}

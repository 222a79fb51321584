//! Bytes from a stranger at the port for health and metrics. There is at most one answer, to one small request.
#![no_main]

use std::cell::Cell;
use std::future::ready;
use std::net::{IpAddr, Ipv4Addr};
use std::rc::Rc;
use std::time::Duration;

use apportion_bounded::{HttpLimiter, Text, connection};
use hyper::Response;
use libfuzzer_sys::fuzz_target;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::{Builder, Runtime};

/// The server's answer.
const BODY: &str = "seventeen apples\n";
/// Slightly more than the largest head that the server reads.
const LARGEST_HEAD: usize = 16 << 10;

thread_local! {
    static RUNTIME: Runtime = Builder::new_current_thread().enable_time().build().expect("a runtime needs no more than memory");
}

fuzz_target!(|data: &[u8]| {
    let (asked, answered) = RUNTIME.with(|runtime| runtime.block_on(exchange(data)));
    assert!(
        asked <= 1,
        "{asked} requests of one connection were answered"
    );
    let bodies = answered
        .windows(BODY.len())
        .filter(|part| *part == BODY.as_bytes())
        .count();
    assert!(bodies <= asked);
    assert!(answered.is_empty() || answered.starts_with(b"HTTP/1."));
    if asked == 1 {
        let head = data.windows(4).position(|end| end == b"\r\n\r\n");
        let head = head.or_else(|| data.windows(2).position(|end| end == b"\n\n"));
        assert!(head.is_none_or(|length| length <= LARGEST_HEAD));
    }
});

/// Sends the bytes. Returns how many requests were answered, and with what.
async fn exchange(data: &[u8]) -> (usize, Vec<u8>) {
    let asked = Rc::new(Cell::new(0_usize));
    let (server, mut client) = tokio::io::duplex(64 << 10);
    let count = asked.clone();
    let answers = HttpLimiter::within(Duration::from_secs(1));
    let serving = connection(
        server,
        IpAddr::V4(Ipv4Addr::LOCALHOST),
        answers,
        move |_, _| {
            count.set(count.get() + 1);
            ready(Response::new(Text::from(BODY)))
        },
    );
    let sending = async {
        // The server may already have closed the connection.
        let _ = client.write_all(data).await;
        let _ = client.shutdown().await;
        let mut answered = Vec::new();
        let _ = client.read_to_end(&mut answered).await;
        answered
    };
    let ((), answered) = tokio::join!(serving, sending);
    (asked.get(), answered)
}

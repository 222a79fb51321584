//! A proxy between the scheduler and the API server that delays every byte, each way.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

/// Starts the proxy. Returns a kubeconfig that leads through it.
pub(crate) async fn between(kubeconfig: &Path, delay: Duration) -> Result<PathBuf> {
    let mut config: Value = serde_json::from_str(&std::fs::read_to_string(kubeconfig)?)?;
    let server = &mut config["clusters"][0]["cluster"]["server"];
    let far = server.as_str().context("the kubeconfig names no server")?;
    let far: SocketAddr = far.trim_start_matches("https://").parse()?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    *server = format!("https://{}", listener.local_addr()?).into();
    let path = kubeconfig.with_extension("far");
    std::fs::write(&path, config.to_string())?;
    tokio::spawn(async move {
        while let Ok((near, _)) = listener.accept().await {
            let Ok(far) = TcpStream::connect(far).await else {
                continue;
            };
            let ((near_in, near_out), (far_in, far_out)) = (near.into_split(), far.into_split());
            tokio::spawn(carry(near_in, far_out, delay));
            tokio::spawn(carry(far_in, near_out, delay));
        }
    });
    Ok(path)
}

/// Forwards bytes with a delay, without a limit on what is under way.
async fn carry(
    mut from: impl AsyncReadExt + Unpin + Send + 'static,
    mut to: impl AsyncWriteExt + Unpin,
    delay: Duration,
) {
    let (sent, mut arrived) = mpsc::unbounded_channel::<(Instant, Vec<u8>)>();
    tokio::spawn(async move {
        let mut some = vec![0; 1 << 15];
        while let Ok(count @ 1..) = from.read(&mut some).await {
            if sent
                .send((Instant::now() + delay, some[..count].to_vec()))
                .is_err()
            {
                return;
            }
        }
    });
    while let Some((due, bytes)) = arrived.recv().await {
        sleep_until(due).await;
        if to.write_all(&bytes).await.is_err() {
            return;
        }
    }
    let _ = to.shutdown().await;
}

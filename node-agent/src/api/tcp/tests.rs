use std::net::{Ipv4Addr, SocketAddr};
use std::time::Instant;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use tokio::io::AsyncWriteExt;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use super::credentials::TlsCredentials;
use super::*;

const AGENT: &str = "agent";

/// A certificate signed by this CA, and its key, as PEM.
fn issue(issuer: &Issuer<'_, KeyPair>, name: &str) -> (String, String) {
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
    let certificate = params.signed_by(&key, issuer).unwrap();
    (certificate.pem(), key.serialize_pem())
}

/// An agent with TCP, and a client with the scheduler's certificate.
async fn start() -> (TcpServer, TlsConnector) {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    let authority = params.self_signed(&key).unwrap();
    let issuer = Issuer::new(params, key);
    let (certificate, key) = issue(&issuer, AGENT);
    let held = TlsCredentials {
        trust_bundle: authority.pem(),
        certificate,
        key,
        ..TlsCredentials::default()
    };
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let (_, configs) = watch::channel(Some(held.config().unwrap()));
    let remote = TcpServer {
        address: String::new(),
        limiter: ConnectionLimiter::new("test", AT_ONCE),
        listener,
        configs,
    };

    let (certificate, key) = issue(&issuer, identity::SCHEDULER);
    let mut roots = RootCertStore::empty();
    roots.add(authority.der().clone()).unwrap();
    let certificate = CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap();
    let client = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_client_auth_cert(
            vec![certificate],
            PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap(),
        );
    (remote, TlsConnector::from(Arc::new(client.unwrap())))
}

async fn half_open(address: SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(&[0x16, 3, 1]).await.unwrap();
    stream
}

/// Regression: all connections come from one source, as behind NAT.
#[tokio::test]
async fn the_scheduler_gets_in_while_others_leave_handshakes_half_open() {
    let (remote, connector) = start().await;
    let (address, limiter) = (
        remote.listener.local_addr().unwrap(),
        remote.limiter.clone(),
    );
    let (connections, mut connected) = mpsc::channel(1);
    tokio::spawn(remote.accept(connections));
    let mut held = Vec::new();
    for _ in 0..80 {
        held.push(half_open(address).await);
    }
    for _ in 0..4 {
        let began = Instant::now();
        let stream = TcpStream::connect(address).await.unwrap();
        let name = ServerName::try_from(AGENT).unwrap();
        connector.connect(name, stream).await.unwrap();
        assert!(connected.recv().await.unwrap().is_ok());
        assert!(began.elapsed() < PATIENCE, "{:?}", began.elapsed());
        held.push(half_open(address).await);
    }
    assert!(limiter.dropped() >= 64, "{}", limiter.dropped());
}

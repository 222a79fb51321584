//! The agent's certificate, its key and the trusted CAs, saved in a file. So a restarted agent can serve at once,
//! even if no signer is available.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::{VerifierBuilderError, WebPkiClientVerifier};
use tokio_rustls::rustls::{self, RootCertStore, ServerConfig};
use x509_parser::certificate::X509Certificate;
use x509_parser::pem::Pem;

use crate::atomic_write;

/// Why the credentials cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum CredentialsError {
    #[error("failed to read a certificate or its key")]
    Read(#[from] pem::Error),
    #[error("failed to use the certificate")]
    Use(#[from] rustls::Error),
    #[error("failed to use the CA certificates")]
    Trust(#[from] VerifierBuilderError),
}

/// The credentials, as PEM.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct TlsCredentials {
    /// The node that they are for: a disk may be moved to another one.
    pub(super) node: String,
    pub(super) certificate: String,
    pub(super) key: String,
    /// When to renew the certificate, in seconds since the epoch.
    pub(super) renew_at: u64,
    /// The certificates of the trusted CAs, as PEM.
    #[serde(rename = "authorities")]
    pub(super) trust_bundle: String,
}

impl TlsCredentials {
    /// Loads what an earlier agent of this node saved, or empty credentials.
    pub(super) fn load(path: &Path, node: &str) -> Self {
        let text = std::fs::read(path).unwrap_or_default();
        let held = serde_json::from_slice(&text).ok();
        let held = held.filter(|held: &Self| held.node == node);
        held.unwrap_or_else(|| Self {
            node: node.to_owned(),
            ..Self::default()
        })
    }

    pub(super) fn save(&self, path: &Path) -> std::io::Result<()> {
        let text = serde_json::to_vec(self).map_err(std::io::Error::other)?;
        atomic_write::replace(path, &text)
    }

    /// Stores a new certificate. It is renewed when a third of its remaining life is left.
    pub(super) fn take(&mut self, certificate: String, key: String, now: SystemTime) {
        let left = ends(&certificate).and_then(|end| end.duration_since(now).ok());
        let renew = now + left.unwrap_or_default() * 2 / 3;
        let renew = renew.duration_since(SystemTime::UNIX_EPOCH);
        self.renew_at = renew.unwrap_or_default().as_secs();
        self.certificate = certificate;
        self.key = key;
    }

    /// How long until another certificate is needed.
    pub(super) fn wait(&self, now: SystemTime) -> Duration {
        if self.certificate.is_empty() || !self.is_trusted() {
            return Duration::ZERO;
        }
        let renew = SystemTime::UNIX_EPOCH + Duration::from_secs(self.renew_at);
        renew.duration_since(now).unwrap_or_default()
    }

    /// Whether one of the trusted CAs signed the certificate.
    fn is_trusted(&self) -> bool {
        let Some(Ok(own)) = Pem::iter_from_buffer(self.certificate.as_bytes()).next() else {
            return false;
        };
        let Ok(own) = own.parse_x509() else {
            return false;
        };
        Pem::iter_from_buffer(self.trust_bundle.as_bytes())
            .flatten()
            .any(|ca| {
                let ca = ca.parse_x509().ok();
                ca.is_some_and(|ca| is_signed(&own, &ca))
            })
    }

    /// The TLS configuration for these credentials.
    pub(super) fn config(&self) -> Result<Arc<ServerConfig>, CredentialsError> {
        let provider = Arc::new(ring::default_provider());
        let mut roots = RootCertStore::empty();
        for ca in CertificateDer::pem_slice_iter(self.trust_bundle.as_bytes()) {
            roots.add(ca?)?;
        }
        let verifier =
            WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone());
        let chain: Result<Vec<CertificateDer<'static>>, _> =
            CertificateDer::pem_slice_iter(self.certificate.as_bytes()).collect();
        let key = PrivateKeyDer::from_pem_slice(self.key.as_bytes())?;
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_client_cert_verifier(verifier.build()?)
            .with_single_cert(chain?, key)?;
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(Arc::new(config))
    }
}

fn is_signed(own: &X509Certificate<'_>, ca: &X509Certificate<'_>) -> bool {
    own.issuer() == ca.subject() && own.verify_signature(Some(ca.public_key())).is_ok()
}

/// When the first certificate in a PEM text expires.
fn ends(pem: &str) -> Option<SystemTime> {
    let pem = Pem::iter_from_buffer(pem.as_bytes()).next()?.ok()?;
    let end = pem.parse_x509().ok()?.validity().not_after.timestamp();
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(u64::try_from(end).ok()?))
}

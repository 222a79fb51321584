//! A certificate and its key, as the listener needs them.

use std::sync::Arc;

use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{self, ServerConfig};

/// Why a certificate can't be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TlsError {
    /// It isn't PEM.
    #[error("failed to read the certificate or its key")]
    Read(#[from] pem::Error),
    /// They don't belong together, or are of a kind that nobody uses.
    #[error("failed to use the certificate")]
    Use(#[from] rustls::Error),
}

/// What the listener shows.
///
/// # Errors
/// The texts are not PEM, or not a certificate and its key.
pub(crate) fn config(certificate: &str, key: &str) -> Result<Arc<ServerConfig>, TlsError> {
    let chain: Result<Vec<CertificateDer<'static>>, _> =
        CertificateDer::pem_slice_iter(certificate.as_bytes()).collect();
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes())?;
    let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let mut config = builder
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain?, key)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

//! TLS configuration from a certificate and its key.

use std::sync::Arc;

use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::{VerifierBuilderError, WebPkiClientVerifier};
use tokio_rustls::rustls::{self, RootCertStore, ServerConfig};

/// Why a certificate cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TlsError {
    /// The text is not PEM.
    #[error("failed to read the certificate or its key")]
    Read(#[from] pem::Error),
    /// The certificate and the key do not match, or are of an unsupported kind.
    #[error("failed to use the certificate")]
    Use(#[from] rustls::Error),
    /// The CA of clients cannot check certificates.
    #[error("failed to use the authority of clients")]
    Clients(#[from] VerifierBuilderError),
}

/// The listener's configuration. It answers clients of the CA, or everybody if there is none.
///
/// # Errors
/// The texts are not PEM, or not a certificate and its key, or not a CA.
pub(crate) fn config(
    certificate: &str,
    key: &str,
    client_ca: Option<&str>,
) -> Result<Arc<ServerConfig>, TlsError> {
    let chain: Result<Vec<CertificateDer<'static>>, _> =
        CertificateDer::pem_slice_iter(certificate.as_bytes()).collect();
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes())?;
    let provider = Arc::new(ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()?;
    let builder = match client_ca {
        None => builder.with_no_client_auth(),
        Some(trust_bundle) => {
            let mut roots = RootCertStore::empty();
            for ca in CertificateDer::pem_slice_iter(trust_bundle.as_bytes()) {
                roots.add(ca?)?;
            }
            let clients = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            builder.with_client_cert_verifier(clients.build()?)
        }
    };
    let mut config = builder.with_single_cert(chain?, key)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

//! The TLS configuration for connections to agents.

use std::sync::Arc;

use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use super::CaError;

/// Presents this certificate and trusts these CAs, all PEM.
pub(super) fn client(
    certificate: &str,
    key: &str,
    trust_bundle: &str,
) -> Result<Arc<ClientConfig>, CaError> {
    let chain: Result<Vec<CertificateDer<'static>>, _> =
        CertificateDer::pem_slice_iter(certificate.as_bytes()).collect();
    let mut roots = RootCertStore::empty();
    for ca in CertificateDer::pem_slice_iter(trust_bundle.as_bytes()) {
        roots.add(ca?)?;
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let mut config = builder
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_client_auth_cert(chain?, PrivateKeyDer::from_pem_slice(key.as_bytes())?)?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(Arc::new(config))
}

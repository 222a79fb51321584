//! The certificates that we show to the API server: created and renewed here.
//!
//! Our own CA signs a short-lived certificate for the service's names. Its renewal changes nothing that the API server
//! holds, so no review fails meanwhile. The CA lives ten years. One year before its end a new CA is added to what the
//! API server trusts, in front of the old one. The new one signs the next certificate, months before the old one ends.
//! So neither change needs an order of steps among replicas.

use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use x509_parser::pem::Pem;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// The lifetime of a certificate, and the rest of it at which it is renewed.
const LIFE: Duration = DAY.saturating_mul(90);
const RENEW: Duration = DAY.saturating_mul(30);
/// The same for the CA.
const CA_LIFE: Duration = DAY.saturating_mul(3650);
const CA_RENEW: Duration = DAY.saturating_mul(365);
/// The clocks of other machines may be behind.
const SKEW: Duration = Duration::from_secs(60 * 60);

/// The stored certificates and keys, as PEM.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoredCertificates {
    /// What the API server must trust: our CA, and the one before it.
    pub trust_bundle: String,
    /// The key of the first CA.
    pub ca_key: String,
    /// The certificate that we show.
    pub certificate: String,
    /// Its key.
    pub key: String,
}

/// Why a certificate could not be created.
#[derive(Debug, thiserror::Error)]
#[error("failed to create a certificate")]
pub struct CertificateError(#[from] rcgen::Error);

/// What to store next, given what is stored.
///
/// # Errors
/// A name is not a DNS name.
pub fn renewed(
    kept: &StoredCertificates,
    names: &[String],
    now: SystemTime,
) -> Result<StoredCertificates, CertificateError> {
    let mut next = kept.clone();
    let is_fresh = |pem: &str, left| ends(pem).is_some_and(|end| end > now + left);
    let mut ca_key = KeyPair::from_pem(&kept.ca_key).ok();
    if ca_key.is_none() || !is_fresh(&kept.trust_bundle, CA_RENEW) {
        let key = KeyPair::generate()?;
        let fresh = ca_params(now).self_signed(&key)?.pem();
        // Without its key the old CA can sign nothing more, so it is dropped.
        let before = ca_key.as_ref().and_then(|_| first(&kept.trust_bundle));
        next.trust_bundle = fresh + before.as_deref().unwrap_or_default();
        next.ca_key = key.serialize_pem();
        if ca_key.is_none() {
            next.certificate.clear();
        }
        ca_key = Some(key);
    }
    let Some(ca_key) = ca_key else {
        return Ok(next);
    };
    let is_named = names.iter().all(|name| shows(&next.certificate, name));
    if !is_named || !is_fresh(&next.certificate, RENEW) {
        let key = KeyPair::generate()?;
        let issuer = Issuer::new(ca_params(now), ca_key);
        next.certificate = leaf(names, now)?.signed_by(&key, &issuer)?.pem();
        next.key = key.serialize_pem();
    }
    Ok(next)
}

fn ca_params(now: SystemTime) -> CertificateParams {
    let mut params = CertificateParams::default();
    params
        .distinguished_name
        .push(DnType::CommonName, "Apportion admission");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.not_before = (now - SKEW).into();
    params.not_after = (now + CA_LIFE).into();
    params
}

fn leaf(names: &[String], now: SystemTime) -> Result<CertificateParams, rcgen::Error> {
    let mut params = CertificateParams::new(names.to_vec())?;
    if let Some(name) = names.first() {
        params
            .distinguished_name
            .push(DnType::CommonName, name.as_str());
    }
    params.use_authority_key_identifier_extension = true;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.not_before = (now - SKEW).into();
    params.not_after = (now + LIFE).into();
    Ok(params)
}

/// When the first certificate of a PEM text expires.
#[must_use]
pub fn ends(pem: &str) -> Option<SystemTime> {
    let pem = Pem::iter_from_buffer(pem.as_bytes()).next()?.ok()?;
    let end = pem.parse_x509().ok()?.validity().not_after.timestamp();
    let since = Duration::from_secs(u64::try_from(end).ok()?);
    SystemTime::UNIX_EPOCH.checked_add(since)
}

/// Whether the first certificate of a PEM text covers this name or address.
fn shows(pem: &str, name: &str) -> bool {
    let Some(Ok(pem)) = Pem::iter_from_buffer(pem.as_bytes()).next() else {
        return false;
    };
    let Ok(certificate) = pem.parse_x509() else {
        return false;
    };
    let Ok(Some(names)) = certificate.subject_alternative_name() else {
        return false;
    };
    let address = name.parse::<std::net::IpAddr>().ok();
    let bytes = address.map(|address| match address {
        std::net::IpAddr::V4(address) => address.octets().to_vec(),
        std::net::IpAddr::V6(address) => address.octets().to_vec(),
    });
    names.value.general_names.iter().any(|found| match found {
        x509_parser::extensions::GeneralName::DNSName(found) => *found == name,
        x509_parser::extensions::GeneralName::IPAddress(found) => bytes.as_deref() == Some(*found),
        _ => false,
    })
}

/// The first certificate of a PEM text.
fn first(pem: &str) -> Option<String> {
    const END: &str = "-----END CERTIFICATE-----\n";
    let end = pem.find(END)? + END.len();
    Some(pem[..end].to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> Vec<String> {
        vec![
            "apportion-webhook.apportion.svc".to_owned(),
            "127.0.0.1".to_owned(),
        ]
    }

    fn now() -> SystemTime {
        SystemTime::UNIX_EPOCH + DAY * 20_000
    }

    #[test]
    fn what_is_fresh_stays() {
        let kept = renewed(&StoredCertificates::default(), &names(), now()).unwrap();
        assert_eq!(renewed(&kept, &names(), now() + DAY * 59).unwrap(), kept);
    }

    #[test]
    fn renewing_a_certificate_changes_nothing_that_is_trusted() {
        let kept = renewed(&StoredCertificates::default(), &names(), now()).unwrap();
        let later = renewed(&kept, &names(), now() + DAY * 61).unwrap();
        assert_ne!(later.certificate, kept.certificate);
        assert_eq!(later.trust_bundle, kept.trust_bundle);
        assert_eq!(later.ca_key, kept.ca_key);
    }

    #[test]
    fn a_new_authority_is_trusted_beside_the_old_one() {
        let kept = renewed(&StoredCertificates::default(), &names(), now()).unwrap();
        let before = renewed(&kept, &names(), now() + DAY * 3280).unwrap();
        let after = renewed(&before, &names(), now() + DAY * 3286).unwrap();
        assert!(after.trust_bundle.ends_with(&before.trust_bundle));
        assert_ne!(after.ca_key, before.ca_key);
        assert_eq!(after.certificate, before.certificate, "it is still good");
        let next = renewed(&after, &names(), now() + DAY * 3350).unwrap();
        assert_ne!(next.certificate, before.certificate);
        assert_eq!(next.trust_bundle, after.trust_bundle);
    }

    #[test]
    fn another_name_needs_another_certificate() {
        let kept = renewed(&StoredCertificates::default(), &names(), now()).unwrap();
        let other = [names(), vec!["other.svc".to_owned()]].concat();
        assert_ne!(
            renewed(&kept, &other, now()).unwrap().certificate,
            kept.certificate
        );
    }

    #[test]
    fn what_is_spoilt_is_made_anew() {
        let spoilt = StoredCertificates {
            trust_bundle: "?".to_owned(),
            certificate: "?".to_owned(),
            ..StoredCertificates::default()
        };
        let fresh = renewed(&spoilt, &names(), now()).unwrap();
        assert_eq!(ends(&fresh.certificate), Some(now() + LIFE));
        assert_eq!(ends(&fresh.trust_bundle), Some(now() + CA_LIFE));
    }
}

//! The CA that signs the certificates of scheduler and agents, and its rotation.
//!
//! Pure: the stored state and the time give the new state. The lifetime of a certificate sets everything else. A CA
//! lives four such lifetimes. When two are left, the next CA is made and trusted. It signs only after a quarter of a
//! lifetime, when everybody knows it. The previous CA is trusted until it expires, long after the last certificate
//! that it signed. So nobody ever meets a certificate whose CA is new to them.

use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PublicKeyData,
};
use x509_parser::pem::Pem;

/// How far other clocks may be behind.
const SKEW: Duration = Duration::from_secs(60 * 60);

/// A CA, as PEM.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CaKeyPair {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CaRotation {
    pub(crate) current: CaKeyPair,
    /// Is trusted and will sign later; mostly empty.
    pub(crate) next: CaKeyPair,
    /// Has signed certificates that are still in use; its key is gone.
    pub(crate) previous: String,
}

/// The role of a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CertificateUsage {
    /// The scheduler's: a TLS client.
    Client,
    /// An agent's: a TLS server.
    Server,
}

/// Why something can't be signed.
#[derive(Debug, thiserror::Error)]
#[error("failed to create a certificate")]
pub(crate) struct CertificateSigningError(#[from] rcgen::Error);

/// The state to store now.
pub(crate) fn renewed(
    kept: &CaRotation,
    life: Duration,
    now: SystemTime,
) -> Result<CaRotation, CertificateSigningError> {
    let mut kept = kept.clone();
    let lives = |pem: &str, left: Duration| is_good(pem, now + left);
    if !lives(&kept.previous, Duration::ZERO) {
        kept.previous.clear();
    }
    if !is_usable(&kept.next) || !lives(&kept.next.certificate, life) {
        kept.next = CaKeyPair::default();
    }
    // The current CA is unusable, or would expire before a certificate signed now, as after the lifetime was raised.
    // What a usable one has signed stays trusted.
    if !is_usable(&kept.current) || !lives(&kept.current.certificate, life) {
        let next = if kept.next.certificate.is_empty() {
            made(life, now)?
        } else {
            std::mem::take(&mut kept.next)
        };
        let before = std::mem::replace(&mut kept.current, next);
        if is_usable(&before) && lives(&before.certificate, Duration::ZERO) {
            kept.previous = before.certificate;
        }
    }
    if kept.next.certificate.is_empty() && !lives(&kept.current.certificate, life * 2) {
        kept.next = made(life, now)?;
    }
    // A CA expires four lifetimes after it was made.
    let is_known = !lives(&kept.next.certificate, life * 4 - life / 4);
    if !kept.next.certificate.is_empty() && is_known {
        let before = std::mem::replace(&mut kept.current, std::mem::take(&mut kept.next));
        kept.previous = before.certificate;
    }
    Ok(kept)
}

fn made(life: Duration, now: SystemTime) -> Result<CaKeyPair, CertificateSigningError> {
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::default();
    let made = now.duration_since(SystemTime::UNIX_EPOCH);
    let name = format!(
        "Apportion authority {:x}",
        made.unwrap_or_default().as_millis()
    );
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.not_before = (now - SKEW).into();
    params.not_after = (now + life * 4).into();
    Ok(CaKeyPair {
        certificate: params.self_signed(&key)?.pem(),
        key: key.serialize_pem(),
    })
}

impl CaRotation {
    /// All CA certificates to trust, as PEM.
    pub(crate) fn trust_bundle(&self) -> String {
        [
            &self.current.certificate,
            &self.next.certificate,
            &self.previous,
        ]
        .map(String::as_str)
        .concat()
    }

    /// Signs a key under one name.
    pub(crate) fn sign(
        &self,
        key: &impl PublicKeyData,
        name: &str,
        purpose: CertificateUsage,
        until: SystemTime,
        now: SystemTime,
    ) -> Result<String, CertificateSigningError> {
        let ca_key = KeyPair::from_pem(&self.current.key)?;
        let issuer = Issuer::from_ca_cert_pem(&self.current.certificate, ca_key)?;
        let mut params = CertificateParams::new(vec![name.to_owned()])?;
        params.distinguished_name.push(DnType::CommonName, name);
        params.use_authority_key_identifier_extension = true;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![match purpose {
            CertificateUsage::Client => ExtendedKeyUsagePurpose::ClientAuth,
            CertificateUsage::Server => ExtendedKeyUsagePurpose::ServerAuth,
        }];
        params.not_before = (now - SKEW).into();
        params.not_after = until.into();
        Ok(params.signed_by(key, &issuer)?.pem())
    }
}

fn is_usable(ca_key: &CaKeyPair) -> bool {
    KeyPair::from_pem(&ca_key.key).is_ok() && ends(&ca_key.certificate).is_some()
}

/// Whether the first certificate of a PEM text is still valid then.
fn is_good(pem: &str, until: SystemTime) -> bool {
    ends(pem).is_some_and(|end| end > until)
}

/// When the first certificate of a PEM text expires.
fn ends(pem: &str) -> Option<SystemTime> {
    let pem = Pem::iter_from_buffer(pem.as_bytes()).next()?.ok()?;
    let end = pem.parse_x509().ok()?.validity().not_after.timestamp();
    let since = Duration::from_secs(u64::try_from(end).ok()?);
    SystemTime::UNIX_EPOCH.checked_add(since)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_secs(24 * 60 * 60);
    const LIFE: Duration = DAY.saturating_mul(30);

    fn start() -> SystemTime {
        SystemTime::UNIX_EPOCH + DAY * 20_000
    }

    #[test]
    fn whoever_signs_was_trusted_long_before_and_is_trusted_for_as_long_as_what_it_signed() {
        let mut kept = renewed(&CaRotation::default(), LIFE, start()).unwrap();
        let first = kept.current.clone();
        let mut trusted_since = vec![(first.certificate.clone(), start())];
        let mut changes = 0;
        for day in 1..400 {
            let now = start() + DAY * day;
            let next = renewed(&kept, LIFE, now).unwrap();
            for one in [&next.current.certificate, &next.next.certificate] {
                if !one.is_empty() && !trusted_since.iter().any(|(known, _)| known == one) {
                    trusted_since.push((one.clone(), now));
                }
            }
            if next.current != kept.current {
                changes += 1;
                let mut since = trusted_since.iter();
                let known = since.find(|(one, _)| *one == next.current.certificate);
                assert!(known.is_some_and(|(_, since)| *since + LIFE / 5 <= now));
                assert_eq!(next.previous, kept.current.certificate);
                let left = ends(&next.previous).unwrap().duration_since(now).unwrap();
                assert!(left > LIFE, "what it signed yesterday is good for a life");
            }
            assert!(is_good(&next.current.certificate, now + LIFE));
            kept = next;
        }
        assert_eq!(changes, 6, "every two lives or so");
    }

    #[test]
    fn what_is_spoilt_or_too_old_is_made_anew() {
        let spoilt = CaRotation {
            current: CaKeyPair {
                certificate: "?".to_owned(),
                key: "?".to_owned(),
            },
            ..CaRotation::default()
        };
        let kept = renewed(&spoilt, LIFE, start()).unwrap();
        assert_eq!(ends(&kept.current.certificate), Some(start() + LIFE * 4));
        let late = renewed(&kept, LIFE, start() + LIFE * 5).unwrap();
        assert_ne!(late.current, kept.current);
        assert!(late.previous.is_empty());
        let longer = renewed(&kept, LIFE * 5, start() + DAY).unwrap();
        assert_ne!(longer.current, kept.current);
        assert_eq!(longer.previous, kept.current.certificate);
        assert_eq!(
            renewed(&kept, LIFE, start() + DAY).unwrap(),
            kept,
            "what is fresh stays"
        );
    }
}

//! The authority that signs the certificates of scheduler and agents, and how one follows the other.
//!
//! Pure: what was kept and the time give what is to be kept. One number, the life of a certificate, sets
//! everything else. An authority lives four of them. When two are left the next one is made and trusted;
//! it signs only after a quarter of a life, when everybody has heard of it; and the one before is trusted
//! until it ends, long after the last certificate that it signed. So at no moment does anybody meet a
//! certificate whose authority is new to him.

use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PublicKeyData,
};
use x509_parser::pem::Pem;

/// Clocks of other machines may be behind.
const SKEW: Duration = Duration::from_secs(60 * 60);

/// An authority, as PEM.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CaKeyPair {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

/// All that is kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CaRotation {
    /// Signs.
    pub(crate) current: CaKeyPair,
    /// Is trusted and will sign; empty mostly.
    pub(crate) next: CaKeyPair,
    /// Has signed what is still in use; its key is gone.
    pub(crate) previous: String,
}

/// Whose certificate is signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CertificateUsage {
    /// One that asks.
    Client,
    /// One that answers.
    Server,
}

/// Why something can't be signed.
#[derive(Debug, thiserror::Error)]
#[error("failed to create a certificate")]
pub(crate) struct CertificateSigningError(#[from] rcgen::Error);

/// What is to be kept now.
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
    // Too short, as where certificates are to live longer from now on; what it signed is good all the same.
    // Or there is none, and who has a certificate asks for another.
    if !is_usable(&kept.current) || !lives(&kept.current.certificate, life) {
        let next = match kept.next.certificate.is_empty() {
            true => made(life, now)?,
            false => std::mem::take(&mut kept.next),
        };
        let before = std::mem::replace(&mut kept.current, next);
        if is_usable(&before) && lives(&before.certificate, Duration::ZERO) {
            kept.previous = before.certificate;
        }
    }
    if kept.next.certificate.is_empty() && !lives(&kept.current.certificate, life * 2) {
        kept.next = made(life, now)?;
    }
    // It ends four lives after it was made.
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
    /// Whom everybody is to trust, as PEM.
    pub(crate) fn authorities(&self) -> String {
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
        let authority = KeyPair::from_pem(&self.current.key)?;
        let issuer = Issuer::from_ca_cert_pem(&self.current.certificate, authority)?;
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

fn is_usable(authority: &CaKeyPair) -> bool {
    KeyPair::from_pem(&authority.key).is_ok() && ends(&authority.certificate).is_some()
}

/// Whether the first certificate of a PEM text is good until then.
fn is_good(pem: &str, until: SystemTime) -> bool {
    ends(pem).is_some_and(|end| end > until)
}

/// When the first certificate of a PEM text ends.
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

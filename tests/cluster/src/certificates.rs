//! Identities in the cluster: one CA, and a certificate for every server and client.
//!
//! They are created for every cluster and are readable only by root, in its folder. The CA's key is never stored, so no
//! more certificates can be issued.

use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::PermissionsExt;

use anyhow::{Context, Result};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};

use crate::folder::ClusterFolder;

/// The address of the API server inside the range of service addresses.
const SERVICE: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 96, 0, 1));
const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

struct CertificateSpec {
    /// The name of its files.
    file: &'static str,
    /// The user, or the server's own name.
    common_name: &'static str,
    /// The user's group.
    group: Option<&'static str>,
    /// More names that it is valid for, besides loopback.
    names: &'static [&'static str],
}

/// The node's name depends on the cluster. This placeholder is replaced by it.
const NODE: &str = "system:node:{node}";

const ROWS: &[CertificateSpec] = &[
    CertificateSpec {
        file: "etcd",
        common_name: "etcd",
        group: None,
        names: &[],
    },
    CertificateSpec {
        file: "kube-apiserver",
        common_name: "kube-apiserver",
        group: Some("system:masters"),
        names: &[
            "kubernetes",
            "kubernetes.default",
            "kubernetes.default.svc",
            "kubernetes.default.svc.cluster.local",
        ],
    },
    CertificateSpec {
        file: "kube-controller-manager",
        common_name: "system:kube-controller-manager",
        group: None,
        names: &[],
    },
    CertificateSpec {
        file: "kube-scheduler",
        common_name: "system:kube-scheduler",
        group: None,
        names: &[],
    },
    CertificateSpec {
        file: "kubelet",
        common_name: NODE,
        group: Some("system:nodes"),
        names: &[],
    },
    CertificateSpec {
        file: "operator",
        common_name: "operator",
        group: None,
        names: &[],
    },
    CertificateSpec {
        file: "admin",
        common_name: "admin",
        group: Some("system:masters"),
        names: &[],
    },
];

/// The key pair that signs and verifies service account tokens. It has no certificate.
pub(crate) const SERVICE_ACCOUNTS: &str = "service-accounts";

/// Makes them all.
pub(crate) fn make(folder: &ClusterFolder) -> Result<()> {
    (|| {
        let private = folder.path().join("certificates");
        fs::create_dir_all(&private)?;
        fs::set_permissions(&private, fs::Permissions::from_mode(0o700))?;
        let key = KeyPair::generate()?;
        let params = authority(folder.name())?;
        folder.write(&folder.certificate("ca"), &params.self_signed(&key)?.pem())?;
        let issuer = Issuer::new(params, key);
        for row in ROWS {
            let key = KeyPair::generate()?;
            let signed = row.params(folder.name())?.signed_by(&key, &issuer)?;
            folder.write(&folder.certificate(row.file), &signed.pem())?;
            folder.write(&folder.key(row.file), &key.serialize_pem())?;
        }
        let tokens = KeyPair::generate()?;
        folder.write(
            &folder.certificate(SERVICE_ACCOUNTS),
            &tokens.public_key_pem(),
        )?;
        folder.write(&folder.key(SERVICE_ACCOUNTS), &tokens.serialize_pem())
    })()
    .context("failed to make the certificates")
}

impl CertificateSpec {
    fn params(&self, node: &str) -> Result<CertificateParams> {
        let names: Vec<String> = self.names.iter().map(|&name| name.into()).collect();
        let mut params = CertificateParams::new(names)?;
        params.subject_alt_names.extend([
            SanType::IpAddress(LOOPBACK),
            SanType::IpAddress(SERVICE),
            SanType::DnsName("localhost".try_into()?),
        ]);
        let subject = &mut params.distinguished_name;
        subject.push(DnType::CommonName, self.common_name.replace("{node}", node));
        if let Some(group) = self.group {
            subject.push(DnType::OrganizationName, group);
        }
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        Ok(params)
    }
}

fn authority(name: &str) -> Result<CertificateParams> {
    let mut params = CertificateParams::new(Vec::new())?;
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.distinguished_name.push(DnType::CommonName, name);
    Ok(params)
}

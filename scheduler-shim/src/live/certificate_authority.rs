//! The scheduler's side of mutual TLS: it keeps the CA, signs the agents' certificates and has one of its own.
//!
//! The CA is in a Secret that only schedulers read. The CA certificates to trust are in a `ConfigMap` that agents
//! read. Only the leader writes. The scheduler's own certificate and key are never stored: a scheduler makes them
//! when it becomes the leader. If the Secret can't be read or written, agents on Unix sockets still work.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use apportion_exit::error_chain;
use apportion_proto::identity;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::{Api, ObjectMeta, PostParams};
use kube::{Client, Resource};
use rcgen::KeyPair;
use tokio::sync::watch;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::pki_types::pem;
use tracing::{info, warn};

mod rotation;
mod sign;
mod tls;

use rotation::{CaKeyPair, CaRotation, CertificateSigningError, CertificateUsage};

/// The TLS configuration for connections to agents; `None` until there is a CA.
pub(crate) type TlsConfigReceiver = watch::Receiver<Option<Arc<ClientConfig>>>;

/// Settings of the CA.
#[derive(Clone, Debug)]
pub(crate) struct CaSettings {
    /// Namespace of its Secret and its `ConfigMap`.
    pub(crate) namespace: String,
    /// The user that may request an agent's certificate.
    pub(crate) agents: String,
    /// Lifetime of a certificate.
    pub(crate) life: Duration,
}

/// Why there is no certificate.
#[derive(Debug, thiserror::Error)]
enum CaError {
    #[error("failed to {doing} {object} {name}", name = identity::AUTHORITY)]
    Api {
        doing: &'static str,
        object: &'static str,
        source: Box<kube::Error>,
    },
    #[error(transparent)]
    Make(#[from] CertificateSigningError),
    #[error("failed to create a key")]
    Key(#[from] rcgen::Error),
    #[error("failed to read a certificate")]
    Read(#[from] pem::Error),
    #[error("failed to use a certificate")]
    Use(#[from] tokio_rustls::rustls::Error),
}

fn api(doing: &'static str, object: &'static str) -> impl FnOnce(kube::Error) -> CaError {
    move |source| CaError::Api {
        doing,
        object,
        source: Box::new(source),
    }
}

/// Runs the CA for as long as this scheduler leads.
pub(crate) fn start(client: Client, settings: CaSettings) -> TlsConfigReceiver {
    let (show, shown) = watch::channel(None);
    let (sign, signs) = watch::channel(CaRotation::default());
    tokio::spawn(sign::sign(client.clone(), settings.clone(), signs));
    tokio::spawn(keep(CaStore { client, settings }, show, sign));
    shown
}

/// The scheduler's own certificate, and when it is replaced.
struct SchedulerCertificate {
    certificate: String,
    key: String,
    until: SystemTime,
}

async fn keep(
    store: CaStore,
    show: watch::Sender<Option<Arc<ClientConfig>>>,
    sign: watch::Sender<CaRotation>,
) {
    let life = store.settings.life;
    let interval = (life / 60).clamp(Duration::from_millis(200), Duration::from_secs(30));
    let mut own: Option<SchedulerCertificate> = None;
    let mut last_warning = String::new();
    loop {
        match store.interval(&mut own, &sign).await {
            Ok(None) => last_warning.clear(),
            Ok(Some(config)) => {
                last_warning.clear();
                show.send_replace(Some(config));
            }
            Err(problem) => {
                let problem = error_chain(&problem);
                if problem != last_warning {
                    warn!(problem, "CA for agents on TCP unavailable, retrying");
                    last_warning = problem;
                }
            }
        }
        tokio::time::sleep(interval).await;
    }
}

/// The Secret and the `ConfigMap`.
struct CaStore {
    client: Client,
    settings: CaSettings,
}

impl CaStore {
    /// Renews what is due. Returns the TLS configuration if it changed.
    async fn interval(
        &self,
        own: &mut Option<SchedulerCertificate>,
        sign: &watch::Sender<CaRotation>,
    ) -> Result<Option<Arc<ClientConfig>>, CaError> {
        let kept = self.renew().await?;
        // Agents must know a CA before it signs anything.
        self.publish(&kept.trust_bundle()).await?;
        let is_new = sign.send_if_modified(|known| {
            let is_new = *known != kept;
            known.clone_from(&kept);
            is_new
        });
        let now = SystemTime::now();
        let is_due = own.as_ref().is_none_or(|own| own.until < now);
        if is_due {
            let key = KeyPair::generate()?;
            let life = self.settings.life;
            *own = Some(SchedulerCertificate {
                certificate: kept.sign(
                    &key,
                    identity::SCHEDULER,
                    CertificateUsage::Client,
                    now + life,
                    now,
                )?,
                key: key.serialize_pem(),
                until: now + life * 2 / 3,
            });
        }
        let Some(own) = own.as_ref().filter(|_| is_due || is_new) else {
            return Ok(None);
        };
        info!(is_due, "Scheduler certificate renewed");
        let config = tls::client(&own.certificate, &own.key, &kept.trust_bundle())?;
        Ok(Some(config))
    }

    /// The content of the Secret, renewed if that is due.
    async fn renew(&self) -> Result<CaRotation, CaError> {
        let secrets: Api<Secret> = self.api();
        let found = secrets.get_opt(identity::AUTHORITY).await;
        let found = found.map_err(api("read", "Secret"))?;
        let kept = found.as_ref().map(unpacked).unwrap_or_default();
        let next = rotation::renewed(&kept, self.settings.life, SystemTime::now())?;
        if next != kept {
            info!("CA renewed");
            let mut secret = found.clone().unwrap_or_default();
            secret.data = Some(packed(&next));
            self.write(found.is_some(), &mut secret, "Secret").await?;
        }
        Ok(next)
    }

    /// Publishes the CA certificates to trust.
    async fn publish(&self, trust_bundle: &str) -> Result<(), CaError> {
        let maps: Api<ConfigMap> = self.api();
        let found = maps.get_opt(identity::AUTHORITY).await;
        let found = found.map_err(api("read", "ConfigMap"))?;
        let data = BTreeMap::from([(identity::AUTHORITIES.to_owned(), trust_bundle.to_owned())]);
        if found.as_ref().and_then(|found| found.data.as_ref()) == Some(&data) {
            return Ok(());
        }
        let mut map = found.clone().unwrap_or_default();
        map.data = Some(data);
        self.write(found.is_some(), &mut map, "ConfigMap").await
    }

    fn api<K>(&self) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), &self.settings.namespace)
    }

    /// Replaces the version that was found, or creates the object.
    async fn write<K>(
        &self,
        is_there: bool,
        object: &mut K,
        kind: &'static str,
    ) -> Result<(), CaError>
    where
        K: Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
            + Clone
            + std::fmt::Debug
            + serde::Serialize
            + serde::de::DeserializeOwned,
    {
        let (objects, params) = (self.api::<K>(), PostParams::default());
        let written = if is_there {
            objects.replace(identity::AUTHORITY, &params, object).await
        } else {
            *object.meta_mut() = ObjectMeta {
                name: Some(identity::AUTHORITY.to_owned()),
                ..ObjectMeta::default()
            };
            objects.create(&params, object).await
        };
        written.map(|_| ()).map_err(api("write", kind))
    }
}

/// A field of the stored state.
type Field = fn(&mut CaRotation) -> &mut String;

/// The keys of the Secret.
const ROWS: [(&str, Field); 5] = [
    ("ca.crt", |kept| &mut kept.current.certificate),
    ("ca.key", |kept| &mut kept.current.key),
    ("next.crt", |kept| &mut kept.next.certificate),
    ("next.key", |kept| &mut kept.next.key),
    ("previous.crt", |kept| &mut kept.previous),
];

fn unpacked(secret: &Secret) -> CaRotation {
    let mut kept = CaRotation {
        next: CaKeyPair::default(),
        ..CaRotation::default()
    };
    for (key, field) in ROWS {
        let bytes = secret.data.as_ref().and_then(|data| data.get(key));
        let text = bytes.map(|bytes| String::from_utf8_lossy(&bytes.0).into_owned());
        *field(&mut kept) = text.unwrap_or_default();
    }
    kept
}

fn packed(kept: &CaRotation) -> BTreeMap<String, ByteString> {
    let mut kept = kept.clone();
    ROWS.into_iter()
        .map(|(key, field)| {
            let text = std::mem::take(field(&mut kept));
            (key.to_owned(), ByteString(text.into_bytes()))
        })
        .collect()
}

//! Where certificates are stored: in a Secret that all replicas share, or in files that somebody else renews.
//!
//! The Secret is replaced by resource version. If two replicas renew at the same time, one wins and the other takes
//! what it finds. The CA is written where the API server trusts it before a certificate is shown.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration,
};
use k8s_openapi::api::core::v1::Secret;
use kube::api::{ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::certificate::{CertificateError, StoredCertificates, renewed};

/// The keys of the Secret.
const TRUST_BUNDLE: &str = "ca.crt";
const CA_KEY: &str = "ca.key";
const CERTIFICATE: &str = "tls.crt";
const KEY: &str = "tls.key";

/// Why there is no certificate to show.
#[derive(Debug, thiserror::Error)]
pub enum CertificateStoreError {
    /// The API server refused a request.
    #[error("failed to {doing}")]
    Api {
        /// What was being done.
        doing: String,
        /// Its error.
        source: Box<kube::Error>,
    },
    /// A file cannot be read.
    #[error("failed to read {path}")]
    File {
        /// The file with the certificate or the key.
        path: PathBuf,
        /// The reason.
        source: std::io::Error,
    },
    /// No certificate could be created.
    #[error(transparent)]
    Make(#[from] CertificateError),
}

fn api(doing: impl Into<String>) -> impl FnOnce(kube::Error) -> CertificateStoreError {
    let doing = doing.into();
    move |source| CertificateStoreError::Api {
        doing,
        source: Box::new(source),
    }
}

/// A certificate and its key, as PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServingCertificate {
    pub(crate) certificate: String,
    pub(crate) key: String,
    /// The CA of the clients that may connect, as PEM.
    pub(crate) client_ca: Option<String>,
}

/// Where certificates are kept.
pub(crate) enum CertificateStore {
    /// `tls.crt` and `tls.key` in a folder.
    Files(PathBuf),
    Secret(Box<SecretCertificateStore>),
}

/// A Secret, and the configurations that must trust its CA.
pub(crate) struct SecretCertificateStore {
    pub(crate) client: Client,
    pub(crate) namespace: String,
    pub(crate) name: String,
    /// The names under which the API server calls the webhook.
    pub(crate) names: Vec<String>,
    /// The name of the webhook configurations, of both kinds, that must trust our CA.
    pub(crate) configurations: String,
}

impl CertificateStore {
    /// The certificate to show now, renewed if that is due.
    pub(crate) async fn current(
        &self,
        client_ca: Option<&Path>,
    ) -> Result<ServingCertificate, CertificateStoreError> {
        let client_ca = match client_ca {
            Some(path) => Some(read(path).await?),
            None => None,
        };
        match self {
            Self::Files(folder) => Ok(ServingCertificate {
                certificate: read(&folder.join(CERTIFICATE)).await?,
                key: read(&folder.join(KEY)).await?,
                client_ca,
            }),
            Self::Secret(secret) => {
                let kept = secret.renew().await?;
                secret.make_trusted(&kept.trust_bundle).await?;
                Ok(ServingCertificate {
                    certificate: kept.certificate,
                    key: kept.key,
                    client_ca,
                })
            }
        }
    }
}

async fn read(path: &Path) -> Result<String, CertificateStoreError> {
    let text = tokio::fs::read_to_string(path).await;
    text.map_err(|source| CertificateStoreError::File {
        path: path.to_owned(),
        source,
    })
}

impl SecretCertificateStore {
    async fn renew(&self) -> Result<StoredCertificates, CertificateStoreError> {
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), &self.namespace);
        let doing = |what: &str| format!("{what} secret {}/{}", self.namespace, self.name);
        let found = secrets
            .get_opt(&self.name)
            .await
            .map_err(api(doing("read")))?;
        let kept = found.as_ref().map(unpacked).unwrap_or_default();
        let next = renewed(&kept, &self.names, SystemTime::now())?;
        if next == kept {
            return Ok(kept);
        }
        let params = PostParams::default();
        let written = match found {
            Some(mut found) => {
                found.data = Some(data(&next));
                secrets.replace(&self.name, &params, &found).await
            }
            None => {
                let fresh = Secret {
                    metadata: ObjectMeta {
                        name: Some(self.name.clone()),
                        ..ObjectMeta::default()
                    },
                    data: Some(data(&next)),
                    type_: Some("kubernetes.io/tls".to_owned()),
                    ..Secret::default()
                };
                secrets.create(&params, &fresh).await
            }
        };
        match written {
            Ok(_) => Ok(next),
            // Another replica was first; its certificate is as good.
            Err(kube::Error::Api(status)) if status.code == 409 => {
                let found = secrets.get(&self.name).await;
                Ok(unpacked(&found.map_err(api(doing("read")))?))
            }
            Err(error) => Err(api(doing("write"))(error)),
        }
    }

    /// Writes the CA into the webhook configurations.
    async fn make_trusted(&self, trust_bundle: &str) -> Result<(), CertificateStoreError> {
        self.trust_in::<ValidatingWebhookConfiguration>(trust_bundle)
            .await?;
        self.trust_in::<MutatingWebhookConfiguration>(trust_bundle)
            .await
    }

    async fn trust_in<K>(&self, trust_bundle: &str) -> Result<(), CertificateStoreError>
    where
        K: Resource<DynamicType = ()>
            + Clone
            + DeserializeOwned
            + serde::Serialize
            + std::fmt::Debug,
    {
        let name = &self.configurations;
        let all: Api<K> = Api::all(self.client.clone());
        let doing = |what: &str| format!("{what} {} {name}", K::kind(&()));
        // The chart does not have this kind of configuration.
        let Some(found) = all.get_opt(name).await.map_err(api(doing("read")))? else {
            return Ok(());
        };
        let version = found.resource_version();
        let json = serde_json::to_value(&found).unwrap_or_default();
        let Some(patch) = trusting(&json, trust_bundle, version.as_deref()) else {
            return Ok(());
        };
        let params = PatchParams::default();
        let patched = all.patch(name, &params, &Patch::Merge(patch)).await;
        patched.map(|_| ()).map_err(api(doing("write the CA into")))
    }
}

/// The patch that makes a configuration trust our CA; `None` if it does already.
fn trusting(configuration: &Value, trust_bundle: &str, version: Option<&str>) -> Option<Value> {
    let bundle = json!(ByteString(trust_bundle.as_bytes().to_vec()));
    let mut webhooks = configuration["webhooks"].clone();
    for webhook in webhooks.as_array_mut()? {
        webhook["clientConfig"]["caBundle"] = bundle.clone();
    }
    let is_new = webhooks != configuration["webhooks"];
    is_new.then(|| json!({"metadata": {"resourceVersion": version}, "webhooks": webhooks}))
}

fn unpacked(secret: &Secret) -> StoredCertificates {
    let text = |key: &str| {
        let bytes = secret.data.as_ref().and_then(|data| data.get(key));
        let text = bytes.map(|bytes| String::from_utf8_lossy(&bytes.0).into_owned());
        text.unwrap_or_default()
    };
    StoredCertificates {
        trust_bundle: text(TRUST_BUNDLE),
        ca_key: text(CA_KEY),
        certificate: text(CERTIFICATE),
        key: text(KEY),
    }
}

fn data(kept: &StoredCertificates) -> BTreeMap<String, ByteString> {
    [
        (TRUST_BUNDLE, &kept.trust_bundle),
        (CA_KEY, &kept.ca_key),
        (CERTIFICATE, &kept.certificate),
        (KEY, &kept.key),
    ]
    .into_iter()
    .map(|(key, text)| (key.to_owned(), ByteString(text.clone().into_bytes())))
    .collect()
}

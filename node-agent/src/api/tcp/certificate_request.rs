//! Requests a certificate: creates a key and a `CertificateSigningRequest`, and waits for the signer.
//!
//! The key never leaves the machine. The request names no node: the API server records who made it.

use std::pin::pin;
use std::time::Duration;

use apportion_exit::error_chain;
use apportion_proto::identity;
use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::{
    CertificateSigningRequest as Request, CertificateSigningRequestSpec,
};
use kube::api::{Api, ObjectMeta, PostParams};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Client, ResourceExt};
use rcgen::{CertificateParams, KeyPair};
use tokio::time::timeout;
use tokio_stream::StreamExt;
use tracing::warn;

/// How long to wait after a failure.
const AGAIN: Duration = Duration::from_secs(10);
/// How long to wait for the signer before that is logged.
const SLOW: Duration = Duration::from_secs(15);

/// Why there is no certificate.
#[derive(Debug, thiserror::Error)]
enum CertificateRequestError {
    #[error("failed to create a certificate request")]
    Make(#[from] rcgen::Error),
    #[error("failed to create a CertificateSigningRequest")]
    Write(#[source] Box<kube::Error>),
    #[error("CertificateSigningRequest {0} was refused: {1}")]
    Refused(String, String),
    #[error("CertificateSigningRequest {0} was deleted before it was answered")]
    Gone(String),
}

/// Retries until it has a certificate and its key, as PEM.
pub(super) async fn ask(client: Client, pause: Duration) -> (String, String) {
    tokio::time::sleep(pause).await;
    let mut last_warning = String::new();
    loop {
        match once(&client).await {
            Ok(own) => return own,
            Err(problem) => {
                let problem = error_chain(&problem);
                if problem != last_warning {
                    warn!(problem, "Failed to get a certificate for TCP, retrying");
                    last_warning = problem;
                }
            }
        }
        tokio::time::sleep(AGAIN).await;
    }
}

async fn once(client: &Client) -> Result<(String, String), CertificateRequestError> {
    let key = KeyPair::generate()?;
    let names: Vec<String> = Vec::new();
    let request = CertificateParams::new(names)?
        .serialize_request(&key)?
        .pem()?;
    let requests: Api<Request> = Api::all(client.clone());
    let object = Request {
        metadata: ObjectMeta {
            generate_name: Some("apportion-agent-".to_owned()),
            ..ObjectMeta::default()
        },
        spec: CertificateSigningRequestSpec {
            request: ByteString(request.into_bytes()),
            signer_name: identity::SIGNER.to_owned(),
            usages: Some(vec![
                "digital signature".to_owned(),
                "server auth".to_owned(),
            ]),
            ..CertificateSigningRequestSpec::default()
        },
        status: None,
    };
    let made = requests.create(&PostParams::default(), &object).await;
    let name = made
        .map_err(|error| CertificateRequestError::Write(Box::new(error)))?
        .name_any();
    let certificate = answer(requests, &name).await?;
    Ok((certificate, key.serialize_pem()))
}

/// Waits for the signer's answer.
async fn answer(requests: Api<Request>, name: &str) -> Result<String, CertificateRequestError> {
    let mut changes = pin!(watcher::watch_object(requests, name).default_backoff());
    let mut is_warned = false;
    loop {
        let next = match timeout(SLOW, changes.next()).await {
            Ok(next) => next,
            Err(_) if is_warned => continue,
            Err(_) => {
                let hint = "the leading scheduler signs it; see its log";
                warn!(request = name, hint, "Certificate request not answered yet");
                is_warned = true;
                continue;
            }
        };
        match next {
            Some(Ok(Some(request))) => {
                if let Some(answer) = answer_of(&request) {
                    return answer
                        .map_err(|why| CertificateRequestError::Refused(name.to_owned(), why));
                }
            }
            // The watcher retries by itself.
            Some(Err(_)) => {}
            Some(Ok(None)) | None => return Err(CertificateRequestError::Gone(name.to_owned())),
        }
    }
}

/// The certificate, or why it was refused; `None` if neither is decided yet.
fn answer_of(request: &Request) -> Option<Result<String, String>> {
    let status = request.status.as_ref()?;
    if let Some(certificate) = &status.certificate {
        return Some(Ok(String::from_utf8_lossy(&certificate.0).into_owned()));
    }
    let mut conditions = status.conditions.iter().flatten();
    let no =
        conditions.find(|condition| matches!(condition.type_.as_str(), "Denied" | "Failed"))?;
    Some(Err(no.message.clone().unwrap_or_default()))
}

//! Which rule answers which review.

use apportion_admission::pod_group::{self, ReviewedPodGroup};
use apportion_admission::queue::{self, QueueLookup, ReviewedQueue};
use apportion_admission::topology::{self, ReviewedTopology};
use apportion_admission::{
    AdmissionSettings, Pod, PodRefusal, hami, ignored, mutate, validate, validate_update, warnings,
};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::review::{AdmissionRequest, AdmissionResponse};

/// The kinds of review, one for each path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReviewKind {
    /// Fill in and check a pod.
    CompletePod,
    /// Validate a pod.
    JudgePod,
    /// Validate a queue.
    JudgeQueue,
    /// Validate a pod group.
    JudgePodGroup,
    /// Validate a topology.
    JudgeTopology,
}

/// Every kind with its path. The paths are KAI's.
pub const PATHS: [(&str, ReviewKind); 5] = [
    ("/mutate--v1-pod", ReviewKind::CompletePod),
    ("/validate--v1-pod", ReviewKind::JudgePod),
    (
        "/validate-scheduling-run-ai-v2-queue",
        ReviewKind::JudgeQueue,
    ),
    (
        "/validate-scheduling-run-ai-v2alpha2-podgroup",
        ReviewKind::JudgePodGroup,
    ),
    (
        "/validate-kai-scheduler-v1alpha1-topology",
        ReviewKind::JudgeTopology,
    ),
];

impl ReviewKind {
    /// The kind of review at a path.
    #[must_use]
    pub fn at(path: &str) -> Option<Self> {
        let found = PATHS.iter().find(|(at, _)| *at == path);
        found.map(|(_, question)| *question)
    }

    /// Its path.
    #[must_use]
    pub fn path(self) -> &'static str {
        let found = PATHS.iter().find(|(_, question)| *question == self);
        found.map_or("", |(path, _)| path)
    }
}

/// What the rules need besides the object.
pub struct AdmissionRules {
    /// The schedulers whose pods are reviewed.
    pub schedulers: Vec<String>,
    /// Which rules are on.
    pub settings: AdmissionSettings,
    /// Whether the quotas of queues are compared with each other.
    pub compare_quotas: bool,
    /// Whether HAMi's resources ask for shares.
    pub hami: bool,
}

/// Answers a review.
///
/// `entropy` makes generated names unique.
#[must_use]
pub fn answer(
    question: ReviewKind,
    request: &AdmissionRequest,
    rules: &AdmissionRules,
    queues: &dyn QueueLookup,
    entropy: u64,
) -> AdmissionResponse {
    let answer = match question {
        ReviewKind::CompletePod => complete_pod(request, rules, entropy),
        ReviewKind::JudgePod => judge_pod(request, rules),
        ReviewKind::JudgeQueue => judge_queue(request, rules, queues),
        ReviewKind::JudgePodGroup => judge_pod_group(request),
        ReviewKind::JudgeTopology => judge_topology(request),
    };
    answer.unwrap_or_else(|unreadable| {
        AdmissionResponse::refused(format!("failed to read the object: {unreadable}"))
    })
}

type Read<T> = Result<T, serde_json::Error>;

fn is_ours(pod: &Pod, rules: &AdmissionRules) -> bool {
    rules.schedulers.contains(&pod.spec.scheduler_name)
}

fn complete_pod(
    request: &AdmissionRequest,
    rules: &AdmissionRules,
    entropy: u64,
) -> Read<AdmissionResponse> {
    let mut pod = Pod::read(&request.object)?;
    if !is_ours(&pod, rules) {
        return Ok(AdmissionResponse::default());
    }
    let before = json!(pod);
    if let Err(why) = set_namespace(&mut pod, &request.namespace) {
        return Ok(AdmissionResponse::refused(why));
    }
    let mut warnings = Vec::new();
    if rules.hami {
        match hami::translate(&mut pod) {
            Ok(ignored) => warnings = ignored,
            Err(why) => return Ok(AdmissionResponse::refused(why)),
        }
    }
    if let Err(why) = mutate(&mut pod, &rules.settings, entropy) {
        return Ok(AdmissionResponse::refused(why));
    }
    let patch = json_patch::diff(&before, &json!(pod));
    Ok(AdmissionResponse {
        patch: (!patch.0.is_empty()).then(|| json!(patch)),
        warnings,
        ..AdmissionResponse::default()
    })
}

/// A pod that is created need not name its namespace; the request does.
fn set_namespace(pod: &mut Pod, namespace: &str) -> Result<(), PodRefusal> {
    let own = &mut pod.metadata.namespace;
    if own.is_empty() {
        namespace.clone_into(own);
    } else if !namespace.is_empty() && own != namespace {
        return Err(PodRefusal::Namespace {
            object: own.clone(),
            request: namespace.to_owned(),
        });
    }
    Ok(())
}

fn judge_pod(request: &AdmissionRequest, rules: &AdmissionRules) -> Read<AdmissionResponse> {
    if request.object.is_null() {
        return Ok(AdmissionResponse::default());
    }
    let mut pod = Pod::read(&request.object)?;
    if pod.metadata.namespace.is_empty() {
        request.namespace.clone_into(&mut pod.metadata.namespace);
    }
    if !is_ours(&pod, rules) {
        return Ok(AdmissionResponse::default());
    }
    let judged = match request.operation.as_str() {
        "UPDATE" => validate_update(&Pod::read(&request.old_object)?, &pod, &rules.settings),
        _ => validate(&pod, &rules.settings),
    };
    let mut found = ignored::durations(&request.object);
    if request.operation == "CREATE" {
        found.extend(warnings(&pod));
    }
    Ok(judged.err().map_or_else(
        || AdmissionResponse {
            warnings: found,
            ..AdmissionResponse::default()
        },
        AdmissionResponse::refused,
    ))
}

fn judge_queue(
    request: &AdmissionRequest,
    rules: &AdmissionRules,
    queues: &dyn QueueLookup,
) -> Read<AdmissionResponse> {
    if request.operation == "DELETE" {
        let judged = queue::check_deletion(&ReviewedQueue::deserialize(&request.old_object)?);
        return Ok(judged
            .err()
            .map_or_else(AdmissionResponse::default, AdmissionResponse::refused));
    }
    let old = Some(&request.old_object)
        .filter(|old| !old.is_null())
        .map(ReviewedQueue::deserialize)
        .transpose()?;
    let queue = ReviewedQueue::deserialize(&request.object)?;
    let verdict = queue::check(old.as_ref(), &queue, queues, rules.compare_quotas);
    Ok(AdmissionResponse {
        refusal: verdict.refusal.map(|refusal| refusal.to_string()),
        warnings: verdict.warnings,
        patch: None,
    })
}

fn judge_pod_group(request: &AdmissionRequest) -> Read<AdmissionResponse> {
    let group = ReviewedPodGroup::deserialize(some(&request.object))?;
    let verdict = pod_group::check(&group, request.operation == "UPDATE");
    Ok(AdmissionResponse {
        refusal: verdict.refusal,
        warnings: [verdict.warnings, ignored::durations(&request.object)].concat(),
        patch: None,
    })
}

fn judge_topology(request: &AdmissionRequest) -> Read<AdmissionResponse> {
    let topology = ReviewedTopology::deserialize(some(&request.object))?;
    let judged = topology::check(&topology);
    Ok(judged
        .err()
        .map_or_else(AdmissionResponse::default, AdmissionResponse::refused))
}

/// A deleted object is judged like an empty one, with which nothing is wrong.
fn some(object: &Value) -> Value {
    match object {
        Value::Null => json!({}),
        object => object.clone(),
    }
}

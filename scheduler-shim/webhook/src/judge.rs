//! Which rule answers which question.

use apportion_admission::pod_group::{self, PodGroup};
use apportion_admission::queue::{self, Queue, Queues};
use apportion_admission::topology::{self, Topology};
use apportion_admission::{
    Pod, Refusal, Settings, hami, ignored, mutate, validate, validate_update, warnings,
};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::review::{Answer, Request};

/// The questions, by path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Question {
    /// What must be added to this pod?
    CompletePod,
    /// May this pod be?
    JudgePod,
    /// May this queue be?
    JudgeQueue,
    /// May this pod group be?
    JudgePodGroup,
    /// May this topology be?
    JudgeTopology,
}

/// Every question with its path, which is KAI's.
pub const PATHS: [(&str, Question); 5] = [
    ("/mutate--v1-pod", Question::CompletePod),
    ("/validate--v1-pod", Question::JudgePod),
    ("/validate-scheduling-run-ai-v2-queue", Question::JudgeQueue),
    (
        "/validate-scheduling-run-ai-v2alpha2-podgroup",
        Question::JudgePodGroup,
    ),
    (
        "/validate-kai-scheduler-v1alpha1-topology",
        Question::JudgeTopology,
    ),
];

impl Question {
    /// The question that is asked at a path.
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

/// What the rules need to know beside the object.
pub struct Rules {
    /// The schedulers whose pods are judged.
    pub schedulers: Vec<String>,
    /// Which rules are on.
    pub settings: Settings,
    /// Whether quotas of queues are compared with each other.
    pub compare_quotas: bool,
    /// Whether HAMi's resources ask for shares.
    pub hami: bool,
}

/// Answers a question.
///
/// `entropy` names what needs a name that nobody else has.
#[must_use]
pub fn answer(
    question: Question,
    request: &Request,
    rules: &Rules,
    queues: &dyn Queues,
    entropy: u64,
) -> Answer {
    let answer = match question {
        Question::CompletePod => complete_pod(request, rules, entropy),
        Question::JudgePod => judge_pod(request, rules),
        Question::JudgeQueue => judge_queue(request, rules, queues),
        Question::JudgePodGroup => judge_pod_group(request),
        Question::JudgeTopology => judge_topology(request),
    };
    answer.unwrap_or_else(|unreadable| {
        Answer::refused(format!("failed to read the object: {unreadable}"))
    })
}

type Read<T> = Result<T, serde_json::Error>;

fn is_ours(pod: &Pod, rules: &Rules) -> bool {
    rules.schedulers.contains(&pod.spec.scheduler_name)
}

fn complete_pod(request: &Request, rules: &Rules, entropy: u64) -> Read<Answer> {
    let mut pod = Pod::read(&request.object)?;
    if !is_ours(&pod, rules) {
        return Ok(Answer::default());
    }
    let before = json!(pod);
    if let Err(why) = set_namespace(&mut pod, &request.namespace) {
        return Ok(Answer::refused(why));
    }
    let mut warnings = Vec::new();
    if rules.hami {
        match hami::translate(&mut pod) {
            Ok(ignored) => warnings = ignored,
            Err(why) => return Ok(Answer::refused(why)),
        }
    }
    if let Err(why) = mutate(&mut pod, &rules.settings, entropy) {
        return Ok(Answer::refused(why));
    }
    let patch = json_patch::diff(&before, &json!(pod));
    Ok(Answer {
        patch: (!patch.0.is_empty()).then(|| json!(patch)),
        warnings,
        ..Answer::default()
    })
}

/// A pod on its way in need not say where it will be; the request does.
fn set_namespace(pod: &mut Pod, namespace: &str) -> Result<(), Refusal> {
    let own = &mut pod.metadata.namespace;
    if own.is_empty() {
        namespace.clone_into(own);
    } else if !namespace.is_empty() && own != namespace {
        return Err(Refusal::Namespace {
            object: own.clone(),
            request: namespace.to_owned(),
        });
    }
    Ok(())
}

fn judge_pod(request: &Request, rules: &Rules) -> Read<Answer> {
    if request.object.is_null() {
        return Ok(Answer::default());
    }
    let mut pod = Pod::read(&request.object)?;
    if pod.metadata.namespace.is_empty() {
        request.namespace.clone_into(&mut pod.metadata.namespace);
    }
    if !is_ours(&pod, rules) {
        return Ok(Answer::default());
    }
    let judged = match request.operation.as_str() {
        "UPDATE" => validate_update(&Pod::read(&request.old_object)?, &pod, &rules.settings),
        _ => validate(&pod, &rules.settings),
    };
    let mut said = ignored::durations(&request.object);
    if request.operation == "CREATE" {
        said.extend(warnings(&pod));
    }
    let taken = || Answer {
        warnings: said,
        ..Answer::default()
    };
    Ok(judged.err().map_or_else(taken, Answer::refused))
}

fn judge_queue(request: &Request, rules: &Rules, queues: &dyn Queues) -> Read<Answer> {
    if request.operation == "DELETE" {
        let judged = queue::check_deletion(&Queue::deserialize(&request.old_object)?);
        return Ok(judged.err().map_or_else(Answer::default, Answer::refused));
    }
    let old = Some(&request.old_object).filter(|old| !old.is_null());
    let old = old.map(Queue::deserialize).transpose()?;
    let queue = Queue::deserialize(&request.object)?;
    let verdict = queue::check(old.as_ref(), &queue, queues, rules.compare_quotas);
    Ok(Answer {
        refusal: verdict.refusal.map(|refusal| refusal.to_string()),
        warnings: verdict.warnings,
        patch: None,
    })
}

fn judge_pod_group(request: &Request) -> Read<Answer> {
    let group = PodGroup::deserialize(some(&request.object))?;
    let verdict = pod_group::check(&group, request.operation == "UPDATE");
    Ok(Answer {
        refusal: verdict.refusal,
        warnings: [verdict.warnings, ignored::durations(&request.object)].concat(),
        patch: None,
    })
}

fn judge_topology(request: &Request) -> Read<Answer> {
    let topology = Topology::deserialize(some(&request.object))?;
    let judged = topology::check(&topology);
    Ok(judged.err().map_or_else(Answer::default, Answer::refused))
}

/// What is to go is judged like an empty object: nothing is wrong with it.
fn some(object: &Value) -> Value {
    match object {
        Value::Null => json!({}),
        object => object.clone(),
    }
}

//! What a pod requests: cards by KAI's annotations or by resource names, CPU and memory.
//!
//! Every pod is checked against the rules of admission again, so that `simulate` does not run what a cluster would
//! never have admitted.

use std::collections::BTreeMap;
use std::time::Duration;

use apportion_abi::names::{
    ANNOTATION_BURST, ANNOTATION_IDLE, RESOURCE_PARTITION as PARTITION, RESOURCE_WHOLE,
    RESOURCE_WHOLE_AMD,
};
use apportion_abi::{Bytes, GpuRequest, SHARE_UNIT, Share};
use apportion_admission::limits::{growing, may_burst};
use apportion_admission::{Pod, request as admission, unmet, without_resource};
use apportion_groups::ObjectView;
use apportion_kubernetes::Quantity;
use apportion_policy::cluster::TaskGpuRequest;
use serde::Deserialize;
use serde_json::Value;

use super::pods;

/// Whole cards, by resource name.
pub const WHOLE: [&str; 2] = [RESOURCE_WHOLE, RESOURCE_WHOLE_AMD];

/// What a pod requests of cards, or why it is invalid. Containers with shares of their own share one card, which must
/// have room for all of them.
pub fn cards(pod: ObjectView<'_>) -> Result<TaskGpuRequest, String> {
    let read = Pod::deserialize(pod.json()).map_err(|error| error.to_string())?;
    let asked = admission::read(&read).map_err(|refusal| refusal.to_string())?;
    if pods::node(pod).is_none()
        && let Some(why) = unmet(&read)
    {
        return Err(why);
    }
    if let Some(request) = asked.iter().map(|asked| asked.request).reduce(together) {
        if let Share::Memory(asked) = request.share
            && asked.0 < SHARE_UNIT
        {
            return Err("it asks for less than 2 MiB of a GPU, the smallest share".to_owned());
        }
        return Ok(TaskGpuRequest::Shared {
            share: request.share,
            devices: request.devices,
        });
    }
    let count = WHOLE.iter().map(|name| total(pod, name).units());
    let partitions = partitions(pod);
    Ok(match count.sum() {
        0 if partitions.is_empty() => TaskGpuRequest::None,
        0 => TaskGpuRequest::Partitions(partitions),
        count => TaskGpuRequest::Whole(count),
    })
}

/// How much of each card a pod may use, if that is more than its share. Containers with shares of their own may use as
/// much together as each of them may.
pub fn limit(pod: ObjectView<'_>) -> Option<Share> {
    pod.annotation(ANNOTATION_BURST)?;
    let read = Pod::deserialize(pod.json()).ok()?;
    let asked = admission::read(&read).ok()?;
    asked.iter().find(|asked| asked.limit.is_some())?;
    let most = asked.into_iter().map(|asked| GpuRequest {
        share: asked.limit.unwrap_or(asked.request.share),
        ..asked.request
    });
    most.reduce(together).map(|most| most.share)
}

/// After how long without a CUDA call the programs of a pod with a share are suspended, if ever. What admission would
/// refuse was created while the webhook was down, and is ignored.
pub fn idle_time(pod: ObjectView<'_>) -> Option<Duration> {
    pod.annotation(ANNOTATION_IDLE)?;
    let read = Pod::deserialize(pod.json()).ok()?;
    apportion_admission::idle_time(&read).ok()?
}

/// The warning about a pod whose limit is above its request, where the limit is what it gets.
pub fn growth(pod: ObjectView<'_>) -> Option<String> {
    let annotations = pod.json()["metadata"]["annotations"].as_object()?;
    if !annotations.keys().any(|key| key.ends_with(".limit")) {
        return None;
    }
    let read = Pod::deserialize(pod.json()).ok()?;
    let growing = growing(&read).filter(|_| !may_burst(&read));
    growing.map(|growing| growing.warning())
}

/// Why a pod with a share would run without its GPU. The agent gives a GPU to a container that holds one of this
/// resource. Admission adds it when the pod is created, and nobody can add it later.
pub fn without_slot(pod: ObjectView<'_>, slot: &str) -> Option<String> {
    let read = Pod::deserialize(pod.json()).ok()?;
    let without = without_resource(&read, slot)?;
    let who = match without {
        "" => "no container requests".to_owned(),
        name => format!("container {name} does not request"),
    };
    Some(format!(
        "{who} {slot}, so the pod would run without its GPU: it was created while the admission webhook did not \
         answer for it; delete the pod and create it again"
    ))
}

/// The requests of two containers together. Only amounts of memory can come from several.
fn together(one: GpuRequest, other: GpuRequest) -> GpuRequest {
    let share = match (one.share, other.share) {
        (Share::Memory(one), Share::Memory(other)) => {
            Share::Memory(Bytes(one.0.saturating_add(other.0)))
        }
        (share, _) => share,
    };
    GpuRequest { share, ..one }
}

/// The containers in one field of a pod's spec: `containers` or `initContainers`.
pub fn containers<'a>(pod: ObjectView<'a>, field: &str) -> impl Iterator<Item = &'a Value> {
    let list = pod.json().pointer(&format!("/spec/{field}"));
    list.and_then(Value::as_array).into_iter().flatten()
}

fn partitions(pod: ObjectView<'_>) -> BTreeMap<String, i64> {
    let names = containers(pod, "containers").flat_map(|container| {
        let limits = container["resources"]["limits"].as_object();
        limits.into_iter().flatten().map(|(name, _)| name.as_str())
    });
    let names = names.filter(|name| name.starts_with(PARTITION));
    names
        .map(|name| (name.to_owned(), total(pod, name).units()))
        .collect()
}

/// What a pod requests of one resource, as the kubelet counts it: the amount for the whole pod, else that of its
/// containers.
pub fn total(pod: ObjectView<'_>, resource: &str) -> Quantity {
    let of_containers = of_containers(pod, resource);
    let asked = of_all(pod, resource, of_containers).unwrap_or(of_containers);
    let overhead = amount(&pod.json()["spec"]["overhead"], resource).unwrap_or_default();
    asked.max(Quantity::ZERO) + overhead.max(Quantity::ZERO)
}

/// The amount of one resource for the whole pod (KEP-2837). With a limit only, the API server takes what the
/// containers request, or the limit if they request nothing.
fn of_all(pod: ObjectView<'_>, resource: &str, of_containers: Quantity) -> Option<Quantity> {
    if !matches!(resource, "cpu" | "memory") && !resource.starts_with("hugepages-") {
        return None;
    }
    let resources = &pod.json()["spec"]["resources"];
    amount(&resources["requests"], resource).or_else(|| {
        let limit = amount(&resources["limits"], resource)?;
        Some(if of_containers > Quantity::ZERO {
            of_containers
        } else {
            limit
        })
    })
}

/// What the containers of a pod request of one resource: the sum of all that run together, or the peak while the pod
/// starts if that is more. Sidecars count with the others.
fn of_containers(pod: ObjectView<'_>, resource: &str) -> Quantity {
    let of = |container: &Value| {
        let resources = &container["resources"];
        amount(&resources["requests"], resource)
            .or_else(|| amount(&resources["limits"], resource))
            .unwrap_or_default()
    };
    let running: Quantity = containers(pod, "containers").map(of).sum();
    let (mut staying, mut starting) = (Quantity::ZERO, Quantity::ZERO);
    for container in containers(pod, "initContainers") {
        if container["restartPolicy"] == "Always" {
            staying += of(container);
            starting = starting.max(staying);
        } else {
            starting = starting.max(staying + of(container));
        }
    }
    starting.max(running + staying)
}

/// The amount of one resource in a list of amounts.
fn amount(list: &Value, resource: &str) -> Option<Quantity> {
    Quantity::from_json(&list[resource])
}

/// The first quantity of a pod that can't be parsed, or is negative.
pub fn unreadable(pod: ObjectView<'_>) -> Option<String> {
    let all = containers(pod, "initContainers")
        .chain(containers(pod, "containers"))
        .chain(pod.json().pointer("/spec"));
    let amounts = all.flat_map(|container| {
        let kinds = ["requests", "limits"].into_iter();
        kinds.flat_map(|kind| {
            container["resources"][kind]
                .as_object()
                .into_iter()
                .flatten()
        })
    });
    let mut wrong =
        amounts.filter(|(_, value)| Quantity::from_json(value).is_none_or(Quantity::is_negative));
    let (name, value) = wrong.next()?;
    Some(format!(
        "it asks for {value} of {name}, which is not a valid quantity"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn ask(annotations: Value, limits: Value) -> Result<TaskGpuRequest, String> {
        let pod = json!({"metadata": {"annotations": annotations},
            "spec": {"containers": [{"name": "main", "resources": {"limits": limits}}]}});
        cards(ObjectView::new(&pod))
    }

    #[test]
    fn what_admission_refuses_is_no_request() {
        assert_eq!(
            ask(json!({"gpu-memory": "8Gi"}), json!({})),
            Err("gpu-memory annotation value must be a positive integer greater than 0".to_owned())
        );
    }

    #[test]
    fn what_a_share_cannot_do_is_no_request_of_a_pod_that_waits() {
        let mut pod = json!({"metadata": {"annotations": {"gpu-memory": "2000",
            "nvidia.com/container.main.gpu-compute.mode": "sm-sharing"}}, "spec": {"containers": [{"name": "main"}]}});
        let why = cards(ObjectView::new(&pod)).unwrap_err();
        assert!(
            why.contains("sm-sharing needs NVIDIA's Multi-Process"),
            "{why}"
        );
        pod["spec"]["nodeName"] = "n1".into();
        assert!(cards(ObjectView::new(&pod)).is_ok(), "KAI's pod runs");
    }

    #[test]
    fn a_limit_above_the_request_is_said() {
        let pod = json!({"metadata": {"annotations": {"gpu-memory": "2000", "gpu-memory.limit": "3Gi"}},
            "spec": {"containers": [{"name": "main"}]}});
        let message = growth(ObjectView::new(&pod)).unwrap();
        assert!(
            message.starts_with("gpu-memory.limit (3Gi) is scheduled and charged"),
            "{message}"
        );
        let shared = TaskGpuRequest::Shared {
            share: Share::Memory(Bytes::from_mib(3072)),
            devices: 1,
        };
        assert_eq!(cards(ObjectView::new(&pod)), Ok(shared));
    }

    #[test]
    fn a_pod_that_may_burst_asks_for_its_request_and_may_use_its_limit() {
        let request = "nvidia.com/container.a.gpu-memory.request";
        let limit = "nvidia.com/container.a.gpu-memory.limit";
        let other = "nvidia.com/container.b.gpu-memory.limit";
        let gib = |gib: u64| Share::Memory(Bytes::from_mib(gib << 10));
        let fraction = |text: &str| Share::Fraction(text.parse().unwrap());
        for (annotations, share, most) in [
            (
                json!({"gpu-memory": "3072", "gpu-memory.limit": "12Gi"}),
                gib(3),
                gib(12),
            ),
            (
                json!({"gpu-fraction": "0.25", "gpu-fraction.limit": "0.75"}),
                fraction("0.25"),
                fraction("0.75"),
            ),
            // The other container cannot use more than its share.
            (
                json!({(request): "1Gi", (limit): "4Gi", (other): "2Gi"}),
                gib(3),
                gib(6),
            ),
        ] {
            let mut pod = json!({"metadata": {"annotations": annotations},
                "spec": {"containers": [{"name": "a"}, {"name": "b"}]}});
            let unmarked = ObjectView::new(&pod);
            assert_eq!(super::limit(unmarked), None);
            assert!(growth(unmarked).is_some(), "the limit is charged");
            pod["metadata"]["annotations"][ANNOTATION_BURST] = "true".into();
            let marked = ObjectView::new(&pod);
            let shared = TaskGpuRequest::Shared { share, devices: 1 };
            assert_eq!(cards(marked), Ok(shared), "{pod}");
            assert_eq!(super::limit(marked), Some(most), "{pod}");
            assert_eq!(growth(marked), None);
        }
    }

    #[test]
    fn a_pod_with_a_share_says_when_it_is_idle_and_nonsense_is_ignored() {
        let of = |annotations: Value| {
            let pod = json!({"metadata": {"annotations": annotations}, "spec": {"containers": [{"name": "a"}]}});
            idle_time(ObjectView::new(&pod))
        };
        let ten = Some(Duration::from_secs(600));
        assert_eq!(
            of(json!({"gpu-memory": "2000", (ANNOTATION_IDLE): "10m"})),
            ten
        );
        assert_eq!(of(json!({"gpu-memory": "2000"})), None);
        for wrong in [
            json!({(ANNOTATION_IDLE): "10m"}),
            json!({"gpu-memory": "2000", (ANNOTATION_IDLE): "soon"}),
            json!({"gpu-memory": "2000", (ANNOTATION_IDLE): "0"}),
        ] {
            assert_eq!(of(wrong.clone()), None, "{wrong}");
        }
    }

    #[test]
    fn less_than_the_smallest_share_is_no_request() {
        let message = ask(json!({"gpu-memory": "1"}), json!({})).unwrap_err();
        assert!(message.contains("less than 2 MiB"), "{message}");
        assert!(ask(json!({"gpu-memory": "2"}), json!({})).is_ok());
    }

    #[test]
    fn a_share_without_a_slot_is_told_what_to_do() {
        let message = |container: &str, annotation: &str| {
            let key = annotation.split('=').next().unwrap();
            let value = annotation.split('=').nth(1).unwrap();
            let slot = json!({"limits": {"a/slot": "1"}});
            let nothing = json!({});
            let of = |name| if name == container { &slot } else { &nothing };
            let pod = json!({"metadata": {"annotations": {key: value}},
                "spec": {"containers": [{"name": "a", "resources": of("a")}, {"name": "b", "resources": of("b")}],
                    "initContainers": [{"name": "first", "resources": of("first")}]}});
            without_slot(ObjectView::new(&pod), "a/slot")
        };
        for share in ["gpu-fraction=0.5", "gpu-memory=2000"] {
            let why = message("", share).unwrap();
            assert!(why.starts_with("no container requests a/slot"), "{why}");
            assert!(why.ends_with("delete the pod and create it again"), "{why}");
            // A slot written by hand says which container gets the GPU.
            for container in ["a", "b", "first"] {
                assert_eq!(message(container, share), None, "{container} {share}");
            }
        }
        let of_b = "nvidia.com/container.b.gpu-memory.limit=1Gi";
        assert_eq!(message("b", of_b), None);
        let why = message("a", of_b).unwrap();
        assert!(
            why.starts_with("container b does not request a/slot"),
            "{why}"
        );
        assert_eq!(message("", "note=1"), None);
    }

    #[test]
    fn containers_with_shares_of_their_own_need_room_together() {
        let key = |name| format!("nvidia.com/container.{name}.gpu-memory.limit");
        let pod = json!({"metadata": {"annotations": {key("a"): "1Gi", key("b"): "512Mi"}},
            "spec": {"containers": [{"name": "a"}, {"name": "b"}]}});
        let shared = TaskGpuRequest::Shared {
            share: Share::Memory(Bytes::from_mib(1536)),
            devices: 1,
        };
        assert_eq!(cards(ObjectView::new(&pod)), Ok(shared));
    }

    #[test]
    fn what_a_pod_says_for_all_its_containers_counts_instead_of_theirs() {
        let container = json!({"resources": {"requests": {"cpu": "250m", "memory": "1Gi"}}});
        let pod = |resources: Value, containers: Value| json!({"spec": {"containers": containers, "resources": resources, "overhead": {"cpu": "1"}}});
        let bare = json!([{"name": "a"}, {"name": "b"}]);
        let asking = json!([container, container]);
        let both =
            json!({"requests": {"cpu": "2", "example.com/nic": "3"}, "limits": {"cpu": "4"}});
        let limit = json!({"limits": {"cpu": "4"}});
        let cases = [
            (pod(both.clone(), bare.clone()), 3000),
            (pod(both, asking.clone()), 3000),
            (pod(limit.clone(), bare), 5000),
            (pod(limit, asking.clone()), 1500),
            (pod(json!({}), asking.clone()), 1500),
        ];
        for (pod, cpu) in cases {
            let pod = ObjectView::new(&pod);
            assert_eq!(total(pod, "cpu").millis(), cpu, "{pod:?}");
            assert!(
                total(pod, "example.com/nic").is_zero(),
                "no resource of pods"
            );
        }
        let odd = pod(json!({"requests": {"cpu": "lots"}}), asking);
        let why = unreadable(ObjectView::new(&odd)).unwrap();
        assert!(why.contains("\"lots\" of cpu"), "{why}");
    }

    #[test]
    fn a_pod_needs_what_its_greediest_moment_needs() {
        let container = |amount: u32| json!({"resources": {"requests": {"cpu": amount}}});
        let mut staying = container(2);
        staying["restartPolicy"] = "Always".into();
        let pod = json!({"spec": {"containers": [container(1), container(3)],
            "initContainers": [staying, container(5)], "overhead": {"cpu": "500m"}}});
        // While it starts: 2 + 5; while it runs: 2 + 1 + 3.
        assert_eq!(total(ObjectView::new(&pod), "cpu").millis(), 7500);
    }
}

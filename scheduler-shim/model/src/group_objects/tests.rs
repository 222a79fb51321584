use std::collections::BTreeMap;
use std::time::Duration;

use apportion_groups::PodGroupOwner;
use proptest::prelude::*;

use super::*;

fn any_text() -> impl Strategy<Value = String> {
    prop::sample::select(vec!["", "rack", "zone"]).prop_map(str::to_owned)
}

fn any_topology() -> impl Strategy<Value = DerivedTopologyConstraint> {
    (any_text(), any_text(), any_text()).prop_map(|(name, required, preferred)| {
        DerivedTopologyConstraint {
            name,
            required,
            preferred,
        }
    })
}

prop_compose! {
    fn any_part()(name in "[a-c]", parent in prop::option::of("[a-c]"), min_member in 0_u32..3,
        min_sub_group in prop::option::of(0_u32..3), topology in prop::option::of(any_topology()))
        -> DerivedSubGroup
    {
        DerivedSubGroup { name, parent, min_member, min_sub_group, pods: Vec::new(), topology }
    }
}

fn any_texts() -> impl Strategy<Value = BTreeMap<String, String>> {
    let keys = [
        "team",
        "user",
        "kai.scheduler/queue",
        "runai-gpu-group",
        "pod-group-name",
    ];
    let key = prop::sample::select(keys.to_vec()).prop_map(str::to_owned);
    prop::collection::btree_map(key, "[ab]", 0..4)
}

prop_compose! {
    fn any_group()(queue in "[qr]", priority_class in "[st]", delay in prop::option::of(1_u64..900),
        preemptible in prop::option::of(any::<bool>()), min_member in 0_u32..4,
        min_sub_group in prop::option::of(0_u32..3), labels in any_texts(),
        mut annotations in any_texts(), topology in any_topology(),
        grace in prop::option::of(prop::sample::select(vec!["5m", "-1s", "soon"])),
        sub_groups in prop::collection::vec(any_part(), 0..3)) -> DerivedPodGroup
    {
        annotations.insert(ANNOTATION_TOP_OWNER.to_owned(), "{}".to_owned());
        if let Some(grace) = grace {
            annotations.insert(ANNOTATION_GRACE.to_owned(), grace.to_owned());
        }
        let preemptibility = preemptible.map(|yes| {
            if yes {
                GroupPreemptibility::Preemptible
            } else {
                GroupPreemptibility::NonPreemptible
            }
        });
        let owner = ["batch/v1", "Job", "j", "u"].map(str::to_owned);
        let [api_version, kind, name, uid] = owner;
        DerivedPodGroup { name: "pg-j-u".to_owned(), namespace: "n".to_owned(),
            owner: PodGroupOwner { api_version, kind, name, uid }, queue, priority_class,
            preemptibility, preemption_delay: delay.map(Duration::from_secs),
            min_member, min_sub_group, labels, annotations, topology, sub_groups }
    }
}

/// A merge patch, as the API server applies it.
fn merge(into: &mut Value, change: &Value) {
    for (key, value) in change.as_object().into_iter().flatten() {
        match value {
            Value::Null => {
                into.as_object_mut().map(|into| into.remove(key));
            }
            Value::Object(_) if into[key].is_object() => merge(&mut into[key], value),
            _ => into[key] = value.clone(),
        }
    }
}

proptest! {
    /// From any group to any other in one write; what others decide stays.
    #[test]
    fn one_change_brings_an_object_to_what_it_should_say(before in any_group(), after in any_group()) {
        let mut there = object(&before);
        there["metadata"]["uid"] = "g".into();
        there["spec"]["schedulingBackoff"] = 1.into();
        prop_assert_eq!(change(ObjectView::new(&there), &before), None);
        let queue = there["spec"]["queue"].clone();
        let levels = there["spec"]["topologyConstraint"].clone();
        if let Some(change) = change(ObjectView::new(&there), &after) {
            merge(&mut there, &change);
        }
        prop_assert_eq!(change(ObjectView::new(&there), &after), None);
        prop_assert_eq!(&there["spec"]["queue"], &queue);
        prop_assert_eq!(&there["spec"]["schedulingBackoff"], 1);
        let wanted = object(&after);
        for field in FIELDS {
            prop_assert!(is_same(&there["spec"][*field], &wanted["spec"][*field]), "{}", field);
        }
        let of_owner = !after.topology.name.is_empty();
        let expected = if of_owner { &wanted["spec"]["topologyConstraint"] } else { &levels };
        prop_assert!(is_same(&there["spec"]["topologyConstraint"], expected));
        prop_assert_eq!(stamp(&before) == stamp(&after), object(&before) == object(&after));
    }
}

#[test]
fn what_tells_where_a_pod_went_is_not_its_groups() {
    let pairs = [
        ("apportion.dev/allocated", "gpu-fraction=0.5"),
        ("apportion.dev/cards", "GPU-1=1"),
        ("received-resource-type", "Fraction"),
        ("runai-gpu-group/GPU-1", "GPU-1"),
        ("team", "a"),
    ];
    let all: BTreeMap<String, String> = pairs
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into();
    assert_eq!(texts(&all), json!({"team": "a"}));
}

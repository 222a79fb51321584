//! What a group takes from labels, annotations and defaults, and groups made by somebody else.

use apportion_groups::{GroupPreemptibility, Grouping, KindDefaults, ObjectView};
use serde_json::{Value, json};

use crate::case::{GroupingCase, class, owner, with};

#[test]
fn any_owner_without_a_rule_is_one_group_in_which_one_pod_is_enough() {
    let group = GroupingCase::of(owner("example.com/v1", "Robot", json!({}))).group();
    assert_eq!(group.name, "pg-o-7");
    assert_eq!(
        (group.min_member, group.queue.as_str()),
        (1, "default-queue")
    );
    assert_eq!(
        (group.owner.kind.as_str(), group.priority_class.as_str()),
        ("Robot", "train")
    );
}

#[test]
fn a_pod_that_nothing_owns_is_its_own_group() {
    let mut case = GroupingCase::of(Value::Null);
    case.owners.clear();
    // In lists, the API server omits the kind.
    case.pod["kind"] = Value::Null;
    let group = case.group();
    assert_eq!(
        (group.name.as_str(), group.owner.kind.as_str()),
        ("pg-p-9", "Pod")
    );
}

#[test]
fn the_queue_is_the_owners_then_the_pods_then_the_projects() {
    let plain = owner("apps/v1", "StatefulSet", json!({}));
    let labelled = with(plain.clone(), "labels", "kai.scheduler/queue", "gold");
    let project = with(plain.clone(), "labels", "project", "vision");
    let pod_queue = |owner| GroupingCase::of(owner).label("kai.scheduler/queue", "iron");
    let old = |owner| GroupingCase::of(owner).label("runai/queue", "bronze");
    assert_eq!(old(plain.clone()).group().queue, "bronze");
    assert_eq!(old(labelled.clone()).group().queue, "gold");
    assert_eq!(old(project.clone()).group().queue, "bronze");
    assert_eq!(pod_queue(labelled).group().queue, "gold");
    assert_eq!(pod_queue(plain).group().queue, "iron");
    assert_eq!(GroupingCase::of(project.clone()).group().queue, "vision");
    let pooled = GroupingCase::of(project)
        .label("kai.scheduler/node-pool", "a100")
        .group();
    assert_eq!(pooled.queue, "vision-a100");
    assert_eq!(pooled.labels["kai.scheduler/node-pool"], "a100");
}

#[test]
fn a_priority_class_that_does_not_exist_is_passed_over() {
    let named = with(
        owner("apps/v1", "StatefulSet", json!({})),
        "labels",
        "priorityClassName",
        "x",
    );
    assert_eq!(
        GroupingCase::of(named.clone()).group().priority_class,
        "train"
    );
    // The owner's label hides the pod's; a second owner without a label lets the pod's count.
    let mut on_pod = GroupingCase::of(named.clone())
        .label("priorityClassName", "y")
        .beside(class("y"));
    assert_eq!(on_pod.group().priority_class, "train");
    on_pod
        .owners
        .push(owner("example.com/v1", "Robot", json!({})));
    assert_eq!(on_pod.group().priority_class, "y");
    assert_eq!(
        GroupingCase::of(named)
            .beside(class("x"))
            .group()
            .priority_class,
        "x"
    );
}

#[test]
fn an_empty_preemptibility_leaves_it_to_the_priority() {
    let key = "kai.scheduler/preemptibility";
    let said = |word: &str| {
        let set = owner("apps/v1", "StatefulSet", json!({}));
        GroupingCase::of(with(set, "labels", key, word))
            .label(key, "preemptible")
            .group()
    };
    assert_eq!(said("").preemptibility, None);
    let passed_over = Some(GroupPreemptibility::Preemptible);
    assert_eq!(said("perhaps").preemptibility, passed_over);
}

#[test]
fn the_terms_of_a_job_are_its_own_and_those_of_other_owners_are_all_owners() {
    let below = |below: Value, top: Value| {
        let mut case = GroupingCase::of(with(below, "labels", "priorityClassName", "high"))
            .beside(class("high"));
        case.owners.push(top);
        case.group().priority_class
    };
    let set = owner("apps/v1", "ReplicaSet", json!({}));
    let web = owner("apps/v1", "Deployment", json!({}));
    assert_eq!(below(set.clone(), web), "inference");
    assert_eq!(
        below(set, owner("example.com/v1", "Robot", json!({}))),
        "high"
    );
}

#[test]
fn a_cluster_sets_its_own_defaults_for_a_kind() {
    let types = r#"[{"typeName": "Deployment", "priorityName": "low"},
        {"typeName": "Deployment", "group": "apps", "priorityName": "mid",
         "preemptibility": "preemptible"}]"#;
    let map = json!({"kind": "ConfigMap", "data": {"types": types}});
    let mut case = GroupingCase::of(owner("apps/v1", "Deployment", json!({}))).beside(class("mid"));
    case.settings.defaults =
        KindDefaults::parse(ObjectView::new(&map)).expect("the map is well formed");
    let group = case.group();
    assert_eq!(group.priority_class, "mid");
    assert_eq!(group.preemptibility, Some(GroupPreemptibility::Preemptible));
}

#[test]
fn an_annotation_gives_placement_and_delay() {
    let set = owner("apps/v1", "StatefulSet", json!({}));
    let set = with(set, "annotations", "kai.scheduler/topology", "dc");
    let level = "kai.scheduler/topology-required-placement";
    let group = GroupingCase::of(with(set, "annotations", level, "rack"))
        .annotation("kai.scheduler/preemption-delay", "90s")
        .annotation("kai.scheduler/topology", "other")
        .group();
    assert_eq!(
        (
            group.topology.name.as_str(),
            group.topology.required.as_str()
        ),
        ("dc", "rack")
    );
    assert_eq!(
        group.preemption_delay.map(|delay| delay.as_secs()),
        Some(90)
    );
}

#[test]
fn a_group_that_somebody_else_makes_is_left_to_them() {
    let set = || GroupingCase::of(owner("apps/v1", "StatefulSet", json!({})));
    let external = |name: &str| Ok(Grouping::External(Some(name.to_owned())));
    let skipped = set().annotation("kai.scheduler/skip-podgrouper", "true");
    assert_eq!(skipped.grouping(), Ok(Grouping::External(None)));
    // The group may be created after its pods.
    assert_eq!(
        set().annotation("pod-group-name", "mine").grouping(),
        external("mine")
    );
    let mine = json!({"kind": "PodGroup", "metadata": {"name": "mine", "namespace": "lab"}});
    let named = set().annotation("pod-group-name", "mine").beside(mine);
    assert_eq!(named.grouping(), external("mine"));
    // Our own group is made again if it was deleted.
    let ours = set().annotation("pod-group-name", "pg-o-7");
    assert_eq!(ours.group().name, "pg-o-7");
}

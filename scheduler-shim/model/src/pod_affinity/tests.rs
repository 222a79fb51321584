use serde_json::json;

use super::*;
use crate::inventory::ObjectInventory;
use crate::namespaces::NamespaceResolver;

/// The task of a pod in the namespace `team`, and the warnings.
fn read(labels: &Value, spec: &Value) -> (Task, Vec<String>) {
    let pod = json!({"kind": "Pod", "spec": spec,
        "metadata": {"name": "p", "namespace": "team", "labels": labels}});
    let (mut task, mut warnings) = (Task::default(), ObjectWarnings::default());
    enter(ObjectView::new(&pod), &mut task, &mut warnings);
    let warnings = warnings.0.into_iter().map(|one| one.message);
    (task, warnings.collect())
}

/// The label requirements of a required anti-affinity term.
fn asked(term: &Value) -> Vec<(String, LabelRequirement)> {
    let mut term = term.clone();
    term["topologyKey"] = "zone".into();
    let terms = json!({"requiredDuringSchedulingIgnoredDuringExecution": [term]});
    let labels = json!({"app": "web", "hash": "1"});
    let (task, warnings) = read(&labels, &json!({"affinity": {"podAntiAffinity": terms}}));
    assert!(warnings.is_empty(), "{warnings:?}");
    let [apart] = task.apart.as_slice() else {
        panic!("{:?} is not one term", task.apart);
    };
    assert_eq!(apart.domain, "zone");
    apart.labels.clone()
}

fn among(values: &[&str]) -> LabelRequirement {
    LabelRequirement::In(values.iter().map(|&value| value.to_owned()).collect())
}

fn other_than(value: &str) -> LabelRequirement {
    LabelRequirement::NotIn([value.to_owned()].into())
}

fn all(of: &[(&str, LabelRequirement)]) -> Vec<(String, LabelRequirement)> {
    let named = of.iter();
    named
        .map(|(label, asked)| ((*label).to_owned(), asked.clone()))
        .collect()
}

#[test]
fn a_selector_is_read_whole() {
    let selector = json!({"matchLabels": {"app": "web"}, "matchExpressions": [
        {"key": "app", "operator": "In", "values": ["web", "db"]},
        {"key": "gone", "operator": "DoesNotExist"},
        {"key": "hash", "operator": "NotIn", "values": ["2"]},
        {"key": "tier", "operator": "Exists"}]});
    assert_eq!(
        asked(&json!({"labelSelector": selector})),
        all(&[
            (NAMESPACE, among(&["team"])),
            ("app", among(&["db", "web"])),
            ("app", among(&["web"])),
            ("gone", LabelRequirement::DoesNotExist),
            ("hash", other_than("2")),
            ("tier", LabelRequirement::Exists),
        ])
    );
}

#[test]
fn an_empty_selector_chooses_every_pod_and_a_missing_one_none() {
    assert_eq!(
        asked(&json!({"labelSelector": {}})),
        all(&[(NAMESPACE, among(&["team"]))])
    );
    let nobody = all(&[(NAMESPACE, among(&[]))]);
    assert_eq!(asked(&json!({})), nobody);
    assert_eq!(asked(&json!({"namespaceSelector": {}})), nobody);
}

#[test]
fn namespaces_are_named_or_all_or_the_pods_own() {
    // Not a closure: rustc 1.95 reuses a constant argument of a closure that changes it (rust-lang/rust#155241).
    fn of(mut term: Value) -> Vec<(String, LabelRequirement)> {
        term["labelSelector"] = json!({});
        asked(&term)
    }
    let two = of(json!({"namespaces": ["a", "b"]}));
    assert_eq!(two, all(&[(NAMESPACE, among(&["a", "b"]))]));
    let own = of(json!({"namespaces": []}));
    assert_eq!(own, all(&[(NAMESPACE, among(&["team"]))]));
    assert_eq!(of(json!({"namespaceSelector": {}})), []);
    assert_eq!(
        of(json!({"namespaces": ["a"], "namespaceSelector": {}})),
        []
    );
}

#[test]
fn the_pods_own_values_are_asked_for_once_however_often_they_are_written() {
    let own = json!({"labelSelector": {"matchLabels": {"hash": "1"}},
        "matchLabelKeys": ["hash", "nobody's"], "mismatchLabelKeys": ["app", "nothing"]});
    assert_eq!(
        asked(&own),
        all(&[
            (NAMESPACE, among(&["team"])),
            ("app", other_than("web")),
            ("hash", among(&["1"])),
        ])
    );
}

#[test]
fn namespaces_that_are_chosen_by_labels_join_those_that_are_named() {
    let namespace = |name: &str, labels: Value| {
        json!({"apiVersion": "v1", "kind": "Namespace",
            "metadata": {"name": name, "labels": labels}})
    };
    let pod = json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "p", "namespace": "bare"}});
    let mut warnings = ObjectWarnings::default();
    let inventory = ObjectInventory::of(
        vec![
            namespace("one", json!({"env": "prod"})),
            namespace("two", json!({"env": "test"})),
            namespace("three", json!({})),
            pod,
        ],
        &mut warnings,
    );
    assert!(warnings.0.is_empty(), "{warnings:?}");
    let mut chosen = |names: &[&str], expression: Value| {
        let selector = json!({"matchExpressions": [expression]});
        let labels = asked(
            &json!({"labelSelector": {}, "namespaces": names, "namespaceSelector": selector}),
        );
        let mut task = Task {
            near: vec![PodAffinityTerm {
                labels,
                ..PodAffinityTerm::default()
            }],
            ..Task::default()
        };
        NamespaceResolver::of(&inventory).name_all(&mut task, &mut warnings);
        task.near.remove(0).labels
    };
    let prod = json!({"key": "env", "operator": "In", "values": ["prod"]});
    assert_eq!(
        chosen(&["two"], prod.clone()),
        all(&[(NAMESPACE, among(&["one", "two"]))])
    );
    assert_eq!(chosen(&[], prod), all(&[(NAMESPACE, among(&["one"]))]));
    let none = json!({"key": "env", "operator": "DoesNotExist"});
    assert_eq!(
        chosen(&[], none),
        all(&[(NAMESPACE, among(&["bare", "three"]))])
    );
    let named = json!({"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["bare"]});
    assert_eq!(chosen(&[], named), all(&[(NAMESPACE, among(&["bare"]))]));
    let warnings: Vec<String> = warnings.0.iter().map(ToString::to_string).collect();
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(
        warnings[0].starts_with("Namespace bare: pods select namespaces by labels"),
        "{warnings:?}"
    );
}

#[test]
fn constraints_that_must_hold_are_kept_apart_from_those_that_are_wishes() {
    let rule = |when: &str, skew: u64| {
        json!({"topologyKey": "zone", "maxSkew": skew, "minDomains": 3, "whenUnsatisfiable": when,
            "labelSelector": {"matchLabels": {"app": "web"}}, "matchLabelKeys": ["hash"]})
    };
    let rules = json!([rule("DoNotSchedule", 2), rule("ScheduleAnyway", 1)]);
    let labels = json!({"hash": "1"});
    let (task, warnings) = read(&labels, &json!({"topologySpreadConstraints": rules}));
    assert!(warnings.is_empty(), "{warnings:?}");
    let spread = |skew| SpreadConstraint {
        like: PodAffinityTerm {
            labels: all(&[
                (NAMESPACE, among(&["team"])),
                ("app", among(&["web"])),
                ("hash", among(&["1"])),
            ]),
            domain: "zone".to_owned(),
        },
        skew,
        least_domains: 3,
    };
    assert_eq!(task.even, [spread(2)]);
    let term = PreferredTerm::Even(spread(1));
    let weight = EVENLY;
    assert_eq!(task.prefers, [WeightedPreference { term, weight }]);
}

#[test]
fn a_term_that_makes_no_sense_is_left_out_with_a_remark() {
    let odd = json!({"topologyKey": "zone", "labelSelector":
        {"matchExpressions": [{"key": "app", "operator": "Like", "values": ["web"]}]}});
    let terms =
        json!({"requiredDuringSchedulingIgnoredDuringExecution": [odd, {"labelSelector": {}}]});
    let rule = json!({"topologyKey": "zone", "labelSelector": {}, "nodeTaintsPolicy": "Ignore"});
    let spec = json!({"affinity": {"podAffinity": terms}, "topologySpreadConstraints": [rule]});
    let (task, warnings) = read(&json!({}), &spec);
    assert!(task.near.is_empty(), "{:?}", task.near);
    assert_eq!(task.even.len(), 1);
    assert_eq!(
        warnings,
        [
            "its topologySpreadConstraints set nodeAffinityPolicy or nodeTaintsPolicy to Ignore; Honor is used",
            "one term of its podAffinity is ignored: it has no topologyKey",
            "one term of its podAffinity is ignored: its selector has the unknown operator \"Like\"",
        ]
    );
}

#[test]
fn pods_that_take_one_port_of_their_host_are_kept_apart() {
    let spec = json!({"containers": [{"ports": [{"hostPort": 80}]}]});
    let (task, _) = read(&json!({}), &spec);
    let label = &task.apart[0].labels[0].0;
    assert_eq!(task.labels.get(label).map(String::as_str), Some(""));
    assert_eq!(task.apart[0].domain, HOSTNAME);
    assert_eq!(port(&task.apart[0]), Some("80/TCP"));
}

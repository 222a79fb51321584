//! Inter-pod affinity and topology spread.

use serde_json::{Value, json};

use crate::{field, file, run};

/// Decides on objects.
pub(crate) fn decide(objects: &[Value]) -> Value {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("all.json");
    let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
    std::fs::write(&path, list.to_string()).unwrap();
    let output = run(&[path], &["--json"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// A node with four cards in this zone.
pub(crate) fn node(name: &str, zone: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Node",
        "metadata": {"name": name, "labels": {"zone": zone, "nvidia.com/gpu.memory": "15360"}},
        "status": {"allocatable": {"cpu": "8", "memory": "32Gi", "nvidia.com/gpu": "4"}}})
}

pub(crate) fn queue() -> Value {
    let bound = json!({"quota": -1, "limit": -1});
    json!({"apiVersion": "scheduling.run.ai/v2", "kind": "Queue", "metadata": {"name": "team"},
        "spec": {"resources": {"gpu": bound, "cpu": bound, "memory": bound}}})
}

/// A pod that waits for a card.
fn pod(name: &str, app: &str, spec: &Value) -> Value {
    let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "spec": spec,
        "metadata": {"name": name, "labels": {"kai.scheduler/queue": "team", "app": app}}});
    pod["spec"]["schedulerName"] = "kai-scheduler".into();
    let limits = json!({"nvidia.com/gpu": 1});
    pod["spec"]["containers"] = json!([{"name": "main", "resources": {"limits": limits}}]);
    pod
}

/// The same pod on a node.
fn on(node: &str, mut pod: Value) -> Value {
    pod["spec"]["nodeName"] = node.into();
    pod["status"]["phase"] = "Running".into();
    pod
}

/// The same pod in a namespace.
fn within(namespace: &str, mut pod: Value) -> Value {
    pod["metadata"]["namespace"] = namespace.into();
    pod
}

/// The same pod with another scheduler.
fn foreign(mut pod: Value) -> Value {
    pod["spec"]["schedulerName"] = "default-scheduler".into();
    pod
}

/// The spec of a pod with a required affinity or anti-affinity term for its zone.
fn must(kind: &str, mut term: Value) -> Value {
    term["topologyKey"] = "zone".into();
    json!({"affinity": {kind: {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}})
}

fn apart(term: Value) -> Value {
    must("podAntiAffinity", term)
}

fn expression(operator: &str, values: &[&str]) -> Value {
    json!({"matchExpressions": [{"key": "app", "operator": operator, "values": values}]})
}

/// The spec of a pod with a spread constraint over zones.
fn spread(when: &str, selector: Value) -> Value {
    let rule = json!({"topologyKey": "zone", "maxSkew": 1, "whenUnsatisfiable": when,
        "labelSelector": selector});
    json!({"topologySpreadConstraints": [rule]})
}

/// The node of a new pod with this spec, beside others. Node `a` is fuller, so binpack prefers it.
fn place(spec: &Value, others: &[Value]) -> String {
    let fuller = on("a", pod("fuller", "filler", &json!({})));
    let own = [node("a", "x"), node("b", "y"), queue(), fuller];
    let new = pod("new", "new", spec);
    let report = decide(&[own.as_slice(), &[new], others].concat());
    let places = field(&report["decisions"], "node");
    assert_eq!(places.len(), 1, "{report}");
    places[0].to_owned()
}

#[test]
fn a_pod_keeps_away_from_pods_that_any_selector_chooses() {
    let away = |selector: Value, app: &str| {
        let there = on("a", within("other", pod("there", app, &json!({}))));
        let term = json!({"labelSelector": selector, "namespaces": ["other"]});
        place(&apart(term), &[there])
    };
    assert_eq!(away(expression("Exists", &[]), "db"), "b");
    assert_eq!(away(expression("DoesNotExist", &[]), "db"), "a");
    assert_eq!(away(expression("NotIn", &["web", "dns"]), "db"), "b");
    assert_eq!(away(expression("NotIn", &["web", "dns"]), "web"), "a");
    assert_eq!(away(expression("In", &["web", "db"]), "db"), "b");
    assert_eq!(away(json!({}), "db"), "b");
    assert_eq!(away(Value::Null, "db"), "a");
}

#[test]
fn pods_of_several_namespaces_count_where_a_term_names_them() {
    let away = |namespaces: &[&str]| {
        let there = on("a", within("other", pod("there", "db", &json!({}))));
        let term = json!({"labelSelector": {}, "namespaces": namespaces});
        place(&apart(term), &[there])
    };
    assert_eq!(away(&["third", "other"]), "b");
    assert_eq!(away(&["third", "fourth"]), "a");
}

#[test]
fn pods_of_namespaces_count_that_a_term_chooses_by_their_labels() {
    let away = |term: Value| {
        let labels = json!({"env": "prod"});
        let other = json!({"apiVersion": "v1", "kind": "Namespace",
            "metadata": {"name": "other", "labels": labels}});
        let there = on("a", within("other", pod("there", "db", &json!({}))));
        place(&apart(term), &[other, there])
    };
    let chosen = |env: &str| json!({"labelSelector": {}, "namespaceSelector": {"matchLabels": {"env": env}}});
    assert_eq!(away(chosen("prod")), "b");
    assert_eq!(away(chosen("test")), "a");
    let mut both = chosen("test");
    both["namespaces"] = json!(["other"]);
    assert_eq!(away(both), "b");
    assert_eq!(
        away(json!({"labelSelector": {}, "namespaceSelector": {}})),
        "b"
    );
}

#[test]
fn pods_of_other_schedulers_are_neighbours_too() {
    let there = |node: &str| foreign(on(node, pod("there", "db", &json!({}))));
    let like = json!({"labelSelector": expression("In", &["db"])});
    assert_eq!(
        place(&must("podAffinity", like.clone()), &[there("b")]),
        "b"
    );
    assert_eq!(place(&apart(like.clone()), &[there("a")]), "b");
    assert_eq!(place(&apart(like), &[there("b")]), "a");
    let new = json!({"labelSelector": expression("In", &["new"])});
    let shy = foreign(on("a", pod("shy", "db", &apart(new))));
    assert_eq!(place(&json!({}), &[shy]), "b");
    let even = spread("DoNotSchedule", expression("In", &["db", "new"]));
    assert_eq!(place(&even, &[there("a")]), "b");
}

#[test]
fn pods_that_are_decided_together_are_spread_together() {
    let even = spread("DoNotSchedule", expression("In", &["web"]));
    let webs = ["1", "2", "3", "4"].map(|name| pod(name, "web", &even));
    let own = [node("a", "x"), node("b", "y"), queue()];
    let report = decide(&[own.as_slice(), &webs].concat());
    let mut places = field(&report["decisions"], "node");
    places.sort_unstable();
    assert_eq!(places, ["a", "a", "b", "b"], "{report}");
}

#[test]
fn a_pod_waits_where_there_are_fewer_domains_than_it_wants_and_is_told_why() {
    let mut even = spread("DoNotSchedule", expression("In", &["web"]));
    // Pods of `build` cannot be preempted. A pod of `train` could be moved, but would return to its node.
    for class in ["build", "train"] {
        let mut waits = |domains: u64| {
            even["topologySpreadConstraints"][0]["minDomains"] = domains.into();
            let there = on(
                "a",
                pod("there", "web", &json!({"priorityClassName": class})),
            );
            let all = [node("a", "x"), queue(), there, pod("new", "web", &even)];
            let report = decide(&all);
            let why = field(&report["waiting"], "message");
            why.first().map(|why| (*why).to_owned())
        };
        assert_eq!(waits(1), None);
        let why = waits(2).unwrap();
        assert!(
            why.ends_with(
                "1 node(s) didn't match pod topology spread constraints; closest is a: would have 2 matching \
                 pods in zone=x, while another domain has 0 and maxSkew is 1"
            ),
            "{why}"
        );
    }
}

#[test]
fn a_pod_that_others_keep_away_is_told_by_whom() {
    let why = |spec: &Value, there: Value| {
        let all = [node("a", "x"), queue(), there, pod("new", "new", spec)];
        let report = decide(&all);
        field(&report["waiting"], "message")[0].to_owned()
    };
    let db = || on("a", pod("there", "db", &json!({})));
    let like = |app: &str| json!({"labelSelector": expression("In", &[app])});
    for (found, ending) in [
        (
            why(&must("podAffinity", like("web")), db()),
            "1 node(s) didn't match pod affinity rules; closest is a: has no pod that matches the pod's affinity in zone=x",
        ),
        (
            why(&apart(like("db")), db()),
            "1 node(s) didn't match pod anti-affinity rules; closest is a: has pods that match the pod's anti-affinity in \
             zone=x",
        ),
        (
            why(&json!({}), on("a", pod("there", "db", &apart(like("new"))))),
            "1 node(s) didn't satisfy existing pods anti-affinity rules; closest is a: has a pod whose \
             anti-affinity matches the pod in zone=x",
        ),
    ] {
        assert!(found.ends_with(ending), "{found}");
    }
}

#[test]
fn pods_that_are_spread_as_a_wish_may_be_of_several_kinds() {
    let there = ["1", "2"].map(|name| on("a", pod(name, "db", &json!({}))));
    let wish = |apps: &[&str]| spread("ScheduleAnyway", expression("In", apps));
    assert_eq!(place(&wish(&["db", "new"]), &there), "b");
    assert_eq!(place(&wish(&["web", "new"]), &there), "a");
}

#[test]
fn pods_are_spread_where_that_is_only_wished_for_as_far_as_there_is_room() {
    let report = crate::json(&["evenly.yaml"], &[]);
    let places = |report: &Value| {
        let decisions = &report["decisions"];
        assert_eq!(field(decisions, "pod"), ["default/web-1", "default/web-2"]);
        field(decisions, "node").join(" ")
    };
    assert_eq!(places(&report), "b a");
    let text = std::fs::read_to_string(file("evenly.yaml")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let packed = folder.path().join("packed.yaml");
    std::fs::write(
        &packed,
        text.replace("topologySpreadConstraints", "nothing"),
    )
    .unwrap();
    let report = serde_json::from_slice(&run(&[packed], &["--json"]).stdout).unwrap();
    assert_eq!(places(&report), "a b");
}

/// The spec of a pod that must be near pods of its own application.
fn together(app: &str, domain: &str) -> Value {
    let mut spec = must(
        "podAffinity",
        json!({"labelSelector": {"matchLabels": {"app": app}}}),
    );
    let term = "/affinity/podAffinity/requiredDuringSchedulingIgnoredDuringExecution/0/topologyKey";
    *spec.pointer_mut(term).expect("it is there") = domain.into();
    spec
}

#[test]
fn a_pod_is_not_moved_to_be_near_another() {
    for home in ["a", "b"] {
        let spec = together("pair", "zone");
        let elsewhere = json!({"key": "zone", "operator": "NotIn", "values": [if home == "a" { "x" } else { "y" }]});
        let mut second = spec.clone();
        second["affinity"]["nodeAffinity"] = json!({"requiredDuringSchedulingIgnoredDuringExecution":
            {"nodeSelectorTerms": [{"matchExpressions": [elsewhere]}]}});
        let first = on(home, pod("first", "pair", &spec));
        let second = pod("second", "pair", &second);
        let objects = [node("a", "x"), node("b", "y"), queue(), first, second];
        let decided = decide(&objects);
        assert_eq!(decided["decisions"], json!([]), "{home} {decided}");
        assert_eq!(field(&decided["waiting"], "pod"), ["default/second"]);
    }
}

#[test]
fn a_pod_moves_to_make_room_where_it_stays_near_its_kind() {
    let mut nodes = ["a", "b", "c"].map(|name| node(name, "x"));
    nodes[2]["metadata"]["labels"]["zone"] = "y".into();
    for node in &mut nodes {
        let name = node["metadata"]["name"].clone();
        node["metadata"]["labels"]["host"] = name;
    }
    let stays = on("b", pod("stays", "one", &together("one", "host")));
    let moves = on("a", pod("moves", "two", &together("two", "zone")));
    let mut large = pod("large", "three", &json!({"nodeSelector": {"zone": "x"}}));
    large["spec"]["containers"][0]["resources"]["limits"] = json!({"nvidia.com/gpu": 4});
    let decided = decide(&[nodes.as_slice(), &[queue(), stays, moves, large]].concat());
    let pods = field(&decided["decisions"], "pod");
    let places = field(&decided["decisions"], "node");
    let place = |pod: &str| {
        let named = pods
            .iter()
            .zip(&places)
            .filter(|(one, _)| one.ends_with(pod));
        named.map(|(_, place)| *place).collect::<Vec<_>>()
    };
    assert_eq!(place("/stays"), [""; 0], "{decided}");
    assert_eq!(place("/moves"), ["a", "b"], "{decided}");
    assert_eq!(place("/large"), ["a"], "{decided}");
}

//! The rules of allocations, one by one. `upstream.rs` holds them against Kubernetes' own allocator.

use serde_json::{Value, json};

#[path = "upstream/read_cluster.rs"]
mod read_cluster;

const DRIVER: &str = "gpu.example.com";

/// A cluster with one node, one driver and one class.
struct Case {
    cluster: Value,
}

impl Case {
    fn new(devices: Value) -> Self {
        Self {
            cluster: json!({
                "node": {"name": "here", "labels": {"zone": "a"}},
                "classes": [{"metadata": {"name": "gpu"},
                    "spec": {"selectors": [{"cel": {"expression": "device.driver == 'gpu.example.com'"}}]}}],
                "slices": [slice("s0", 1, 1, &json!({"nodeName": "here", "devices": devices}))],
                "claims": [], "allocated": [],
            }),
        }
    }

    fn slices(mut self, slices: Value) -> Self {
        self.cluster["slices"] = slices;
        self
    }

    /// A claim with these requests and constraints.
    fn claim(mut self, requests: Value, constraints: Value) -> Self {
        let claims = self.cluster["claims"].as_array_mut().expect("it is a list");
        let name = format!("c{}", claims.len());
        claims.push(json!({"metadata": {"name": name},
            "spec": {"devices": {"requests": requests, "constraints": constraints}}}));
        self
    }

    /// A claim with one request.
    fn asks(self, terms: Value) -> Self {
        self.claim(json!([exactly("r", terms)]), json!([]))
    }

    fn has(mut self, result: Value) -> Self {
        let mut device = json!({"driver": DRIVER, "pool": "p", "request": "r"});
        let fields = result.as_object().expect("it is an object").clone();
        device
            .as_object_mut()
            .expect("it is an object")
            .extend(fields);
        let claims = self.cluster["allocated"]
            .as_array_mut()
            .expect("it is a list");
        claims.push(json!({"status": {"allocation": {"devices": {"results": [device]}}}}));
        self
    }

    /// The devices of all claims, with their requests.
    #[track_caller]
    fn gives(&self, expected: &[&str]) {
        let results = read_cluster::allocate_in(&self.cluster).expect("it can be allocated");
        let devices = results.iter().flat_map(|one| &one.devices.results);
        let devices: Vec<String> = devices
            .map(|one| format!("{}={}", one.request, one.device))
            .collect();
        assert_eq!(devices, expected);
    }

    #[track_caller]
    fn refuses(&self, expected: &str) {
        let refusal = read_cluster::allocate_in(&self.cluster).expect_err("it can't be allocated");
        assert_eq!(refusal, expected);
    }
}

fn slice(name: &str, generation: i64, count: i64, body: &Value) -> Value {
    let mut spec = json!({"driver": DRIVER,
        "pool": {"name": "p", "generation": generation, "resourceSliceCount": count}});
    let fields = body.as_object().expect("it is an object").clone();
    spec.as_object_mut()
        .expect("it is an object")
        .extend(fields);
    json!({"metadata": {"name": name}, "spec": spec})
}

fn exactly(name: &str, terms: Value) -> Value {
    let mut all = json!({"deviceClassName": "gpu"});
    let fields = terms.as_object().expect("it is an object").clone();
    all.as_object_mut().expect("it is an object").extend(fields);
    json!({"name": name, "exactly": all})
}

/// Devices with these names, and one attribute `numa` each.
fn devices(all: &[(&str, i64)]) -> Value {
    let all = all.iter();
    all.map(|(name, numa)| json!({"name": name, "attributes": {"numa": {"int": numa}}}))
        .collect()
}

#[test]
fn gives_the_first_free_devices() {
    let case = Case::new(devices(&[("a", 0), ("b", 0), ("c", 0)])).has(json!({"device": "a"}));
    case.asks(json!({"count": 2})).gives(&["r=b", "r=c"]);
}

#[test]
fn says_what_became_of_each_device() {
    let mut all = devices(&[("a", 0), ("b", 0), ("c", 1)]);
    all[1]["taints"] = json!([{"key": "sick", "effect": "NoSchedule"}]);
    let case = Case::new(all).has(json!({"device": "a"}));
    let numa = "device.attributes['gpu.example.com'].numa == 0";
    let case = case.asks(json!({"selectors": [{"cel": {"expression": numa}}]}));
    case.refuses(
        "claim c0, request r: wants 1 device of class gpu, 0 free (1 in use, 1 tainted, 1 not selected)",
    );
}

#[test]
fn two_claims_of_a_pod_get_different_devices() {
    let case = Case::new(devices(&[("a", 0), ("b", 0)])).asks(json!({}));
    case.asks(json!({})).gives(&["r=a", "r=b"]);
    let case = Case::new(devices(&[("a", 0)]))
        .asks(json!({}))
        .asks(json!({}));
    case.refuses("claims c0, c1: no free devices serve all requests together");
}

#[test]
fn all_is_every_device_that_matches_and_each_must_be_free() {
    let all = json!({"allocationMode": "All"});
    Case::new(devices(&[("a", 0), ("b", 0)]))
        .asks(all.clone())
        .gives(&["r=a", "r=b"]);
    let case = Case::new(devices(&[("a", 0), ("b", 0)])).has(json!({"device": "b"}));
    case.asks(all.clone())
        .refuses("claim c0, request r: wants all devices of class gpu, 1 free (1 in use)");
    let case = Case::new(json!([])).asks(all);
    case.refuses("claim c0, request r: wants all devices of class gpu, 0 free (the node has no such devices)");
}

#[test]
fn takes_the_first_alternative_that_can_be_served() {
    let request = json!([{"name": "r", "firstAvailable": [
        {"name": "three", "deviceClassName": "gpu", "count": 3},
        {"name": "two", "deviceClassName": "gpu", "count": 2},
        {"name": "one", "deviceClassName": "gpu", "count": 1}]}]);
    let case = Case::new(devices(&[("a", 0), ("b", 0)])).claim(request, json!([]));
    case.gives(&["r/two=a", "r/two=b"]);
}

#[test]
fn goes_back_when_constraints_do_not_hold() {
    let numa = |kind: &str| json!([{kind: "gpu.example.com/numa"}]);
    let two = json!([exactly("r", json!({"count": 2}))]);
    let case = Case::new(devices(&[("a", 0), ("b", 1), ("c", 1)]));
    case.claim(two.clone(), numa("matchAttribute"))
        .gives(&["r=b", "r=c"]);
    let case = Case::new(devices(&[("a", 0), ("b", 0), ("c", 1)]));
    case.claim(two.clone(), numa("distinctAttribute"))
        .gives(&["r=a", "r=c"]);
    let case = Case::new(devices(&[("a", 0), ("b", 1)])).claim(two, numa("matchAttribute"));
    case.refuses("claim c0: no free devices serve all requests together under its constraints");
}

#[test]
fn administrators_get_devices_beside_their_users() {
    let case = Case::new(devices(&[("a", 0)])).has(json!({"device": "a"}));
    case.asks(json!({"adminAccess": true})).gives(&["r=a"]);
    let case = Case::new(devices(&[("a", 0)])).has(json!({"device": "a", "adminAccess": true}));
    case.asks(json!({})).gives(&["r=a"]);
}

#[test]
fn taints_keep_requests_away_that_do_not_tolerate_them() {
    let tainted = |effect: &str| json!([{"name": "a", "taints": [{"key": "sick", "value": "yes", "effect": effect}]}]);
    let refusal = "claim c0, request r: wants 1 device of class gpu, 0 free (1 tainted)";
    for (toleration, is_tolerated) in [
        (json!({"key": "sick", "operator": "Exists"}), true),
        (json!({"operator": "Exists"}), true),
        (json!({"key": "sick", "value": "yes"}), true),
        (
            json!({"key": "sick", "operator": "Equal", "value": "no"}),
            false,
        ),
        (json!({"key": "slow", "operator": "Exists"}), false),
        (
            json!({"key": "sick", "operator": "Exists", "effect": "NoExecute"}),
            false,
        ),
        (json!({"key": "sick", "operator": "Unheard"}), false),
    ] {
        let case = Case::new(tainted("NoSchedule")).asks(json!({"tolerations": [toleration]}));
        if is_tolerated {
            case.gives(&["r=a"]);
        } else {
            case.refuses(refusal);
        }
    }
    Case::new(tainted("NoExecute"))
        .asks(json!({}))
        .refuses(refusal);
    Case::new(tainted("None")).asks(json!({})).gives(&["r=a"]);
}

/// A card of 46068 MiB that many claims may share, in steps of 1 MiB.
fn card() -> Value {
    json!([{"name": "a", "allowMultipleAllocations": true, "capacity": {"memory": {"value": "46068Mi",
        "requestPolicy": {"default": "46068Mi", "validRange": {"min": "1Mi", "step": "1Mi"}}}}}])
}

fn memory(amount: &str) -> Value {
    json!({"capacity": {"requests": {"memory": amount}}})
}

#[test]
fn a_card_is_shared_up_to_its_last_byte() {
    let share = |amount: &str| json!({"device": "a", "shareID": "x", "consumedCapacity": {"memory": amount}});
    let case = Case::new(card()).has(share("44068Mi"));
    case.asks(memory("2000Mi")).gives(&["r=a"]);
    let too_full = "claim c0, request r: wants 1 device of class gpu, 0 free (1 with too little capacity left)";
    Case::new(card())
        .has(share("44069Mi"))
        .asks(memory("2000Mi"))
        .refuses(too_full);
    // A request without an amount takes the default: the whole card.
    Case::new(card())
        .has(share("1Mi"))
        .asks(json!({}))
        .refuses(too_full);
    let mut twice = Case::new(card());
    for _ in 0..2 {
        twice = twice.asks(memory("23034Mi"));
    }
    twice.gives(&["r=a", "r=a"]);
}

#[test]
fn consumed_capacity_is_rounded_up_by_the_policy() {
    let consumed = |policy: Value, asked: &str| {
        let mut device = card();
        device[0]["capacity"]["memory"]["requestPolicy"] = policy;
        let case = Case::new(device).asks(memory(asked));
        let results = read_cluster::allocate_in(&case.cluster).ok()?;
        let device = results[0].devices.results[0].clone();
        assert_eq!(device.share_id.as_deref(), Some("share-1"));
        Some(
            json!(device.consumed_capacity)["memory"]
                .as_str()
                .unwrap()
                .to_owned(),
        )
    };
    let steps =
        json!({"default": "1Gi", "validRange": {"min": "1Gi", "step": "3Gi", "max": "12Gi"}});
    assert_eq!(consumed(steps.clone(), "1"), Some("1Gi".to_owned()));
    assert_eq!(consumed(steps.clone(), "1025Mi"), Some("4Gi".to_owned()));
    assert_eq!(consumed(steps.clone(), "10Gi"), Some("10Gi".to_owned()));
    assert_eq!(consumed(steps, "11Gi"), None, "13Gi are above the range");
    let values = json!({"default": "4Gi", "validValues": ["4Gi", "8Gi"]});
    assert_eq!(consumed(values.clone(), "5Gi"), Some("8Gi".to_owned()));
    assert_eq!(consumed(values, "9Gi"), None);
    assert_eq!(consumed(Value::Null, "1500M"), Some("1500M".to_owned()));
}

#[test]
fn partitions_share_counters() {
    let part = |name: &str, slices: &str| json!({"name": name, "consumesCounters": [{"counterSet": "card", "counters": {"slices": {"value": slices}}}]});
    let counters = json!({"nodeName": "here",
        "sharedCounters": [{"name": "card", "counters": {"slices": {"value": "7"}}}]});
    let parts =
        json!({"nodeName": "here", "devices": [part("4", "4"), part("3", "3"), part("7", "7")]});
    let case = || {
        Case::new(json!([])).slices(json!([
            slice("s0", 1, 2, &parts),
            slice("s1", 1, 2, &counters)
        ]))
    };
    case().asks(json!({"count": 2})).gives(&["r=4", "r=3"]);
    case()
        .has(json!({"device": "4"}))
        .asks(json!({}))
        .gives(&["r=3"]);
    case().has(json!({"device": "7"})).asks(json!({})).refuses(
        "claim c0, request r: wants 1 device of class gpu, 0 free (1 in use, 2 without counters left)",
    );
}

#[test]
fn a_pool_without_all_its_slices_gives_nothing() {
    let here = json!({"nodeName": "here", "devices": [{"name": "a"}]});
    let there = json!({"nodeName": "there", "devices": [{"name": "b"}]});
    let case = |slices: Value| Case::new(json!([])).slices(slices).asks(json!({}));
    let refusal =
        "claim c0, request r: wants 1 device of class gpu, 0 free (1 pools incomplete or invalid)";
    case(json!([slice("s0", 1, 2, &here)])).refuses(refusal);
    case(json!([slice("s0", 1, 2, &here), slice("s1", 1, 2, &there)])).gives(&["r=a"]);
    // A newer generation without a device of this node makes the old one void.
    case(json!([slice("s0", 1, 2, &here), slice("s1", 2, 2, &there)])).refuses(
        "claim c0, request r: wants 1 device of class gpu, 0 free (the node has no such devices)",
    );
    case(json!([slice("s0", 1, 2, &here), slice("s1", 1, 2, &here)])).refuses(refusal);
    let mut all = Case::new(json!([])).slices(json!([slice("s0", 1, 2, &here)]));
    all = all.asks(json!({"allocationMode": "All"}));
    all.refuses(
        "claim c0, request r: it asks for all devices while pool gpu.example.com/p changes",
    );
}

#[test]
fn an_allocation_says_which_nodes_reach_its_devices() {
    let selector = |body: Value| {
        let case = Case::new(json!([]))
            .slices(json!([slice("s0", 1, 1, &body)]))
            .asks(json!({}));
        read_cluster::allocate_in(&case.cluster)
            .ok()
            .map(|results| json!(results[0])["nodeSelector"].clone())
    };
    let name = json!({"nodeSelectorTerms": [{"matchFields":
        [{"key": "metadata.name", "operator": "In", "values": ["here"]}]}]});
    let zone = |zone: &str| {
        json!({"nodeSelectorTerms": [{"matchExpressions":
        [{"key": "zone", "operator": "In", "values": [zone]}]}]})
    };
    assert_eq!(
        selector(json!({"nodeName": "here", "devices": [{"name": "a"}]})),
        Some(name.clone())
    );
    assert_eq!(
        selector(json!({"allNodes": true, "devices": [{"name": "a"}]})),
        Some(Value::Null)
    );
    let shared = |zone: Value| json!({"nodeSelector": zone, "devices": [{"name": "a"}]});
    assert_eq!(selector(shared(zone("a"))), Some(zone("a")));
    assert_eq!(selector(shared(zone("b"))), None);
    let each = |device: Value| json!({"perDeviceNodeSelection": true, "devices": [device]});
    assert_eq!(
        selector(each(json!({"name": "a", "nodeName": "here"}))),
        Some(name)
    );
    assert_eq!(
        selector(each(json!({"name": "a", "nodeName": "there"}))),
        None
    );
}

#[test]
fn settings_of_classes_and_claims_come_with_the_allocation() {
    let mut case = Case::new(devices(&[("a", 0), ("b", 0)]));
    let opaque = |mode: &str| json!({"driver": DRIVER, "parameters": {"mode": mode}});
    case.cluster["classes"][0]["spec"]["config"] = json!([{"opaque": opaque("class")}]);
    let requests = json!([exactly("one", json!({})), exactly("two", json!({}))]);
    let mut case = case.claim(requests, json!([]));
    case.cluster["claims"][0]["spec"]["devices"]["config"] =
        json!([{"requests": ["two"], "opaque": opaque("claim")}]);
    let results = read_cluster::allocate_in(&case.cluster).unwrap();
    assert_eq!(
        json!(results[0])["devices"]["config"],
        json!([{"source": "FromClass", "opaque": opaque("class")},
            {"source": "FromClaim", "requests": ["two"], "opaque": opaque("claim")}])
    );
}

#[test]
fn an_allocation_keeps_what_a_device_needs_before_a_pod_is_bound() {
    let conditions =
        json!({"bindingConditions": ["attached"], "bindingFailureConditions": ["broken"]});
    let mut device = json!({"name": "a", "bindsToNode": true});
    let fields = conditions.as_object().unwrap().clone();
    device.as_object_mut().unwrap().extend(fields);
    let slices = json!([slice(
        "s0",
        1,
        1,
        &json!({"allNodes": true, "devices": [device]})
    ),]);
    let case = Case::new(json!([])).slices(slices).asks(json!({}));
    let result = json!(read_cluster::allocate_in(&case.cluster).unwrap()[0]);
    let given = &result["devices"]["results"][0];
    for field in ["bindingConditions", "bindingFailureConditions"] {
        assert_eq!(given[field], conditions[field]);
    }
    let fields = &result["nodeSelector"]["nodeSelectorTerms"][0]["matchFields"];
    assert_eq!(
        fields[0]["values"],
        json!(["here"]),
        "it is for the node alone"
    );
}

#[test]
fn pools_with_binding_conditions_come_last() {
    let pool = |name: &str, device: Value| {
        let mut pool = slice(
            name,
            1,
            1,
            &json!({"nodeName": "here", "devices": [device]}),
        );
        pool["spec"]["pool"]["name"] = json!(name);
        pool
    };
    let slices = json!([
        pool(
            "p0",
            json!({"name": "slow", "bindingConditions": ["attached"]})
        ),
        pool("p1", json!({"name": "quick"})),
    ]);
    let case = Case::new(json!([])).slices(slices).asks(json!({}));
    case.gives(&["r=quick"]);
    case.asks(json!({})).gives(&["r=quick", "r=slow"]);
}

#[test]
fn what_is_not_understood_is_refused_and_never_given() {
    let case = |terms: Value| Case::new(devices(&[("a", 0)])).asks(terms);
    case(json!({"deviceClassName": "tpu"}))
        .refuses("claim c0, request r: there is no device class tpu");
    case(json!({"allocationMode": "Some"}))
        .refuses("claim c0, request r: the allocation mode Some is unknown");
    case(json!({"derivedAttributes": [{"name": "x"}]}))
        .refuses("claim c0, request r: derived attributes are not supported");
    case(json!({"count": 33})).refuses("claim c0: it needs 33 devices, and may have 32");
    let constraint = json!([{"newConstraint": "x"}]);
    let unknown =
        Case::new(devices(&[("a", 0)])).claim(json!([exactly("r", json!({}))]), constraint);
    unknown.refuses("claim c0: a constraint of an unknown kind");
    let nothing = Case::new(devices(&[("a", 0)])).claim(json!([{"name": "r"}]), json!([]));
    nothing.refuses("claim c0, request r: it asks for nothing that is known");
    let unsupported = "claim c0, request r: wants 1 device of class gpu, 0 free (1 with features that are not supported)";
    let skips =
        json!({"nodeName": "here", "skipNodeOperations": ["x"], "devices": [{"name": "a"}]});
    let skips = Case::new(json!([]))
        .slices(json!([slice("s0", 1, 1, &skips)]))
        .asks(json!({}));
    skips.refuses(unsupported);
}

#[test]
fn a_condition_that_fails_says_for_which_device() {
    let missing = json!({"selectors": [{"cel": {"expression": "device.attributes['gpu.example.com'].missing"}}]});
    let case = Case::new(devices(&[("a", 0)])).asks(missing);
    case.refuses(
        "claim c0, request r: the selector of the request fails for a: No such key: missing",
    );
}

#[test]
fn a_hopeless_search_ends_early() {
    // Every pair has another attribute value, so no 16 devices are alike; there are 2^60 sets to try.
    let names: Vec<String> = (0..60).map(|place| format!("d{place:02}")).collect();
    let all: Vec<(&str, i64)> = names
        .iter()
        .enumerate()
        .map(|(place, name)| (name.as_str(), i64::try_from(place / 15).unwrap()))
        .collect();
    let request = json!([exactly("r", json!({"count": 16}))]);
    let same = json!([{"matchAttribute": "gpu.example.com/numa"}]);
    let case = Case::new(devices(&all)).claim(request, same);
    let start = std::time::Instant::now();
    case.refuses("claim c0: no allocation was found within 100000 steps");
    assert!(
        start.elapsed() < std::time::Duration::from_secs(20),
        "it is bounded"
    );
}

//! Random clusters with devices and claims, small enough for an exhaustive search.

use serde_json::{Map, Value, json};

const DRIVERS: [&str; 2] = ["gpu.example.com", "nic.example.com"];

/// Numbers from a seed (splitmix64).
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    fn percent(&mut self, chance: u64) -> bool {
        self.below(100) < chance
    }

    fn one<T: Clone>(&mut self, all: &[T]) -> T {
        let place = usize::try_from(self.below(all.len() as u64)).expect("it is a place");
        all[place].clone()
    }
}

/// A cluster.
pub(crate) fn draw(random: &mut Random) -> Value {
    let mut slices = Vec::new();
    let drivers = if random.percent(30) { 2 } else { 1 };
    for driver in &DRIVERS[..drivers] {
        for pool in 0..=random.below(2) {
            draw_pool(random, driver, &format!("pool-{pool}"), &mut slices);
        }
    }
    let claims: Vec<Value> = (0..=random.below(2))
        .map(|place| claim(random, place))
        .collect();
    let allocated = allocated(random, &slices);
    json!({
        "node": {"name": "here", "labels": {"zone": random.one(&["a", "b"])}},
        "classes": classes(),
        "slices": slices,
        "claims": claims,
        "allocated": allocated,
    })
}

fn classes() -> Value {
    let class = |name: &str, expressions: &[&str], config: Value| {
        let selectors: Vec<Value> = expressions
            .iter()
            .map(|expression| json!({"cel": {"expression": expression}}))
            .collect();
        json!({"metadata": {"name": name}, "spec": {"selectors": selectors, "config": config}})
    };
    let config = json!([{"opaque": {"driver": DRIVERS[0], "parameters": {"mode": "shared"}}}]);
    json!([
        class("gpu", &["device.driver == 'gpu.example.com'"], config),
        class("any", &[], json!([])),
        class(
            "large",
            &[
                "device.driver == 'gpu.example.com'",
                "'gpu.example.com' in device.capacity && has(device.capacity['gpu.example.com'].memory) && device.capacity['gpu.example.com'].memory.compareTo(quantity('30Gi')) >= 0"
            ],
            json!([])
        ),
        class(
            "new",
            &["device.attributes['gpu.example.com'].version.isGreaterThan(semver('1.5.0'))"],
            json!([])
        ),
    ])
}

fn draw_pool(random: &mut Random, driver: &str, pool: &str, slices: &mut Vec<Value>) {
    let has_counters = random.percent(25);
    let device_slices = 1 + random.below(2);
    let count = device_slices + u64::from(has_counters);
    let is_incomplete = random.percent(2);
    let generation = 1 + random.below(2);
    let scope = random.below(14);
    let mut add = |random: &mut Random, name: String, body: Value, generation: u64| {
        let mut spec = json!({
            "driver": driver,
            "pool": {"name": pool, "generation": generation,
                "resourceSliceCount": count + u64::from(is_incomplete)},
        });
        let fields = spec.as_object_mut().expect("it is an object");
        fields.extend(body.as_object().cloned().unwrap_or_default());
        match scope {
            0 => fields.insert("allNodes".to_owned(), json!(true)),
            1 => fields.insert("nodeSelector".to_owned(), zone(random)),
            2 => fields.insert("perDeviceNodeSelection".to_owned(), json!(true)),
            3 => fields.insert("nodeName".to_owned(), json!(random.one(&["here", "there"]))),
            _ => fields.insert("nodeName".to_owned(), json!("here")),
        };
        slices.push(json!({"metadata": {"name": name}, "spec": spec}));
    };
    for slice in 0..device_slices {
        let devices: Vec<Value> = (0..1 + random.below(5))
            .map(|place| {
                let name = if random.percent(1) {
                    "dev-0".to_owned()
                } else {
                    format!("dev-{slice}-{place}")
                };
                let mut device = device(random, &name, has_counters);
                if scope == 2 {
                    match random.below(3) {
                        0 => device["nodeName"] = json!(random.one(&["here", "there"])),
                        1 => device["allNodes"] = json!(true),
                        _ => device["nodeSelector"] = zone(random),
                    }
                }
                device
            })
            .collect();
        let name = format!("{driver}-{pool}-{slice}");
        let generation = if random.percent(2) {
            generation - 1
        } else {
            generation
        };
        add(random, name, json!({"devices": devices}), generation);
    }
    if has_counters {
        let counters = json!({"sharedCounters": [
            {"name": "card", "counters": {"memory": {"value": "8Gi"}, "slices": {"value": "7"}}}]});
        add(
            random,
            format!("{driver}-{pool}-counters"),
            counters,
            generation,
        );
    }
}

fn zone(random: &mut Random) -> Value {
    let operator = random.one(&["In", "NotIn", "Exists"]);
    let values = if operator == "Exists" {
        json!([])
    } else {
        json!([random.one(&["a", "b"])])
    };
    let mut requirement = json!({"key": "zone", "operator": operator});
    if operator != "Exists" {
        requirement["values"] = values;
    }
    json!({"nodeSelectorTerms": [{"matchExpressions": [requirement]}]})
}

fn device(random: &mut Random, name: &str, has_counters: bool) -> Value {
    let mut attributes = Map::new();
    if random.percent(90) {
        attributes.insert(
            "model".to_owned(),
            json!({"string": random.one(&["a", "b"])}),
        );
    }
    if random.percent(90) {
        let numa = json!({"int": random.below(2)});
        attributes.insert("resource.kubernetes.io/numaNode".to_owned(), numa);
    }
    if random.percent(95) {
        let version = random.one(&["1.2.3", "1.10.0", "2.0.0-rc.1", "2.0.0"]);
        attributes.insert("version".to_owned(), json!({"version": version}));
    }
    if random.percent(70) {
        let links = random.one(&[json!([1]), json!([1, 2]), json!([2, 3]), json!([4])]);
        attributes.insert("links".to_owned(), json!({"ints": links}));
    }
    attributes.insert("ecc".to_owned(), json!({"bool": random.percent(50)}));
    let mut device = json!({"name": name, "attributes": attributes});
    if random.percent(80) {
        device["capacity"]["memory"] = json!({"value": random.one(&["16Gi", "40Gi", "80Gi"])});
        if random.percent(20) {
            device["capacity"]["cores"] = json!({"value": "100"});
        }
    }
    if random.percent(40) {
        device["allowMultipleAllocations"] = json!(true);
        let policy = random.one(&[
            Value::Null,
            json!({"default": "1Gi", "validRange": {"min": "1Gi", "step": "1Gi"}}),
            json!({"default": "2Gi", "validRange": {"min": "2Gi", "max": "12Gi", "step": "5Gi"}}),
            json!({"default": "4Gi", "validValues": ["4Gi", "8Gi", "16Gi"]}),
            json!({"default": "500Mi", "validRange": {"min": "0"}}),
        ]);
        if !policy.is_null() && device["capacity"]["memory"].is_object() {
            device["capacity"]["memory"]["requestPolicy"] = policy;
        }
    }
    if random.percent(15) {
        device["taints"] = json!([taint(random)]);
    }
    if random.percent(5) {
        device["bindsToNode"] = json!(true);
    }
    if random.percent(5) {
        device["bindingConditions"] = json!(["example.com/attached"]);
        if random.percent(50) {
            device["bindingFailureConditions"] = json!(["example.com/broken"]);
        }
    }
    if has_counters && random.percent(70) {
        device["consumesCounters"] = json!([{"counterSet": "card", "counters": {
            "memory": {"value": random.one(&["1Gi", "2Gi", "5Gi"])},
            "slices": {"value": random.one(&["1", "3", "4"])}}}]);
    }
    device
}

fn taint(random: &mut Random) -> Value {
    json!({"key": random.one(&["sick", "slow"]), "value": random.one(&["", "yes"]),
        "effect": random.one(&["NoSchedule", "NoExecute", "None"])})
}

fn claim(random: &mut Random, place: u64) -> Value {
    let requests: Vec<Value> = (0..=random.below(2))
        .map(|place| request(random, place))
        .collect();
    let mut constraints = Vec::new();
    if random.percent(35) {
        let attribute = random.one(&[
            "gpu.example.com/model",
            "resource.kubernetes.io/numaNode",
            "gpu.example.com/links",
            "gpu.example.com/version",
            "gpu.example.com/ecc",
        ]);
        let kind = random.one(&["matchAttribute", "matchAttribute", "distinctAttribute"]);
        let mut constraint = json!({kind: attribute});
        if random.percent(30) {
            constraint["requests"] = json!([random.one(&["r0", "r1", "r0/s0"])]);
        }
        constraints.push(constraint);
    }
    let mut devices = json!({"requests": requests, "constraints": constraints});
    if random.percent(20) {
        devices["config"] = json!([{"requests": [random.one(&["r0", "r1", "r0/s1"])],
            "opaque": {"driver": DRIVERS[0], "parameters": {"claim": place}}}]);
    }
    json!({"metadata": {"name": format!("claim-{place}"), "namespace": "default",
        "uid": format!("uid-{place}")}, "spec": {"devices": devices}})
}

fn request(random: &mut Random, place: u64) -> Value {
    let name = format!("r{place}");
    if random.percent(25) {
        let alternatives: Vec<Value> = (0..=random.below(3))
            .map(|place| {
                let mut terms = terms(random);
                terms["name"] = json!(format!("s{place}"));
                terms
            })
            .collect();
        return json!({"name": name, "firstAvailable": alternatives});
    }
    let mut terms = terms(random);
    if random.percent(6) {
        terms["adminAccess"] = json!(true);
    }
    json!({"name": name, "exactly": terms})
}

fn terms(random: &mut Random) -> Value {
    let class = random.one(&["gpu", "gpu", "gpu", "gpu", "any", "any", "large", "new"]);
    let mut terms = json!({"deviceClassName": class});
    if random.percent(12) {
        terms["allocationMode"] = json!("All");
    } else {
        terms["allocationMode"] = json!("ExactCount");
        terms["count"] = json!(random.one(&[1, 1, 1, 2, 2, 3]));
    }
    if random.percent(30) {
        let expression = random.one(&[
            "has(device.attributes['gpu.example.com'].model) && device.attributes['gpu.example.com'].model == 'a'",
            "device.attributes['gpu.example.com'].?model.orValue('b') == 'b'",
            "device.attributes['gpu.example.com'].ecc",
            "cel.bind(a, device.attributes['resource.kubernetes.io'], has(a.numaNode) && a.numaNode < 1)",
            "!device.allowMultipleAllocations || device.driver.startsWith('gpu')",
            "has(device.attributes['gpu.example.com'].links) && device.attributes['gpu.example.com'].links.exists(l, l > 1)",
            "has(device.attributes['gpu.example.com'].links) && device.attributes['gpu.example.com'].links.includes(2)",
            "device.capacity['gpu.example.com'].memory.isLessThan(quantity('50G'))",
        ]);
        terms["selectors"] = json!([{"cel": {"expression": expression}}]);
    }
    if random.percent(20) {
        let mut toleration = json!({"operator": random.one(&["Exists", "Equal"])});
        if random.percent(60) {
            toleration["key"] = json!(random.one(&["sick", "slow"]));
        }
        if random.percent(30) {
            toleration["effect"] = json!(random.one(&["NoSchedule", "NoExecute"]));
        }
        if toleration["operator"] == "Equal" && random.percent(50) {
            toleration["value"] = json!("yes");
        }
        terms["tolerations"] = json!([toleration]);
    }
    if random.percent(30) {
        let amount = random.one(&["1Gi", "1500Mi", "3Gi", "9Gi", "20Gi", "1"]);
        terms["capacity"] = json!({"requests": {"memory": amount}});
    }
    terms
}

fn allocated(random: &mut Random, slices: &[Value]) -> Vec<Value> {
    let mut results = Vec::new();
    for slice in slices {
        let devices = slice["spec"]["devices"].as_array().into_iter().flatten();
        for device in devices {
            if !random.percent(12) {
                continue;
            }
            let mut result = json!({"request": "r", "driver": slice["spec"]["driver"],
                "pool": slice["spec"]["pool"]["name"], "device": device["name"]});
            if device["allowMultipleAllocations"] == true {
                result["shareID"] = json!(format!("share-{}", results.len()));
                if device["capacity"]["memory"].is_object() {
                    result["consumedCapacity"] = json!({"memory": random.one(&["2Gi", "12Gi"])});
                }
            }
            if random.percent(5) {
                result["adminAccess"] = json!(true);
            }
            results.push(result);
        }
    }
    if results.is_empty() {
        return Vec::new();
    }
    let allocation = json!({"devices": {"results": results}});
    vec![
        json!({"metadata": {"name": "other", "namespace": "default", "uid": "other"},
        "status": {"allocation": allocation}}),
    ]
}

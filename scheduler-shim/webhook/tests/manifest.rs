//! The chart's configurations send exactly the reviews that are answered.

use std::collections::BTreeSet;

use apportion_admission::names;
use apportion_webhook::judge::PATHS;
use serde::Deserialize;
use serde_json::Value;

const MANIFEST: &str = include_str!("../../../deploy/manifests/default.yaml");

fn webhooks() -> Vec<Value> {
    let documents = serde_norway::Deserializer::from_str(MANIFEST);
    let all = documents.map(|one| Value::deserialize(one).expect("YAML"));
    all.flat_map(|one| one["webhooks"].as_array().cloned().unwrap_or_default())
        .collect()
}

#[test]
fn every_question_is_asked_and_no_other() {
    let webhooks = webhooks();
    let asked = webhooks
        .iter()
        .filter_map(|one| one["clientConfig"]["service"]["path"].as_str());
    let answered = PATHS.iter().map(|(path, _)| *path);
    assert_eq!(asked.collect::<BTreeSet<_>>(), answered.collect());
}

#[test]
fn a_pod_is_asked_about_by_every_word_of_a_request() {
    let pods = webhooks()
        .into_iter()
        .filter(|one| one["rules"][0]["resources"][0] == "pods");
    let mut count = 0;
    for webhook in pods {
        let condition = webhook["matchConditions"][1]["expression"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        for name in names::REQUEST.iter().chain(&names::REQUEST_OF_CONTAINER) {
            assert!(
                condition.contains(&format!("'{name}'")),
                "{name} in {condition}"
            );
        }
        count += 1;
    }
    assert_eq!(count, 2);
}

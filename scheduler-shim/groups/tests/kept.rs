//! An object that is kept as text is the same as the original, before it is parsed and after the JSON was dropped.

use apportion_groups::{ObjectStore, ObjectView};
use proptest::prelude::*;
use serde_json::{Value, json};

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        ".{0,8}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(".{0,6}", inner, 0..4)
                .prop_map(|entries| Value::Object(entries.into_iter().collect())),
        ]
    })
}

fn any_object() -> impl Strategy<Value = Value> {
    let word = || prop::option::of("[a-z]{0,3}");
    (word(), word(), word(), word(), any_json()).prop_map(|(kind, namespace, name, uid, rest)| {
        json!({"kind": kind, "spec": rest,
            "metadata": {"namespace": namespace, "name": name, "uid": uid, "labels": {"a": "b"}}})
    })
}

fn is_said(found: ObjectView<'_>, json: &Value) {
    let was = ObjectView::new(json);
    assert_eq!(found.kind(), was.kind());
    assert_eq!(found.namespace(), was.namespace());
    assert_eq!(found.name(), was.name());
    assert_eq!(found.uid(), was.uid());
    let text: Value = serde_json::from_str(&found.to_text()).expect("it is JSON");
    assert_eq!(text, *json);
    assert_eq!(found.json(), json);
    assert_eq!(found.label("a"), Some("b"));
}

proptest! {
    #[test]
    fn an_object_that_is_kept_is_the_object_that_came(all in prop::collection::vec(any_object(), 1..6)) {
        let mut objects: ObjectStore = all.iter().cloned().collect();
        for _ in 0..2 {
            for (place, json) in all.iter().enumerate() {
                let was = ObjectView::new(json);
                let key = (was.kind(), was.namespace(), was.name());
                let mut later = all[place + 1..].iter().map(ObjectView::new);
                let newest = later.rfind(|one| (one.kind(), one.namespace(), one.name()) == key);
                let found = objects.find(key.0, key.1, key.2).unwrap();
                is_said(found, newest.unwrap_or(was).json());
            }
            objects.drop_cache();
        }
        all.iter().for_each(|json| objects.remove(ObjectView::new(json)));
        prop_assert_eq!(objects.iter().count(), 0);
    }
}

#[test]
fn an_object_that_is_nested_too_deep_has_a_name_and_says_nothing() {
    let deep = (0..200).fold(Value::Null, |inner, _| json!([inner]));
    let json = json!({"kind": "Pod", "metadata": {"namespace": "a", "name": "b"}, "spec": deep});
    let objects: ObjectStore = [json].into_iter().collect();
    let found = objects.find("Pod", "a", "b").unwrap();
    assert_eq!((found.name(), found.json()), ("b", &Value::Null));
}

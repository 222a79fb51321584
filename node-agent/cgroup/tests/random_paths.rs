//! For any text, only names that the kubelet has put there are found.

use apportion_cgroup::owner;
use proptest::prelude::*;

fn hex(digits: usize) -> impl Strategy<Value = String> {
    proptest::string::string_regex(&format!("[0-9a-f]{{{digits}}}")).expect("it is a pattern")
}

fn uid() -> impl Strategy<Value = String> {
    (hex(8), hex(4), hex(4), hex(4), hex(12))
        .prop_map(|(a, b, c, d, e)| format!("{a}-{b}-{c}-{d}-{e}"))
}

/// A name that a tenant could give its own cgroup, including names of pods and containers.
fn component() -> impl Strategy<Value = String> {
    prop_oneof![
        "[a-z0-9.@:_-]{1,20}",
        uid().prop_map(|uid| format!("pod{uid}")),
        uid().prop_map(|uid| format!("kubepods-pod{}.slice", uid.replace('-', "_"))),
        hex(64).prop_map(|id| format!("crio-{id}.scope")),
        Just("kubepods".to_owned()),
        Just("burstable".to_owned()),
    ]
}

/// The cgroup of a pod, as each driver makes it.
fn group(uid: &str, is_systemd: bool) -> String {
    if is_systemd {
        format!(
            "/kubepods.slice/kubepods-pod{}.slice",
            uid.replace('-', "_")
        )
    } else {
        format!("/kubepods/pod{uid}")
    }
}

proptest! {
    #[test]
    fn no_text_makes_it_panic(text in "\\PC*") {
        let _ = owner(&text);
    }

    #[test]
    fn no_path_makes_it_panic(path in prop::collection::vec(component(), 0..8)) {
        let text = format!("0::/{}", path.join("/"));
        if let Some(found) = owner(&text) {
            // The result occurs in the text.
            let plain = found.pod.as_str();
            prop_assert!(text.contains(plain) || text.contains(&plain.replace('-', "_")));
            prop_assert!(found.container.is_none_or(|id| text.contains(id.as_str())));
        }
    }

    #[test]
    fn what_a_tenant_makes_below_its_container_changes_nothing(
        uid in uid(),
        id in hex(64),
        is_systemd: bool,
        below in prop::collection::vec(component(), 0..6),
    ) {
        let own = format!("0::{}/{id}", group(&uid, is_systemd));
        let plain = owner(&own);
        prop_assert_eq!(plain.as_ref().map(|found| found.pod.as_str()), Some(uid.as_str()));
        let deeper = format!("{own}/{}", below.join("/"));
        prop_assert_eq!(owner(&deeper), plain);
    }

    #[test]
    fn a_second_hierarchy_never_moves_a_process_to_another_pod(
        one in uid(),
        other in uid(),
        id in hex(64),
    ) {
        prop_assume!(one != other);
        let text = format!("2:cpu:{}/{id}\n1:memory:{}/{id}", group(&one, true), group(&other, false));
        prop_assert_eq!(owner(&text), None);
    }
}

//! Which containers are allowed or refused, and why, as one table.

use apportion_nri::{
    ContainerVerdict, GrantHolder, Grants, NriContainer, VerdictMode, VerdictRules, judge,
};

const POD: &str = "6f1c2d3e-4b5a-4978-8a6b-1c2d3e4f5a6b";
const ACCOUNTS: &str = "/run/apportion/accounts";

/// Changes to a container `main` of the pod in namespace `team`, and the expected reason.
struct VerdictCase(&'static str, fn(&mut NriContainer), Option<&'static str>);

fn env(asked: &mut NriContainer, name: &str, value: &str) {
    asked.env.push((name.to_owned(), value.to_owned()));
}

fn device(asked: &mut NriContainer, path: &str) {
    asked.devices.push(path.to_owned());
}

fn mount(asked: &mut NriContainer, destination: &str, source: &str) {
    let mount = (destination.to_owned(), source.to_owned());
    asked.mounts.push(mount);
}

fn annotation(asked: &mut NriContainer, key: &str) {
    let value = "nvidia.com/gpu=0".to_owned();
    asked.annotations.insert(key.to_owned(), value);
}

#[rustfmt::skip]
const ROWS: &[VerdictCase] = &[
    VerdictCase("nothing of a GPU", |_| {}, None),
    VerdictCase("other devices", |a| { device(a, "/dev/null"); device(a, "/dev/fuse"); }, None),
    VerdictCase("void", |a| env(a, "NVIDIA_VISIBLE_DEVICES", "void"), None),
    VerdictCase("none", |a| env(a, "NVIDIA_VISIBLE_DEVICES", "none"), None),
    VerdictCase("empty", |a| env(a, "NVIDIA_VISIBLE_DEVICES", ""), None),
    VerdictCase("the image's all, overridden by void",
        |a| { env(a, "NVIDIA_VISIBLE_DEVICES", "all"); env(a, "NVIDIA_VISIBLE_DEVICES", "void"); }, None),
    VerdictCase("another's driver settings", |a| env(a, "NVIDIA_DRIVER_CAPABILITIES", "all"), None),
    VerdictCase("all", |a| env(a, "NVIDIA_VISIBLE_DEVICES", "all"), Some("no_grant")),
    VerdictCase("a card by number", |a| env(a, "NVIDIA_VISIBLE_DEVICES", "0"), Some("no_grant")),
    VerdictCase("void, overridden by all",
        |a| { env(a, "NVIDIA_VISIBLE_DEVICES", "void"); env(a, "NVIDIA_VISIBLE_DEVICES", "all"); }, Some("no_grant")),
    VerdictCase("a card's node", |a| device(a, "/dev/nvidia0"), Some("no_grant")),
    VerdictCase("the control node", |a| device(a, "/dev/nvidiactl"), Some("no_grant")),
    VerdictCase("a node below a folder", |a| device(a, "/dev/nvidia-caps/nvidia-cap1"), Some("no_grant")),
    VerdictCase("a node by mount", |a| mount(a, "/dev/x", "/dev/nvidia0"), Some("no_grant")),
    VerdictCase("a CDI device", |a| a.cdi.push("nvidia.com/gpu=all".to_owned()), Some("no_grant")),
    VerdictCase("a CDI device of the management kind", |a| a.cdi.push("management.nvidia.com/gpu=all".to_owned()), Some("no_grant")),
    VerdictCase("another vendor's CDI device", |a| a.cdi.push("example.com/net=1".to_owned()), None),
    VerdictCase("an annotation for the pod", |a| annotation(a, "nvidia.cdi.k8s.io/gpus"), Some("no_grant")),
    VerdictCase("an annotation for it", |a| annotation(a, "nvidia.cdi.k8s.io/container.main"), Some("no_grant")),
    VerdictCase("an annotation for another container", |a| annotation(a, "nvidia.cdi.k8s.io/container.other"), None),
    VerdictCase("an infrastructure namespace", |a| { a.namespace = "gpu-operator".to_owned(); device(a, "/dev/nvidia0"); }, None),
    VerdictCase("its grant", |a| { env(a, "APPORTION_GRANT", "7-1"); device(a, "/dev/nvidia0"); }, None),
    VerdictCase("its grant and its account",
        |a| { env(a, "APPORTION_GRANT", "7-1"); mount(a, "/.apportion/limits", "/run/apportion/accounts/7-1/limits"); }, None),
    VerdictCase("a pod's grant, in any container", |a| env(a, "APPORTION_GRANT", "7-2"), None),
    VerdictCase("an empty grant and no GPU", |a| env(a, "APPORTION_GRANT", ""), None),
    VerdictCase("an empty grant and a GPU", |a| { env(a, "APPORTION_GRANT", ""); device(a, "/dev/nvidia0"); }, Some("no_grant")),
    VerdictCase("a grant that is none", |a| env(a, "APPORTION_GRANT", "9-9"), Some("unknown_grant")),
    VerdictCase("another container's grant", |a| { a.name = "side".to_owned(); env(a, "APPORTION_GRANT", "7-1"); }, Some("other_grant")),
    VerdictCase("another pod's grant", |a| env(a, "APPORTION_GRANT", "7-3"), Some("other_grant")),
    VerdictCase("another pod's grant in an infrastructure namespace",
        |a| { a.namespace = "gpu-operator".to_owned(); env(a, "APPORTION_GRANT", "7-3"); }, Some("other_grant")),
    VerdictCase("a tenant's own value below the granted one",
        |a| { env(a, "APPORTION_GRANT", "7-3"); env(a, "APPORTION_GRANT", "7-1"); }, None),
    VerdictCase("another's account", |a| { env(a, "APPORTION_GRANT", "7-1"); mount(a, "/x", "/run/apportion/accounts/7-3/limits"); }, Some("other_account")),
    VerdictCase("an account whose id begins alike", |a| { env(a, "APPORTION_GRANT", "7-1"); mount(a, "/x", "/run/apportion/accounts/7-11"); }, Some("other_account")),
    VerdictCase("all accounts", |a| mount(a, "/x", ACCOUNTS), Some("other_account")),
    VerdictCase("a folder of its own in an account's place",
        |a| { env(a, "APPORTION_GRANT", "7-1"); mount(a, "/.apportion", "/var/lib/kubelet/pods/x/volumes/y"); }, Some("hidden")),
    VerdictCase("a file of its own in the library's place",
        |a| { env(a, "APPORTION_GRANT", "7-1"); mount(a, "/etc/ld.so.preload", "/var/lib/kubelet/pods/x/volumes/y"); }, Some("hidden")),
    VerdictCase("the library and what loads it",
        |a| { env(a, "APPORTION_GRANT", "7-1"); mount(a, "/.apportion/lib.so", "/var/lib/kubelet/plugins/apportion/lib/0a/lib.so");
              mount(a, "/etc/ld.so.preload", "/run/apportion/preload.list"); }, None),
    VerdictCase("the library without a grant", |a| mount(a, "/.apportion/lib.so", "/var/lib/kubelet/plugins/apportion/lib/0a/lib.so"), Some("hidden")),
    VerdictCase("the grant of a slot and the account behind it",
        |a| { env(a, "APPORTION_GRANT", "s-0001"); mount(a, "/.apportion/limits", "/run/apportion/accounts/7-1/limits"); }, None),
    VerdictCase("the grant of a slot and another's account",
        |a| { env(a, "APPORTION_GRANT", "s-0001"); mount(a, "/.apportion/limits", "/run/apportion/accounts/7-3/limits"); }, Some("other_account")),
];

fn grants() -> Grants {
    let granted = |pod: &str, container: Option<&str>| GrantHolder {
        claimed_in: None,
        pod: pod.to_owned(),
        container: container.map(str::to_owned),
        account: String::new(),
        env: vec![("APPORTION_GRANT".to_owned(), String::new())],
        is_limited: false,
    };
    let mut grants = Grants::from([
        ("7-1".to_owned(), granted(POD, Some("main"))),
        ("7-2".to_owned(), granted(POD, None)),
        ("7-3".to_owned(), granted("another", Some("main"))),
    ]);
    for (id, granted) in &mut grants {
        granted.env[0].1.clone_from(id);
        granted.account.clone_from(id);
    }
    let mut of_slot = grants["7-1"].clone();
    of_slot.env[0].1 = "s-0001".to_owned();
    grants.insert("s-0001".to_owned(), of_slot);
    grants
}

fn asked(change: fn(&mut NriContainer)) -> NriContainer {
    let mut asked = NriContainer {
        pod: POD.to_owned(),
        namespace: "team".to_owned(),
        name: "main".to_owned(),
        ..NriContainer::default()
    };
    change(&mut asked);
    asked
}

fn rules(mode: VerdictMode) -> VerdictRules {
    VerdictRules {
        mode,
        exempt: vec!["gpu-operator".to_owned()],
        accounts: ACCOUNTS.to_owned(),
        own: vec![
            "/var/lib/kubelet/plugins/apportion/lib".to_owned(),
            "/run/apportion/preload.list".to_owned(),
        ],
    }
}

#[test]
fn a_node_that_enforces_refuses_what_the_table_says() {
    for VerdictCase(name, change, wrong) in ROWS {
        let verdict = judge(&asked(*change), &grants(), &rules(VerdictMode::Enforce));
        let found = match &verdict {
            ContainerVerdict::Refuse(reason) => Some(reason.word()),
            ContainerVerdict::Admit(_) | ContainerVerdict::Audit(_) => None,
        };
        assert_eq!(found, *wrong, "{name}: {verdict:?}");
    }
}

#[test]
fn a_node_that_audits_refuses_nothing_and_tells_of_the_same() {
    for VerdictCase(name, change, wrong) in ROWS {
        let verdict = judge(&asked(*change), &grants(), &rules(VerdictMode::Audit));
        let found = match &verdict {
            ContainerVerdict::Audit(reason) => Some(reason.word()),
            ContainerVerdict::Admit(_) => None,
            ContainerVerdict::Refuse(_) => panic!("{name} is refused"),
        };
        assert_eq!(found, *wrong, "{name}: {verdict:?}");
    }
}

#[test]
fn the_grant_of_a_claim_is_for_the_pods_of_its_namespace() {
    let mut grants = grants();
    let of_claim = GrantHolder {
        claimed_in: Some("team".to_owned()),
        account: "7-4".to_owned(),
        ..GrantHolder::default()
    };
    grants.insert("7-4".to_owned(), of_claim);
    let enforce = rules(VerdictMode::Enforce);
    let mut asked = asked(|asked| {
        env(asked, "APPORTION_GRANT", "7-4");
        mount(
            asked,
            "/.apportion/limits",
            "/run/apportion/accounts/7-4/limits",
        );
    });
    assert_eq!(
        judge(&asked, &grants, &enforce),
        ContainerVerdict::Admit(Vec::new())
    );
    asked.pod = "another".to_owned();
    assert_eq!(
        judge(&asked, &grants, &enforce),
        ContainerVerdict::Admit(Vec::new())
    );
    asked.namespace = "others".to_owned();
    let verdict = judge(&asked, &grants, &enforce);
    assert!(
        matches!(verdict, ContainerVerdict::Refuse(_)),
        "{verdict:?}"
    );
}

#[test]
fn a_variable_that_stands_there_twice_is_set_once() {
    let verdict = judge(
        &asked(|asked| {
            env(asked, "APPORTION_GRANT", "7-3");
            env(asked, "APPORTION_GRANT", "7-1");
        }),
        &grants(),
        &rules(VerdictMode::Enforce),
    );
    let set = vec![("APPORTION_GRANT".to_owned(), "7-1".to_owned())];
    assert_eq!(verdict, ContainerVerdict::Admit(set));
    let verdict = judge(
        &asked(|asked| env(asked, "APPORTION_GRANT", "7-1")),
        &grants(),
        &rules(VerdictMode::Enforce),
    );
    assert_eq!(verdict, ContainerVerdict::Admit(Vec::new()));
}

#[test]
fn a_pods_own_limit_never_reaches_the_hook_of_the_drivers_limits() {
    let names = ["NVIDIA_GPU_MEMORY_REQUEST", "NVIDIA_GPU_MEMORY_LIMIT"];
    let verdict = |grants: &Grants| {
        judge(
            &asked(|asked| {
                env(asked, "APPORTION_GRANT", "7-1");
                env(asked, "NVIDIA_GPU_MEMORY_REQUEST", "100000");
                env(asked, "NVIDIA_GPU_MEMORY_LIMIT", "100000");
            }),
            grants,
            &rules(VerdictMode::Audit),
        )
    };
    // Without a limit of the driver the variables are removed.
    let removed = names.map(|name| (format!("-{name}"), String::new()));
    assert_eq!(
        verdict(&grants()),
        ContainerVerdict::Admit(removed.to_vec())
    );
    // With one they get its value.
    let mut limited = grants();
    let set = [(names[0], "0"), (names[1], "2300")];
    let set = set.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let holder = limited.get_mut("7-1").expect("it is granted");
    holder.env.extend(set.clone());
    assert_eq!(verdict(&limited), ContainerVerdict::Admit(set.to_vec()));
    // A container without a share is none of ours.
    let verdict = judge(
        &asked(|asked| env(asked, "NVIDIA_GPU_MEMORY_LIMIT", "1")),
        &grants(),
        &rules(VerdictMode::Enforce),
    );
    assert_eq!(verdict, ContainerVerdict::Admit(Vec::new()));
}

#[test]
fn a_refusal_is_a_sentence_that_says_what_to_do() {
    let ContainerVerdict::Refuse(reason) = judge(
        &asked(|asked| env(asked, "NVIDIA_VISIBLE_DEVICES", "all")),
        &grants(),
        &rules(VerdictMode::Enforce),
    ) else {
        panic!("it is let through");
    };
    let sentence = "container main would reach a GPU through NVIDIA_VISIBLE_DEVICES=all without a share; \
                    request one with gpu-memory or gpu-fraction, or remove NVIDIA_VISIBLE_DEVICES=all";
    assert_eq!(reason.to_string(), sentence);
}

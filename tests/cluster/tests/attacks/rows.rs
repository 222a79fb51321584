//! What a tenant may try from inside a default container, as root. One row is one attack.

use serde_json::{Value, json};

/// What comes of an attack.
pub(crate) enum AttackOutcome {
    /// Its programs are refused at the limit as ever, and are suspected of nothing.
    Held,
    /// It takes something from itself, so it may get less or end; it gets no more than its limit, and is suspected of
    /// nothing.
    Within,
    /// It takes more, or goes around its account: one of these events tells, soon.
    Told(&'static [&'static str]),
    /// It ruins its account, and a second program asks for more. The agent corrects the account in between, and the second
    /// is refused; or it comes too late, and one of these events tells.
    HeldOrTold(&'static [&'static str]),
}

pub(crate) struct AttackCase {
    /// Also the pod's name.
    pub(crate) name: &'static str,
    /// What its main container runs; a line of its output that begins with `BROKE` is a success of the
    /// attack.
    pub(crate) script: &'static str,
    /// What else is in the pod.
    pub(crate) change: fn(&mut Value),
    pub(crate) outcome: AttackOutcome,
}

use AttackOutcome::{Held, HeldOrTold, Told, Within};

const BYPASSED: &[&str] = &["GpuLimitBypassed", "GpuLimitExceeded"];
const EXCEEDED: &[&str] = &["GpuLimitExceeded"];
const DAMAGED: &[&str] = &["GpuAccountDamaged"];

fn nothing(_: &mut Value) {}

fn variables(pod: &mut Value) {
    pod["spec"]["containers"][0]["env"] = json!([
        {"name": "LD_PRELOAD", "value": ""},
        {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"},
        {"name": "CUDA_DEVICE_MEMORY_LIMIT", "value": "0"},
        {"name": "GPU_PORTION", "value": "1"},
        {"name": "APPORTION_ACCOUNT", "value": "/tmp"},
        {"name": "CUDA_DISABLE_CONTROL", "value": "true"},
    ]);
}

fn annotations(pod: &mut Value) {
    let annotations = &mut pod["metadata"]["annotations"];
    annotations["hami.io/vgpu-devices-allocated"] = json!("GPU-0,NVIDIA,16000,100:;");
    annotations["nvidia.com/use-gpuuuid"] = json!("GPU-0");
    annotations["received-resource-type"] = json!("Regular");
    annotations["runai-allocated-gpus"] = json!("1");
    annotations["kai-resource-isolator.io/inject"] = json!("false");
    pod["metadata"]["labels"] = json!({"hami.io/webhook": "ignore", "runai-gpu-group": "mine"});
}

fn second_container(pod: &mut Value) {
    let second =
        apportion_cluster::managed::ManagedNode::container("beside", "victim alloc 900M hold");
    let containers = pod["spec"]["containers"].as_array_mut();
    containers.expect("a pod has containers").push(second);
}

fn nobody(pod: &mut Value) {
    pod["spec"]["containers"][0]["securityContext"] =
        json!({"runAsUser": 65534, "runAsGroup": 65534});
}

/// A second container without a slot, which sees the processes of the first.
fn shared_processes(pod: &mut Value) {
    let script = "until at=$(grep -l total /proc/[0-9]*/cmdline 2>/dev/null | grep -v self | head -1) \
        && test -n \"$at\"; do sleep 0.2; done; root=${at%cmdline}root; \
        cp $root/usr/lib/x86_64-linux-gnu/libcuda.so.1 /tmp/libcuda.so.1; card=$(ls $root/.apportion/sim | head -1); \
        export APPORTION_SIM_SOCKET=$root/.apportion/sim/$card VICTIM_DRIVER=/tmp/libcuda.so.1; \
        echo begun $(date +%s%N); victim alloc 3000M hold";
    let mut second = apportion_cluster::managed::ManagedNode::container("beside", script);
    second["resources"] = json!({});
    let containers = pod["spec"]["containers"].as_array_mut();
    containers.expect("a pod has containers").push(second);
    pod["spec"]["shareProcessNamespace"] = json!(true);
}

/// Asks for the rest of the limit and for more, and stays.
macro_rules! asks {
    ($($before:literal),*) => {
        concat!($($before,)* "victim total alloc 1000M alloc 1000M hold")
    };
}

/// Takes more than the limit and stays; says when it begins.
macro_rules! takes {
    ($before:literal, $victim:literal) => {
        concat!($before, "echo begun $(date +%s%N); ", $victim)
    };
}

/// Takes something from itself, asks for more than the limit, and stays as long as it lives.
macro_rules! tries {
    ($victim:literal) => {
        concat!(
            "(",
            $victim,
            " alloc 1000M alloc 1000M alloc 1000M hold hold; echo ended) > /tmp/said 2>&1 & ",
            "until grep -q ended /tmp/said || test $(grep -c '^alloc' /tmp/said) -ge 3; do sleep 0.1; done; ",
            "cat /tmp/said; echo tried; wait; sleep infinity"
        )
    };
}

pub(crate) const ROWS: &[AttackCase] = &[
    AttackCase {
        name: "variables-of-the-pod",
        script: asks!(),
        change: variables,
        outcome: Held,
    },
    AttackCase {
        name: "annotations-and-labels",
        script: asks!(),
        change: annotations,
        outcome: Held,
    },
    AttackCase {
        name: "empty-environment",
        script: "unset LD_PRELOAD; victim total; env -i /usr/bin/victim total alloc 1000M alloc 1000M hold",
        change: nothing,
        outcome: Held,
    },
    AttackCase {
        name: "another-user",
        script: asks!(),
        change: nobody,
        outcome: Held,
    },
    AttackCase {
        name: "setuid-program",
        script: "cp /usr/bin/victim /tmp/v; chmod 4755 /tmp/v; \
            setpriv --reuid=65534 --clear-groups /tmp/v total alloc 1000M alloc 1000M hold",
        change: nothing,
        outcome: Held,
    },
    AttackCase {
        name: "hostile-name",
        script: "cp /usr/bin/victim '/tmp/v) R 1 (1'; '/tmp/v) R 1 (1' total alloc 1000M alloc 1000M hold",
        change: nothing,
        outcome: Held,
    },
    AttackCase {
        name: "write-limits",
        script: asks!(
            "l=/.apportion/limits; head -c 4096 $l > /tmp/l; chmod 666 $l && echo BROKE; ",
            "(cat /tmp/l > $l) && echo BROKE; dd if=/tmp/l of=$l conv=notrunc && echo BROKE; ",
            "rm -f $l && echo BROKE; mv /tmp/l $l && echo BROKE; ln -sf /tmp/l $l && echo BROKE; "
        ),
        change: nothing,
        outcome: Held,
    },
    AttackCase {
        name: "remount",
        script: asks!(
            "for f in /.apportion/limits /.apportion/libapportion_cuda.so /etc/ld.so.preload; do ",
            "umount $f && echo BROKE; mount -o remount,rw,bind $f && echo BROKE; ",
            "mount --bind /etc/group $f && echo BROKE; mv $f /tmp/moved && echo BROKE; done; "
        ),
        change: nothing,
        outcome: Held,
    },
    AttackCase {
        name: "replace-usage",
        script: asks!(
            "u=/.apportion/usage; rm -f $u && echo BROKE; mv $u /tmp/u && echo BROKE; ",
            "ln -sf /etc/passwd $u && echo BROKE; touch /.apportion/x; ls -A /.apportion; "
        ),
        change: nothing,
        outcome: Held,
    },
    AttackCase {
        name: "other-files",
        // Nothing of the agent, of the node or of a neighbour is in reach.
        script: asks!(
            "for f in /run/apportion /var/run/apportion /var/lib/kubelet /run/cdi /run/nri /run/containerd; do ",
            "test -e $f && echo BROKE $f; done; ",
            "grep -l '12[3]4M' /proc/[0-9]*/cmdline 2>/dev/null | grep -q . && echo BROKE neighbour; "
        ),
        change: nothing,
        outcome: Held,
    },
    AttackCase {
        name: "deepbind",
        script: asks!("export VICTIM_DOOR=deepbind; "),
        change: nothing,
        outcome: Held,
    },
    AttackCase {
        name: "deepbind-library",
        script: asks!("export VICTIM_DOOR=plugin; "),
        change: nothing,
        outcome: Held,
    },
    AttackCase {
        name: "loader-namespace",
        script: asks!("export LD_LIBRARY_PATH=/lib64 VICTIM_DOOR=namespace; "),
        change: nothing,
        outcome: Held,
    },
    AttackCase {
        name: "loader-namespace-library",
        script: asks!("export LD_LIBRARY_PATH=/lib64 VICTIM_DOOR=plugin-apart; "),
        change: nothing,
        outcome: Held,
    },
    AttackCase {
        name: "driver-by-path",
        script: asks!("export VICTIM_DRIVER=/usr/lib/x86_64-linux-gnu/libcuda.so.1; "),
        change: nothing,
        outcome: Held,
    },
    AttackCase {
        name: "own-driver",
        script: asks!(
            "cp /usr/lib/x86_64-linux-gnu/libcuda.so.1 /tmp/own.so; export VICTIM_DRIVER=/tmp/own.so; "
        ),
        change: nothing,
        outcome: Held,
    },
    AttackCase {
        name: "second-container",
        script: asks!(),
        change: second_container,
        outcome: Held,
    },
    AttackCase {
        name: "forged-slots",
        // Half of the slots say that the node's first processes are in the account, by its own numbers of them:
        // were they believed, so would all that these have started.
        script: asks!(
            "u=/.apportion/usage; victim alloc 1M; i=1; : > /tmp/s; while test $i -le 500; do ",
            "low=$(printf '\\\\%03o\\\\000' $((i % 24 + 1))); ",
            "printf \"$low\\0\\0\\1\\0\\0\\0\\0\\0\\0\\0\\0\\0\\1\\0\\374\\377\\377\\357\\0\\0\\1\\0\" >> /tmp/s; ",
            "head -c 40 /dev/zero >> /tmp/s; i=$((i + 1)); done; test $(stat -c %s /tmp/s) = 32000 || echo BROKE test; ",
            "dd if=/tmp/s of=$u conv=notrunc bs=64 seek=503; printf '\\0\\4' | dd of=$u conv=notrunc bs=1 seek=64; "
        ),
        change: nothing,
        outcome: Held,
    },
    AttackCase {
        name: "filter-errno-page",
        script: tries!("victim deny page 12 exec"),
        change: nothing,
        outcome: Within,
    },
    AttackCase {
        name: "filter-errno-open",
        script: tries!("victim deny open 12 exec"),
        change: nothing,
        outcome: Within,
    },
    AttackCase {
        name: "filter-errno-locks",
        script: tries!("victim deny locks 12 exec"),
        change: nothing,
        outcome: Within,
    },
    AttackCase {
        name: "filter-kill-page",
        script: tries!("victim deny page 0 exec"),
        change: nothing,
        outcome: Within,
    },
    AttackCase {
        name: "filter-kill-open",
        script: tries!("victim deny open 0 exec"),
        change: nothing,
        outcome: Within,
    },
    AttackCase {
        name: "filter-kill-locks",
        script: tries!("victim deny locks 0 exec"),
        change: nothing,
        outcome: Within,
    },
    AttackCase {
        name: "filter-answered-page",
        script: tries!("victim notify page 0 exec"),
        change: nothing,
        outcome: Within,
    },
    AttackCase {
        name: "filter-answered-open",
        script: tries!("victim notify open 900 exec"),
        change: nothing,
        outcome: Within,
    },
    AttackCase {
        name: "filter-answered-locks",
        script: tries!("victim notify locks 0 exec"),
        change: nothing,
        outcome: Within,
    },
    AttackCase {
        name: "filter-answered-advice",
        script: tries!("victim notify advice 0 exec"),
        change: nothing,
        outcome: Within,
    },
    AttackCase {
        name: "prctl-strict",
        script: tries!("victim prctl 22 1 exec"),
        change: nothing,
        outcome: Within,
    },
    AttackCase {
        name: "no-descriptors",
        script: tries!("victim-linked starve 2"),
        change: nothing,
        outcome: Within,
    },
    AttackCase {
        name: "no-memory-to-lock",
        script: tries!("victim-linked lock 64K"),
        change: nothing,
        outcome: Within,
    },
    AttackCase {
        name: "no-address-space",
        script: tries!("victim-linked space 512M"),
        change: nothing,
        outcome: Within,
    },
    AttackCase {
        name: "undumpable",
        // PR_SET_DUMPABLE: the files of the process in /proc are then root's.
        script: "victim prctl 4 0 total alloc 1000M alloc 1000M hold",
        change: nothing,
        outcome: Held,
    },
    AttackCase {
        name: "prctl-name",
        script: "victim prctl 15 0 total alloc 1000M alloc 1000M hold",
        change: nothing,
        outcome: Held,
    },
    AttackCase {
        name: "personality",
        // ADDR_NO_RANDOMIZE and READ_IMPLIES_EXEC.
        script: "victim personality 4456448 exec total alloc 1000M alloc 1000M hold hold",
        change: nothing,
        outcome: Held,
    },
    AttackCase {
        name: "random-usage",
        script: takes!(
            "victim alloc 1500M hold & sleep 1; size=$(stat -c %s /.apportion/usage); ",
            "dd if=/dev/urandom of=/.apportion/usage conv=notrunc bs=64 seek=1 count=$((size / 64 - 1)); \
            VICTIM_DOOR=symbols victim alloc 1500M hold"
        ),
        change: nothing,
        outcome: Told(BYPASSED),
    },
    AttackCase {
        name: "wiped-usage",
        script: takes!(
            "victim alloc 1500M hold & sleep 1; size=$(stat -c %s /.apportion/usage); ",
            "dd if=/dev/zero of=/.apportion/usage conv=notrunc bs=64 seek=1 count=$((size / 64 - 1)); \
            victim alloc 1500M hold"
        ),
        change: nothing,
        outcome: HeldOrTold(BYPASSED),
    },
    AttackCase {
        name: "cut-usage",
        script: takes!(
            "",
            "victim alloc 900M; : > /.apportion/usage; victim alloc 1500M hold"
        ),
        change: nothing,
        outcome: Told(DAMAGED),
    },
    AttackCase {
        name: "grown-usage",
        script: takes!(
            "",
            "dd if=/dev/zero of=/.apportion/usage bs=1M seek=1 count=64; victim alloc 1500M hold"
        ),
        change: nothing,
        outcome: Told(DAMAGED),
    },
    AttackCase {
        name: "symbol-table",
        script: takes!("", "VICTIM_DOOR=symbols victim alloc 3000M hold"),
        change: nothing,
        outcome: Told(BYPASSED),
    },
    AttackCase {
        name: "static-program",
        script: takes!("", "victim static 3000M hold"),
        change: nothing,
        outcome: Told(BYPASSED),
    },
    AttackCase {
        name: "change-of-root",
        script: takes!(
            "mkdir /jail; cp -r /usr /lib /lib64 /jail 2>/dev/null; ",
            "victim jailed alloc 3000M hold"
        ),
        change: nothing,
        outcome: Told(&["GpuLimitBypassed", "GpuLimitExceeded", "GpuNotGranted"]),
    },
    AttackCase {
        name: "user-namespace",
        script: takes!(
            ": > /tmp/empty; ",
            "unshare --user --map-root-user --mount sh -c \
            'mount --bind /tmp/empty /etc/ld.so.preload; LD_PRELOAD= victim alloc 3000M hold'"
        ),
        change: nothing,
        outcome: Told(BYPASSED),
    },
    AttackCase {
        name: "shared-processes",
        script: "victim total hold",
        change: shared_processes,
        outcome: Told(BYPASSED),
    },
    AttackCase {
        name: "one-byte-more",
        script: takes!("", "VICTIM_DOOR=symbols victim alloc 2000M hold"),
        change: nothing,
        outcome: Told(EXCEEDED),
    },
];

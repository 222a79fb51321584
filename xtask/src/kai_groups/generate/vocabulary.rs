//! What the rules read: labels and annotations, with valid and invalid values.

pub(super) const TEXTS: &[&str] = &[
    "",
    "0",
    "1",
    "2",
    "3",
    "-1",
    "abc",
    "a",
    "b",
    "work",
    "worker",
    "Master",
    "lead",
    "high",
    "low",
    "InOrder",
    "AnyOrder",
    "LeaderReady",
    "LeaderCreated",
    "lab",
    "other",
];
const COUNTS: &[&str] = &["0", "1", "2", "3", "4", "7", "-1", "abc", "", "1.5"];
const LEVELS: &[&str] = &["rack", "zone", ""];

type Label = (&'static str, &'static str, &'static [&'static str]);

pub(super) const LABELS: &[Label] = &[
    ("labels", "kai.scheduler/queue", &["q1", "q2"]),
    ("labels", "project", &["p1", "p2"]),
    ("labels", "kai.scheduler/node-pool", &["pool-a"]),
    (
        "labels",
        "priorityClassName",
        &["high", "build", "low", "missing", ""],
    ),
    (
        "labels",
        "kai.scheduler/preemptibility",
        &[
            "preemptible",
            "non-preemptible",
            "nonsense",
            "",
            "Preemptible",
        ],
    ),
    ("labels", "user", &["ann", "bob"]),
    ("annotations", "user", &["ann", "bob"]),
    (
        "annotations",
        "kai.scheduler/preemption-delay",
        &["5m", "30s", "5", "-1m", "0", "1h30m", ""],
    ),
    ("annotations", "kai.scheduler/topology", &["dc", "dc2", ""]),
    (
        "annotations",
        "kai.scheduler/topology-required-placement",
        LEVELS,
    ),
    (
        "annotations",
        "kai.scheduler/topology-preferred-placement",
        LEVELS,
    ),
    (
        "annotations",
        "kai.scheduler/segment-size",
        &["1", "2", "3", "4", "abc", "0", "-1", "100", ""],
    ),
    (
        "annotations",
        "kai.scheduler/segment-topology-required-placement",
        LEVELS,
    ),
    (
        "annotations",
        "kai.scheduler/segment-topology-preferred-placement",
        LEVELS,
    ),
    ("annotations", "kai.scheduler/batch-min-member", COUNTS),
    ("annotations", "leaderworkerset.sigs.k8s.io/size", COUNTS),
    (
        "labels",
        "leaderworkerset.sigs.k8s.io/worker-index",
        &["0", "1", "2", "3", "4", "5", "-1", "abc"],
    ),
    (
        "labels",
        "leaderworkerset.sigs.k8s.io/group-index",
        &["0", "1", "abc", "01", ""],
    ),
    (
        "labels",
        "jobset.sigs.k8s.io/replicatedjob-name",
        &["work", "lead", "eval", "none", ""],
    ),
    (
        "labels",
        "jobset.sigs.k8s.io/job-index",
        &["0", "1", "2", "9", "", "abc"],
    ),
    (
        "labels",
        "training.kubeflow.org/replica-type",
        &["worker", "master", "Worker", "Master", "ps"],
    ),
    (
        "labels",
        "training.kubeflow.org/replica-index",
        &["0", "1", "2", "4", "-1", "abc", "", "50"],
    ),
    (
        "labels",
        "training.kubeflow.org/job-role",
        &["launcher", "worker"],
    ),
    (
        "labels",
        "training.kubeflow.org/job-name",
        &["mpijob", "other"],
    ),
    ("annotations", "autoscaling.knative.dev/min-scale", COUNTS),
    (
        "annotations",
        "pod-group-name",
        &["pg-svc-1-b-x", "pg-other", "pg-svc-1-svc-1-uid"],
    ),
    ("labels", "serving.knative.dev/revision", &["svc-1", "none"]),
    (
        "labels",
        "ray.io/priority-class-name",
        &["high", "missing", ""],
    ),
    (
        "labels",
        "ray.io/group",
        &["small", "headgroup", "worker-group-1", "none"],
    ),
    ("labels", "ray.io/node-type", &["head", "worker"]),
    ("labels", "spark-app-name", &["pi", ""]),
    ("labels", "spark-app-selector", &["spark-1", ""]),
    ("labels", "runai/pod-index", &["0-0", "1-1"]),
    (
        "labels",
        "role",
        &["lead", "work", "none", "master", "worker"],
    ),
    ("labels", "run", &["r1", "Bad_Name", "x.y"]),
    ("labels", "grove.io/podgang", &["gang", "none"]),
    ("annotations", "grove.io/topology-name", &["dc", "dc2", ""]),
];

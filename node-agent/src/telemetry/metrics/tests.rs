use std::path::Path;

use apportion_proto::v1;
use apportion_reference::{DocumentedMetric, hold, metrics as metrics_table};

use super::*;
use crate::telemetry::view::AgentStats;

const CARD: &str = "GPU-00000000-0000-0000-0000-000000000000";

fn allocation(name: &str, id: &str, limit: u64) -> v1::Allocation {
    v1::Allocation {
        id: id.to_owned(),
        name: name.to_owned(),
        grants: vec![v1::Grant {
            card: CARD.to_owned(),
            limit_bytes: limit,
            guaranteed_bytes: limit,
            ceiling_bytes: limit,
            used_bytes: limit / 2,
            ..v1::Grant::default()
        }],
        ..v1::Allocation::default()
    }
}

fn text(allocations: Vec<v1::Allocation>) -> String {
    written(allocations, MetricsFormat::OpenMetrics)
}

fn written(allocations: Vec<v1::Allocation>, format: MetricsFormat) -> String {
    let view = AgentView {
        list: v1::ListReply {
            node: Some(v1::Node::default()),
            cards: vec![v1::Card {
                uuid: CARD.to_owned(),
                used_bytes: 100,
                unmanaged_bytes: 10,
                ..v1::Card::default()
            }],
            allocations,
            sampled_at_ms: 0,
        },
        sampled: None,
        is_ready: true,
        counts: AgentStats::default(),
        rival: None,
        idle: None,
    };
    ScrapeState::default().render(&Arc::new(view), format)
}

fn value<'a>(text: &'a str, series: &str) -> Option<&'a str> {
    text.lines()
        .find_map(|line| line.strip_prefix(series)?.strip_prefix(' '))
}

#[test]
fn a_container_is_shown_by_the_names_of_its_pod() {
    let text = text(vec![allocation("team-a/train-0/main", "a-1", 60)]);
    let labels =
        format!("{{namespace=\"team-a\",pod=\"train-0\",container=\"main\",gpu_uuid=\"{CARD}\"}}");
    let series = format!("apportion_container_memory_limit_bytes{labels}");
    assert_eq!(value(&text, &series), Some("60.0"), "{text}");
    let drift = format!("apportion_reconcile_drift_bytes{{gpu_uuid=\"{CARD}\"}}");
    assert_eq!(value(&text, &drift), Some("60.0"), "{text}");
}

#[test]
fn the_charges_of_a_suspended_share_explain_no_memory_of_the_card() {
    let mut sleeper = allocation("sleeper", "a-1", 60);
    sleeper.suspension = v1::SuspensionState::Suspended.into();
    sleeper.grants[0].nvml_bytes = 5;
    sleeper.grants[0].claimed_bytes = 50;
    sleeper.called_in = true;
    let text = text(vec![sleeper]);
    let drift = format!("apportion_reconcile_drift_bytes{{gpu_uuid=\"{CARD}\"}}");
    assert_eq!(value(&text, &drift), Some("85.0"), "{text}");
    let suspended =
        "apportion_container_suspended{namespace=\"\",pod=\"\",container=\"sleeper/1\"}";
    assert_eq!(value(&text, suspended), Some("1.0"), "{text}");
    for (name, expected) in [("shares", "1.0"), ("bytes", "45.0")] {
        let of = |cause: &str| format!("apportion_suspended_{name}{{cause=\"{cause}\"}}");
        assert_eq!(value(&text, &of("client")), Some("0.0"), "{text}");
        assert_eq!(value(&text, &of("guarantee")), Some(expected), "{text}");
    }
}

#[test]
fn an_elastic_share_shows_its_guarantee_its_limit_and_what_it_may_use_now() {
    let mut elastic = allocation("serve", "a-1", 60);
    elastic.grants[0].guaranteed_bytes = 20;
    elastic.grants[0].ceiling_bytes = 90;
    let text = text(vec![elastic]);
    for (part, bytes) in [
        ("guaranteed", "20.0"),
        ("allowance", "60.0"),
        ("limit", "90.0"),
    ] {
        let name = format!("apportion_container_memory_{part}_bytes{{");
        let line = text.lines().find(|line| line.starts_with(&name));
        assert!(
            line.is_some_and(|line| line.ends_with(bytes)),
            "{part}: {text}"
        );
    }
}

#[test]
fn a_pod_and_its_successor_of_the_same_name_are_one_series() {
    let both = vec![
        allocation("a/db-0/main", "a-1", 60),
        allocation("a/db-0/main", "a-2", 40),
    ];
    let text = text(both);
    let limits: Vec<_> = text
        .lines()
        .filter(|line| line.starts_with("apportion_container_memory_limit_bytes{"))
        .collect();
    assert_eq!(limits.len(), 1, "{limits:?}");
    assert!(limits[0].ends_with(" 100.0"), "{limits:?}");
}

#[test]
fn the_older_format_describes_counters_by_their_full_name() {
    let plain = written(Vec::new(), MetricsFormat::Plain);
    assert!(plain.contains("# TYPE apportion_grants_total counter\n"));
    assert!(!plain.contains("# EOF") && !plain.contains(" apportion_grants counter"));
    let open = written(Vec::new(), MetricsFormat::OpenMetrics);
    assert!(open.contains("# TYPE apportion_grants counter\n") && open.ends_with("# EOF\n"));
}

#[test]
fn shares_beyond_the_bound_are_counted_and_not_shown() {
    let many = (0..MOST_SHARES + 3)
        .map(|i| allocation(&format!("a/p-{i}/c"), &format!("a-{i}"), 1))
        .collect();
    let text = text(many);
    let limits = text
        .lines()
        .filter(|line| line.starts_with("apportion_container_memory_limit_bytes{"));
    assert_eq!(limits.count(), MOST_SHARES);
    let dropped = (3 * definitions::per_share()) as f64;
    assert_eq!(
        value(&text, "apportion_series_dropped_total"),
        Some(format!("{dropped:?}").as_str())
    );
}

#[test]
fn a_start_is_in_its_bucket_and_in_those_above() {
    let mut counts = AgentStats::default();
    let took = std::time::Duration::from_millis(30);
    let news = |is_granted| crate::kubelet::stats::KubeletEvent::Started { took, is_granted };
    counts.kubelet.enter(news(true));
    counts.kubelet.enter(news(true));
    counts.kubelet.enter(news(false));
    counts.slots = [("free", 3)].into();
    let view = AgentView {
        list: v1::ListReply::default(),
        sampled: None,
        is_ready: true,
        counts,
        rival: None,
        idle: None,
    };
    for format in [MetricsFormat::Plain, MetricsFormat::OpenMetrics] {
        let text = ScrapeState::default().render(&Arc::new(view.clone()), format);
        let bucket = |le: &str| {
            format!("apportion_prestart_duration_seconds_bucket{{le=\"{le}\",result=\"granted\"}}")
        };
        assert_eq!(value(&text, &bucket("0.025")), Some("0"), "{text}");
        assert_eq!(value(&text, &bucket("0.05")), Some("2"), "{text}");
        assert!(text.contains("# TYPE apportion_prestart_duration_seconds histogram\n"));
        assert_eq!(value(&text, "apportion_slots{state=\"free\"}"), Some("3.0"));
    }
}

#[test]
fn no_label_is_a_pid_or_a_sentence() {
    let allowed = [
        "version",
        "driver",
        "simulated",
        "policy",
        "result",
        "reason",
        "kind",
        "gpu_uuid",
        "model",
        "index",
        "namespace",
        "pod",
        "container",
        "pod_uid",
        "source",
        "state",
        "verdict",
        "fault",
        "action",
        "cause",
        "resource",
        "api",
        "listener",
        "backend",
    ];
    for row in ROWS {
        for label in row.labels() {
            assert!(allowed.contains(&label), "{} has {label}", row.name);
        }
        assert_eq!(
            matches!(row.kind, SeriesKind::Counter),
            row.name.ends_with("_total"),
            "{}",
            row.name
        );
    }
}

#[test]
fn the_reference_has_every_metric() {
    let metrics = ROWS.iter().map(|row| DocumentedMetric {
        name: row.name.to_owned(),
        kind: match row.kind {
            SeriesKind::Gauge => "gauge",
            SeriesKind::Counter => "counter",
            SeriesKind::Histogram => "histogram",
        }
        .to_owned(),
        labels: row
            .labels()
            .join(", ")
            .replace("namespace, pod, container", "…"),
        help: row.help.to_owned(),
    });
    hold("metrics", "agent", &metrics_table(metrics));
}

/// Dashboards and alerts use only existing metrics. The scheduler's and the webhook's metrics are tested there.
#[test]
fn every_metric_that_the_chart_asks_for_is_a_row() {
    let chart = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/chart/apportion");
    for file in [
        "rules/apportion.yaml",
        "dashboards/node.json",
        "dashboards/pods.json",
    ] {
        let text = std::fs::read_to_string(chart.join(file)).unwrap();
        let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let asked: Vec<_> = words
            .filter(|word| word.starts_with("apportion_"))
            .map(|word| word.trim_end_matches("_count"))
            .collect();
        assert!(asked.len() > 10, "{file} asks for nothing");
        for name in asked {
            assert!(
                ROWS.iter().any(|row| row.name == name),
                "{file} asks for {name}"
            );
        }
    }
}

//! Treats queues as if there were no departments: KAI's `full-hierarchy-fairness` set to false.
//!
//! All queues with a parent share the cluster below one unlimited queue. Queues without a parent then count for
//! nothing, with their quotas and limits.

use apportion_policy::Cluster;
use apportion_policy::cluster::Queue;

/// KAI's name for the one parent.
const PARENT: &str = "default";
/// It is compared with no other queue.
const PRIORITY: i32 = 0;

/// Puts all queues with a parent below one queue.
pub(super) fn ignore(cluster: &mut Cluster) {
    cluster
        .queues
        .retain(|queue| queue.parent.is_some() && queue.name != PARENT);
    for queue in &mut cluster.queues {
        queue.parent = Some(PARENT.to_owned());
    }
    cluster.queues.push(Queue {
        priority: PRIORITY,
        ..Queue::unbounded(PARENT)
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use apportion_policy::cluster::Quota;

    #[test]
    fn a_department_bounds_nobody() {
        let queue = |name: &str, parent: Option<&str>, limit: f64| Queue {
            parent: parent.map(str::to_owned),
            gpu: Quota {
                limit,
                ..Quota::UNLIMITED
            },
            ..Queue::unbounded(name)
        };
        let mut cluster = Cluster {
            queues: vec![
                queue("department", None, 0.0),
                queue("team", Some("department"), 3.0),
                queue("sub", Some("team"), 2.0),
            ],
            ..Cluster::default()
        };
        ignore(&mut cluster);
        let values: Vec<_> = cluster
            .queues
            .iter()
            .map(|queue| {
                (
                    queue.name.as_str(),
                    queue.parent.as_deref(),
                    queue.gpu.limit,
                )
            })
            .collect();
        let expected = [
            ("team", Some("default"), 3.0),
            ("sub", Some("default"), 2.0),
            ("default", None, -1.0),
        ];
        assert_eq!(values, expected);
    }
}

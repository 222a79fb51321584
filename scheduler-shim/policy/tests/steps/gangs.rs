//! Clusters in which a gang once went on with fewer pods than it needs.

use apportion_abi::{Bytes, Share};
use apportion_policy::cluster::TaskGpuRequest::{self, None as Nothing, Whole};
use apportion_policy::{Cluster, step};

use super::checks::check_gangs;
use super::clusters::{NOW, WaitingJob, build_cluster, counted, listed, quota};
use super::rounds::carry_on;

const ROUNDS: usize = 20;

fn part(fraction: &str, devices: u32) -> TaskGpuRequest {
    TaskGpuRequest::Shared {
        share: Share::Fraction(fraction.parse().unwrap()),
        devices,
    }
}

fn mib(count: u64) -> TaskGpuRequest {
    TaskGpuRequest::Shared {
        share: Share::Memory(Bytes::from_mib(count)),
        devices: 1,
    }
}

/// A job: its queue, priority and age in minutes, the minimum of its gang, its pods and what each asks for.
fn job(
    (queue, priority, age_minutes): (usize, i32, u64),
    minimum: usize,
    pods: usize,
    cards: TaskGpuRequest,
) -> WaitingJob {
    WaitingJob {
        queue,
        priority,
        pods,
        minimum,
        cards,
        age_minutes,
    }
}

#[track_caller]
fn assert_gangs_stay_whole(mut cluster: Cluster) {
    for _ in 0..ROUNDS {
        let decisions = step(NOW, &cluster);
        if decisions.is_empty() {
            return;
        }
        carry_on(&mut cluster, &decisions);
        check_gangs(&cluster, &decisions).unwrap();
    }
}

/// A job whose pods are on two nodes, of which one is wanted.
#[test]
fn the_core_of_a_gang_does_not_leave_before_the_pods_above_its_minimum() {
    let nodes = vec![counted(1, 3), counted(2, 2), listed([(2, true), (2, true)])];
    let quotas = [
        quota(2.0, 4.0, 0.0),
        quota(2.0, -1.0, 0.0),
        quota(2.0, -1.0, 0.0),
    ];
    let jobs = vec![
        job((1, 50, 2), 2, 3, part("0.7", 1)),
        job((0, 75, 4), 1, 1, part("0.7", 2)),
        job((2, 50, 4), 2, 3, part("0.7", 1)),
        job((2, 50, 3), 1, 1, part("0.25", 1)),
        job((2, 75, 2), 2, 3, part("0.9", 2)),
        job((0, 125, 3), 1, 1, mib(593)),
        job((2, 100, 3), 1, 3, part("0.7", 1)),
        job((1, 50, 4), 1, 1, mib(407)),
    ];
    assert_gangs_stay_whole(build_cluster(nodes, quotas, jobs));
}

/// Pods of a gang move, and a better job of their queue would take the place that they move to.
#[test]
fn a_moved_gang_is_not_left_with_too_few_pods_for_a_better_job_of_its_queue() {
    let nodes = vec![
        listed([(3, true), (1, true)]),
        listed([(2, true), (1, true)]),
        counted(3, 2),
    ];
    let quotas = [
        quota(2.0, 3.0, 0.0),
        quota(1.0, 2.0, 2.0),
        quota(3.0, -1.0, 1.0),
    ];
    let jobs = vec![
        job((2, 125, 3), 1, 3, part("0.7", 2)),
        job((2, 50, 0), 1, 1, part("0.25", 2)),
        job((0, 50, 0), 3, 3, mib(452)),
        job((2, 75, 3), 2, 2, Whole(3)),
        job((2, 50, 0), 2, 3, part("0.25", 1)),
        job((1, 75, 2), 3, 3, part("0.3", 2)),
        job((0, 50, 1), 3, 3, mib(313)),
        job((1, 50, 0), 1, 1, mib(38)),
        job((2, 125, 3), 1, 1, Whole(3)),
    ];
    assert_gangs_stay_whole(build_cluster(nodes, quotas, jobs));
}

/// Pods of a gang make room for a job, and another job would get it.
#[test]
fn a_bold_plan_leaves_no_gang_alone_with_a_job_of_another_queue() {
    let nodes = vec![counted(2, 1), counted(4, 1), counted(3, 1)];
    let quotas = [
        quota(2.0, 5.0, 0.0),
        quota(1.0, -1.0, 1.0),
        quota(1.0, 2.0, 2.0),
    ];
    let jobs = vec![
        job((2, 50, 1), 1, 1, part("0.1", 1)),
        job((2, 50, 2), 3, 3, part("0.3", 1)),
        job((0, 75, 2), 1, 3, part("0.3", 2)),
        job((0, 75, 1), 2, 2, Whole(2)),
        job((2, 50, 3), 2, 2, Whole(2)),
        job((1, 50, 2), 1, 2, Whole(3)),
        job((1, 125, 1), 1, 1, mib(397)),
        job((0, 50, 4), 1, 1, Whole(3)),
        job((1, 100, 4), 3, 3, Whole(3)),
        job((2, 50, 4), 2, 2, mib(336)),
    ];
    assert_gangs_stay_whole(build_cluster(nodes, quotas, jobs));
}

/// Many pods move for one job, and some of them would not find a place again.
#[test]
fn a_bold_plan_leaves_no_gang_with_too_few_pods() {
    let nodes = vec![
        listed([(1, true), (1, true), (1, true)]),
        counted(1, 3),
        listed([(2, true), (2, true)]),
    ];
    let quotas = [
        quota(1.0, -1.0, 2.0),
        quota(1.0, -1.0, 1.0),
        quota(3.0, 4.0, 0.0),
    ];
    let jobs = vec![
        job((1, 50, 4), 2, 3, Nothing),
        job((1, 50, 0), 1, 3, mib(273)),
        job((0, 50, 3), 2, 3, Nothing),
        job((2, 75, 3), 2, 2, part("0.7", 2)),
        job((0, 125, 4), 2, 2, mib(418)),
        job((0, 50, 4), 1, 3, part("0.25", 2)),
        job((1, 50, 1), 2, 2, mib(892)),
        job((0, 50, 1), 2, 2, Nothing),
        job((1, 50, 0), 1, 1, Whole(3)),
        job((1, 75, 2), 2, 2, part("0.3", 1)),
    ];
    assert_gangs_stay_whole(build_cluster(nodes, quotas, jobs));
}

//! When a pod's programs end, judged by their command lines: `sleep` with a time, and shells that sleep, print and
//! exit. All others run forever.

use k8s_openapi::api::core::v1::{Container, Pod};

/// How a pod ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PodTermination {
    /// After this many seconds.
    pub(crate) after: u64,
    /// With this status.
    pub(crate) code: u8,
}

impl PodTermination {
    /// When the pod ends. None if one of its containers does not end, or if containers are restarted.
    pub(crate) fn of(pod: &Pod) -> Option<Self> {
        let spec = pod.spec.as_ref()?;
        let policy = spec.restart_policy.as_deref().unwrap_or("Always");
        let ends: Option<Vec<Self>> = spec.containers.iter().map(Self::of_container).collect();
        let ends = ends?;
        let end = Self {
            after: ends.iter().map(|end| end.after).max()?,
            code: ends.iter().map(|end| end.code).max()?,
        };
        match policy {
            "Never" => Some(end),
            "OnFailure" => (end.code == 0).then_some(end),
            _ => None,
        }
    }

    fn of_container(container: &Container) -> Option<Self> {
        let words = container.command.iter().chain(&container.args).flatten();
        let words: Vec<&str> = words.map(String::as_str).collect();
        match words.as_slice() {
            ["sh" | "bash" | "/bin/sh" | "/bin/bash", "-c", script, ..] => Self::of_script(script),
            words => Self::of_script(&words.join(" ")),
        }
    }

    fn of_script(script: &str) -> Option<Self> {
        let mut end = Self { after: 0, code: 0 };
        let mut has_steps = false;
        let steps = script.split([';', '\n']).flat_map(|part| part.split("&&"));
        for step in steps.map(str::trim).filter(|step| !step.is_empty()) {
            has_steps = true;
            let (program, rest) = step.split_once(' ').unwrap_or((step, ""));
            end.code = 0;
            match program {
                "sleep" => end.after += rest.trim().trim_end_matches('s').parse::<u64>().ok()?,
                "exit" => {
                    end.code = rest.trim().parse().unwrap_or(0);
                    return Some(end);
                }
                "false" => end.code = 1,
                "echo" | "true" => {}
                _ => return None,
            }
        }
        has_steps.then_some(end)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn end(policy: &str, containers: &[Value]) -> Option<PodTermination> {
        let pod =
            json!({"metadata": {}, "spec": {"restartPolicy": policy, "containers": containers}});
        PodTermination::of(&serde_json::from_value(pod).expect("it is a pod"))
    }

    fn shell(script: &str) -> Value {
        json!({"name": "main", "command": ["sh", "-c"], "args": [script]})
    }

    #[test]
    fn a_pod_ends_with_the_last_of_its_programs() {
        let containers = [shell("sleep 3; echo done"), shell("sleep 5 && exit 2")];
        let expected = PodTermination { after: 5, code: 2 };
        assert_eq!(end("Never", &containers), Some(expected));
    }

    #[test]
    fn what_runs_for_ever_or_starts_again_does_not_end() {
        let forever = json!({"name": "main", "args": ["sleep", "infinity"]});
        assert_eq!(end("Never", std::slice::from_ref(&forever)), None);
        assert_eq!(end("Never", &[shell("sleep 1"), forever]), None);
        assert_eq!(end("Always", &[shell("sleep 1")]), None);
        assert_eq!(end("OnFailure", &[shell("exit 1")]), None);
        assert_eq!(end("Never", &[shell("python train.py")]), None);
        assert_eq!(end("Never", &[json!({"name": "main", "image": "a"})]), None);
    }
}

//! Plain requests to the API server through one `kubectl proxy` for the whole test. Starting a program for each request
//! would cost a small machine as much as the pods do.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Stdio};

use apportion_cluster::{LocalCluster, eventually};
use serde_json::{Value, json};

const PODS: &str = "/api/v1/namespaces/default/pods";

/// The API server. Dropping this ends the proxy.
pub(crate) struct ApiProxy {
    proxy: Child,
    socket: PathBuf,
}

impl ApiProxy {
    pub(crate) fn of(cluster: &LocalCluster) -> Self {
        let socket = cluster.folder().path().join("crowd.sock");
        let _ = fs::remove_file(&socket);
        let mut proxy = cluster.kubectl_command();
        proxy.args(["proxy", "--unix-socket"]).arg(&socket);
        proxy.stdin(Stdio::null()).stdout(Stdio::null());
        let proxy = proxy.spawn().expect("kubectl starts");
        let api = Self { proxy, socket };
        eventually("kubectl serves the API", || {
            api.send("GET", PODS, "").is_some()
        });
        api
    }

    /// The pods with the label.
    pub(crate) fn pods(&self, selector: &str) -> Vec<Value> {
        let list = self.send("GET", &format!("{PODS}?labelSelector={selector}"), "");
        let list = list.filter(|(status, _)| *status == 200);
        let (_, mut list) = list.expect("the API server lists pods");
        match list["items"].take() {
            Value::Array(pods) => pods,
            nothing => panic!("no list of pods: {nothing}"),
        }
    }

    pub(crate) fn create(&self, pod: &Value) {
        let answer = self.send("POST", PODS, &pod.to_string());
        let is_taken = matches!(answer, Some((201, _)));
        assert!(is_taken, "the API server refuses a pod: {answer:?}");
    }

    /// Deletes a pod, if it still exists.
    pub(crate) fn delete(&self, name: &str) {
        let answer = self.send("DELETE", &format!("{PODS}/{name}"), "");
        let is_taken = matches!(answer, Some((200 | 202 | 404, _)));
        assert!(is_taken, "the API server keeps {name}: {answer:?}");
    }

    /// Deletes all pods with the label at once, even running ones.
    pub(crate) fn delete_all(&self, selector: &str) {
        let now = json!({"gracePeriodSeconds": 1}).to_string();
        let _ = self.send("DELETE", &format!("{PODS}?labelSelector={selector}"), &now);
    }

    /// The status and the body of an answer. None if there is no answer.
    fn send(&self, method: &str, path: &str, body: &str) -> Option<(u16, Value)> {
        let mut stream = UnixStream::connect(&self.socket).ok()?;
        let length = body.len();
        let request = format!(
            "{method} {path} HTTP/1.0\r\nHost: localhost\r\nContent-Type: application/json\r\n\
             Content-Length: {length}\r\n\r\n{body}"
        );
        stream.write_all(request.as_bytes()).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        let status = head.split(' ').nth(1)?.parse().ok()?;
        Some((status, serde_json::from_str(body).ok()?))
    }
}

impl Drop for ApiProxy {
    fn drop(&mut self) {
        let _ = self.proxy.kill();
        let _ = self.proxy.wait();
        let _ = fs::remove_file(&self.socket);
    }
}

//! Plain requests to the API server through one `kubectl proxy` for a whole test. Starting a program for each request
//! would cost a small machine as much as the pods do.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Stdio};

use serde_json::{Value, json};

use crate::LocalCluster;
use crate::wait::eventually;

/// The path of the pods of the namespace `default`.
pub const PODS: &str = "/api/v1/namespaces/default/pods";

/// The API server. Dropping this ends the proxy.
pub struct ApiProxy {
    proxy: Child,
    socket: PathBuf,
}

impl ApiProxy {
    /// The API server of a cluster.
    ///
    /// # Panics
    /// If `kubectl` does not serve it.
    #[must_use]
    pub fn of(cluster: &LocalCluster) -> Self {
        let socket = cluster.folder().path().join("api-proxy.sock");
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

    /// The objects with the label at the path of a kind.
    ///
    /// # Panics
    /// If the API server does not list them.
    #[must_use]
    pub fn list(&self, path: &str, selector: &str) -> Vec<Value> {
        let list = self.send("GET", &format!("{path}?labelSelector={selector}"), "");
        let list = list.filter(|(status, _)| *status == 200);
        let (_, mut list) = list.expect("the API server lists objects");
        match list["items"].take() {
            Value::Array(objects) => objects,
            nothing => panic!("no list of objects: {nothing}"),
        }
    }

    /// Creates an object at the path of its kind.
    ///
    /// # Panics
    /// If the API server refuses it.
    pub fn create(&self, path: &str, object: &Value) {
        let answer = self.send("POST", path, &object.to_string());
        let is_taken = matches!(answer, Some((201, _)));
        assert!(
            is_taken,
            "the API server refuses {}: {answer:?}",
            object["kind"]
        );
    }

    /// Deletes an object, if it still exists.
    ///
    /// # Panics
    /// If the API server refuses that.
    pub fn delete(&self, path: &str, name: &str) {
        let answer = self.send("DELETE", &format!("{path}/{name}"), "");
        let is_taken = matches!(answer, Some((200 | 202 | 404, _)));
        assert!(is_taken, "the API server keeps {name}: {answer:?}");
    }

    /// Deletes all objects with the label at once, even running pods.
    pub fn delete_all(&self, path: &str, selector: &str) {
        let now = json!({"gracePeriodSeconds": 1}).to_string();
        let _ = self.send("DELETE", &format!("{path}?labelSelector={selector}"), &now);
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

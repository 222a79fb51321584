//! Reads the agent's metrics, as Prometheus would.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use apportion_exit::CommandFailure;

/// The timeout for one answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// The body of `GET path` at `address`.
pub(crate) fn get(address: &str, path: &str) -> Result<String, CommandFailure> {
    let failed = || CommandFailure::new(format!("failed to read http://{address}{path}"));
    let parsed: SocketAddr = address.parse().map_err(|e| failed().because(e))?;
    let answer = exchange(&parsed, path).map_err(|e| failed().because(e))?;
    match answer.split_once("\r\n\r\n") {
        Some((head, body)) if head.starts_with("HTTP/1.") && head[8..].starts_with(" 200") => {
            Ok(body.to_owned())
        }
        _ => Err(failed().because(answer.lines().next().unwrap_or("no answer").to_owned())),
    }
}

/// Uses HTTP/1.0: the answer ends with the connection, and nothing is chunked.
fn exchange(address: &SocketAddr, path: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect_timeout(address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    // The request is sent in one piece. A server that answers before it has read the rest would reset the connection.
    let request = format!("GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    /// Serves one connection with `answer`.
    fn served(answer: &'static str) -> Result<String, String> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let asked = stream.read(&mut [0; 1024]).unwrap();
            assert!(asked > 0);
            stream.write_all(answer.as_bytes()).unwrap();
        });
        let body = get(&address, "/metrics").map_err(|failure| failure.to_string());
        server.join().unwrap();
        body
    }

    #[test]
    fn the_body_is_what_follows_the_head() {
        assert_eq!(
            served("HTTP/1.1 200 OK\r\nA: b\r\n\r\nx 1\n"),
            Ok("x 1\n".into())
        );
    }

    #[test]
    fn another_status_is_a_failure() {
        let error = served("HTTP/1.1 404 Not Found\r\n\r\n").unwrap_err();
        assert!(error.ends_with("404 Not Found"), "{error}");
    }
}

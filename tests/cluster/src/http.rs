//! Reads the metrics that a program serves.

use std::io::{Read, Write};
use std::net::TcpStream;

/// The metrics at an address. None if nothing listens there.
pub(crate) fn metrics(address: &str) -> Option<String> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    Some(text)
}

/// The sum of the series whose line begins with `series` and has all `labels`, such as `pod="a"`.
pub(crate) fn sum(text: &str, series: &str, labels: &[&str]) -> Option<f64> {
    let is_meant = |line: &&str| {
        let has_all = labels.iter().all(|label| line.contains(label));
        line.split(['{', ' ']).next() == Some(series) && has_all
    };
    let values = text.lines().filter(is_meant);
    let values = values.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
    values.reduce(|sum, value| sum + value)
}

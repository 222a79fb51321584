//! Settings of the TCP listener, which a scheduler on another machine needs.

use std::net::{IpAddr, SocketAddr};

use super::AgentSetting;

/// Where the agent listens on TCP, if it does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TcpOptions {
    pub(crate) listen: Option<SocketAddr>,
    advertise: Option<String>,
}

impl TcpOptions {
    /// The address to publish for a listener bound to `bound`.
    pub(crate) fn advertised(&self, bound: SocketAddr) -> String {
        let host = self.advertise.as_deref();
        match host.map(|host| (host, host.parse::<IpAddr>())) {
            Some((_, Ok(address))) => SocketAddr::new(address, bound.port()).to_string(),
            Some((host, Err(_))) => format!("{host}:{}", bound.port()),
            None => bound.to_string(),
        }
    }

    /// The mistake in these settings, if they do not fit together.
    pub(super) fn mistake(&self, node: Option<&str>) -> Option<String> {
        let address = self.listen?;
        if node.is_none() {
            return Some(format!(
                "--listen {address} needs --node-name: the agent's certificate is issued for its node"
            ));
        }
        let is_everywhere = address.ip().is_unspecified() && self.advertise.is_none();
        is_everywhere.then(|| {
            format!("--listen {address} needs --advertise: the address at which others reach it")
        })
    }
}

pub(super) const ROWS: &[AgentSetting] = &[
    AgentSetting {
        flag: "--listen",
        env: "APPORTION_LISTEN",
        form: "IP:PORT",
        default: "none: only the Unix socket",
        help: "Address where the scheduler connects with mutual TLS; the agent gets its certificate by a CertificateSigningRequest",
        set: |options, text| {
            options.tcp.listen = text.parse().ok();
            options.tcp.listen.is_some()
        },
    },
    AgentSetting {
        flag: "--advertise",
        env: "APPORTION_ADVERTISE",
        form: "host or IP address",
        default: "the address of --listen",
        help: "Host that is published in the GpuNode; others reach the port of --listen there",
        set: |options, text| {
            options.tcp.advertise = Some(text.to_owned());
            !text.is_empty() && !text.contains(['/', ' '])
        },
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_are_told_an_address_that_they_can_reach() {
        let tcp = |advertise: Option<&str>| TcpOptions {
            listen: "0.0.0.0:9407".parse().ok(),
            advertise: advertise.map(str::to_owned),
        };
        let bound = "0.0.0.0:9407".parse().unwrap();
        assert_eq!(tcp(Some("10.0.0.7")).advertised(bound), "10.0.0.7:9407");
        assert_eq!(tcp(Some("fd00::7")).advertised(bound), "[fd00::7]:9407");
        assert_eq!(tcp(Some("node.lan")).advertised(bound), "node.lan:9407");
        assert!(tcp(Some("node.lan")).mistake(Some("n")).is_none());
        assert!(
            tcp(None)
                .mistake(Some("n"))
                .unwrap()
                .contains("--advertise")
        );
        assert!(tcp(None).mistake(None).unwrap().contains("--node-name"));
        assert!(TcpOptions::default().mistake(None).is_none());
    }
}

//! Settings of the TCP listener, which a scheduler on another machine needs.

use std::net::{IpAddr, SocketAddr};

use clap::Args;

#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Requests over TCP")]
pub(crate) struct TcpOptions {
    /// Address where the scheduler connects with mutual TLS; the agent gets its certificate by a
    /// CertificateSigningRequest [default: none, only the Unix socket]
    #[arg(long, env = "APPORTION_LISTEN", value_name = "IP:PORT")]
    pub(crate) listen: Option<SocketAddr>,

    /// Host that is published in the GpuNode; others reach the port of --listen there
    /// [default: the address of --listen]
    #[arg(long, env = "APPORTION_ADVERTISE", value_name = "HOST", value_parser = host)]
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

fn host(text: &str) -> Result<String, String> {
    if text.is_empty() || text.contains(['/', ' ']) {
        return Err("expected a host or an IP address".to_owned());
    }
    Ok(text.to_owned())
}

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

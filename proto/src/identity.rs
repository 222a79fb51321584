//! Who is who where agents are served over TCP: the words that scheduler and agent must agree on.
//!
//! An authority of the scheduler's signs both sides. A scheduler's certificate is for clients and for one
//! name; an agent's is for servers and for the name of its node, so that neither can pose as the other, and
//! the agent of one node not as that of another. An agent asks with a `CertificateSigningRequest`, which the
//! API server marks with the node for which the asking token was made; what the request itself says about
//! names is not read.

/// The signer that agents name in their requests.
pub const SIGNER: &str = "apportion.dev/agent";
/// The Secret with the authority, and the `ConfigMap` with whom to trust.
pub const AUTHORITY: &str = "apportion-authority";
/// The key of the `ConfigMap` under which the authorities are, as PEM.
pub const AUTHORITIES: &str = "ca.crt";
/// The name of the scheduler in its certificate.
pub const SCHEDULER: &str = "scheduler.apportion.dev";
/// The metadata of a request with the term of the scheduler that asks. It grows with each scheduler that
/// comes to lead; agents refuse requests of a term that is older than the newest they heard of.
pub const TERM: &str = "apportion-term";

/// The name of a node's agent in its certificate.
#[must_use]
pub fn agent(node: &str) -> String {
    format!("{node}.agent.apportion.dev")
}

/// What TLS says when something is wrong, and what that means here.
const HINTS: &[(&str, &str)] = &[
    (
        "UnknownIssuer",
        "the CA that signed the other side's certificate is not in ConfigMap apportion-authority; certificates follow a change of it within a minute",
    ),
    (
        "not valid for name",
        "another program listens at the address in the GpuNode's field agentAddress",
    ),
    (
        "certificate expired",
        "the other side could not renew its certificate; see its log and `kubectl get csr`",
    ),
    (
        "certificate not valid yet",
        "the clocks of the two machines differ by more than an hour",
    ),
    (
        "received fatal alert",
        "the other side rejected our certificate; see its log",
    ),
    (
        "does not allow extended key usage",
        "the certificate is used in the wrong role: an agent's is for a TLS server, a scheduler's for a TLS client",
    ),
    (
        "peer sent no certificates",
        "only the scheduler may connect here, with its certificate; programs on the node use the Unix socket",
    ),
];

/// What a person can do about a problem of TLS.
#[must_use]
pub fn hint(problem: &str) -> Option<&'static str> {
    let mut found = HINTS.iter().filter(|(said, _)| problem.contains(said));
    found.next().map(|(_, hint)| *hint)
}

//! Identities for agents that are served over TCP: the names that scheduler and agent must agree on.
//!
//! The scheduler's CA signs both sides. A scheduler's certificate is for clients, with a fixed name. An agent's is
//! for servers, with the name of its node. So neither can pose as the other, nor the agent of one node as that of
//! another. An agent requests its certificate with a `CertificateSigningRequest`. The API server adds the node of the
//! token that was used. Names inside the request are ignored.

/// The signer that agents name in their requests.
pub const SIGNER: &str = "apportion.dev/agent";
/// The Secret with the CA, and the `ConfigMap` with the trusted CAs.
pub const AUTHORITY: &str = "apportion-authority";
/// The key of the `ConfigMap` that holds the CAs, as PEM.
pub const AUTHORITIES: &str = "ca.crt";
/// The name of the scheduler in its certificate.
pub const SCHEDULER: &str = "scheduler.apportion.dev";
/// The request metadata with the term of the scheduler. Each new leading scheduler has a higher term. Agents refuse
/// requests of an older term than the newest they have seen.
pub const TERM: &str = "apportion-term";

/// The name of a node's agent in its certificate.
#[must_use]
pub fn agent(node: &str) -> String {
    format!("{node}.agent.apportion.dev")
}

/// Texts of TLS errors, and what they mean here.
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

/// What a user can do about a TLS problem.
#[must_use]
pub fn hint(problem: &str) -> Option<&'static str> {
    let mut found = HINTS.iter().filter(|(text, _)| problem.contains(text));
    found.next().map(|(_, hint)| *hint)
}

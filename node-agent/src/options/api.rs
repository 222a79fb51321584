//! Settings of the agent's API: who may ask it for shares, and where.

use apportion_abi::Bytes;
use apportion_abi::units::parse_memory;
use clap::Args;

use super::tcp::TcpOptions;
use crate::api::tenant::AllowedUsers;

#[derive(Args, Clone, Debug)]
pub(crate) struct ApiOptions {
    /// Users of this machine that may ask for shares: own (the agent's user and root), or all. With all, which needs
    /// root, each user changes only its own allocations
    #[arg(long, env = "APPORTION_USERS", value_name = "WHOSE", default_value = "own", value_parser = users)]
    pub(crate) users: AllowedUsers,

    /// Most memory of each GPU that one user can be granted with --users all, in MiB; also 8192Mi or 8Gi. Root has no
    /// quota [default: what is free]
    #[arg(long, env = "APPORTION_USER_QUOTA", value_name = "MIB", value_parser = memory)]
    pub(crate) user_quota: Option<Bytes>,

    #[command(flatten)]
    pub(crate) tcp: TcpOptions,
}

fn users(text: &str) -> Result<AllowedUsers, String> {
    match text {
        "own" => Ok(AllowedUsers::Own),
        "all" if rustix::process::geteuid().is_root() => Ok(AllowedUsers::All),
        "all" => Err("expected own; all needs root".to_owned()),
        _ => Err("expected own or all".to_owned()),
    }
}

fn memory(text: &str) -> Result<Bytes, String> {
    parse_memory(text).ok_or_else(|| "expected MiB, or an amount such as 8192Mi or 8Gi".to_owned())
}

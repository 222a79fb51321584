//! `apportion suspend` and `apportion resume`: a program sleeps with its GPU memory in the host, and others can have that
//! memory meanwhile.

use apportion_abi::{Bytes, EscapedText};
use apportion_exit::CommandFailure;
use apportion_proto::v1::{Allocation, SuspensionState, resume_reply};

use crate::agent::connect_to_running;
use crate::instance::TargetInstance;
use crate::options::ConnectionOptions;
use crate::resize::find;
use crate::{block_on, output};

/// Puts the processes of an allocation to sleep. One that is suspended stays so.
pub(crate) fn suspend(name: &str, address: ConnectionOptions) -> Result<(), CommandFailure> {
    let instance = TargetInstance::new(address)?;
    let text = block_on(async {
        let mut agent = connect_to_running(&instance).await?;
        let list = agent.list().await?;
        let reply = agent.suspend(find(&list, name)?.id.clone()).await?;
        let now = reply.allocation.ok_or_else(empty)?;
        let name = EscapedText(&now.name);
        Ok(match (reply.changed, now.suspension()) {
            (true, _) => format!(
                "{name}: suspended, {} moved to the host\n",
                Bytes(reply.moved_bytes)
            ),
            (false, SuspensionState::Suspending) => format!("{name}: is being suspended\n"),
            (false, _) => format!("{name}: was suspended already\n"),
        })
    })?;
    output::all(&text)
}

/// Wakes the processes of an allocation. One that runs goes on.
pub(crate) fn resume(name: &str, address: ConnectionOptions) -> Result<(), CommandFailure> {
    let instance = TargetInstance::new(address)?;
    let text = block_on(async {
        let mut agent = connect_to_running(&instance).await?;
        let list = agent.list().await?;
        let reply = agent.resume(find(&list, name)?.id.clone()).await?;
        match reply.result {
            Some(resume_reply::Result::Allocation(_)) if !reply.trouble.is_empty() => Err(
                CommandFailure::new("some processes could not be woken, the others run")
                    .because(reply.trouble),
            ),
            Some(resume_reply::Result::Allocation(now)) => Ok(resumed(&now, reply.changed)),
            Some(resume_reply::Result::Shortfall(shortfall)) => {
                Err(CommandFailure::new(shortfall.sentence)
                    .hint("it stays suspended; `apportion top` shows who holds the memory"))
            }
            None => Err(empty()),
        }
    })?;
    output::all(&text)
}

fn resumed(now: &Allocation, has_changed: bool) -> String {
    let name = EscapedText(&now.name);
    match (has_changed, now.suspension()) {
        (true, _) => format!("{name}: resumed\n"),
        (false, SuspensionState::Resuming) => format!("{name}: is being resumed\n"),
        (false, _) => format!("{name}: runs already\n"),
    }
}

fn empty() -> CommandFailure {
    CommandFailure::new("the agent's answer is empty")
}

//! `apportion gpus`: the cards and their free memory.

use apportion_exit::CommandFailure;

use crate::agent::connect_or_start;
use crate::instance::TargetInstance;
use crate::options::ConnectionOptions;
use crate::report::AgentReport;
use crate::{block_on, output, view};

/// Lists the cards of the instance.
pub(crate) fn gpus(json: bool, address: ConnectionOptions) -> Result<(), CommandFailure> {
    let instance = TargetInstance::new(address)?;
    let list = block_on(async { connect_or_start(&instance).await?.list().await })?;
    if json {
        output::json(&AgentReport::new(list).cards())
    } else {
        output::all(&view::cards(&list))
    }
}

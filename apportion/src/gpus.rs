//! `apportion gpus`: the cards and what they can still give.

use crate::agent::connect_or_start;
use crate::failure::Failure;
use crate::instance::Instance;
use crate::options::Address;
use crate::report::Report;
use crate::{block_on, output, view};

/// Lists the cards of the instance.
pub(crate) fn gpus(json: bool, address: Address) -> Result<(), Failure> {
    let instance = Instance::new(address)?;
    let list = block_on(async { connect_or_start(&instance).await?.list().await })?;
    if json {
        output::json(&Report::new(list).cards())
    } else {
        output::all(&view::cards(&list))
    }
}

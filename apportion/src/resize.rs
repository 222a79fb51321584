//! `apportion resize`: changes the limit of a running allocation, or what is guaranteed to it.
//!
//! A limit below the current use is accepted. The programs lose nothing, but get no more memory until they are below
//! it.

use apportion_abi::EscapedText;
use apportion_exit::CommandFailure;
use apportion_proto::v1::{self, Allocation, ListReply, resize_reply};

use crate::agent::connect_to_running;
use crate::instance::TargetInstance;
use crate::options::{ConnectionOptions, ResizeOptions};
use crate::request::NewSize;
use crate::{block_on, cards, output};

/// Changes the sizes on each card of the allocation.
pub(crate) fn resize(
    resize: &ResizeOptions,
    address: ConnectionOptions,
) -> Result<(), CommandFailure> {
    let size = NewSize::read(resize)?;
    let instance = TargetInstance::new(address)?;
    let error = block_on(async {
        let mut agent = connect_to_running(&instance).await?;
        let list = agent.list().await?;
        let allocation = find(&list, &resize.name)?;
        let shares = new_shares(&list, allocation, size);
        match agent.resize(allocation.id.clone(), shares).await?.result {
            Some(resize_reply::Result::Allocation(now)) => Ok(describe(allocation, &now)),
            Some(resize_reply::Result::Shortfall(shortfall)) => {
                Err(CommandFailure::new(shortfall.sentence)
                    .hint("nothing has changed; `apportion top` shows who holds the memory"))
            }
            None => Err(CommandFailure::new(
                "the agent's answer to the resize is empty",
            )),
        }
    })?;
    output::all(&error)
}

/// The allocation with that id, or the only one with that name.
pub(crate) fn find<'a>(list: &'a ListReply, name: &str) -> Result<&'a Allocation, CommandFailure> {
    if let Some(allocation) = list
        .allocations
        .iter()
        .find(|allocation| allocation.id == name)
    {
        return Ok(allocation);
    }
    let named: Vec<_> = list
        .allocations
        .iter()
        .filter(|found| found.name == name)
        .collect();
    match named.as_slice() {
        [allocation] => Ok(allocation),
        [] => Err(
            CommandFailure::new(format!("there is no allocation {name:?}"))
                .hint("`apportion top` lists allocations; add --sim for simulated GPUs"),
        ),
        several => {
            let ids: Vec<_> = several.iter().map(|found| found.id.as_str()).collect();
            let what = format!("{} allocations are named {name:?}", several.len());
            Err(CommandFailure::new(what).hint(format!("use one of their ids: {}", ids.join(", "))))
        }
    }
}

/// The share of each of the allocation's cards.
fn new_shares(list: &ListReply, allocation: &Allocation, size: NewSize) -> Vec<v1::Share> {
    allocation
        .grants
        .iter()
        .filter_map(|grant| {
            let card = list.cards.iter().find(|card| card.uuid == grant.card)?;
            let share = size.share;
            let bytes = share.map(|share| share.bytes_of(cards::capacity(card)));
            Some(v1::Share {
                card: grant.card.clone(),
                bytes: bytes.unwrap_or(cards::guaranteed(grant)).0,
                // Zero keeps it.
                limit_bytes: size.limit.map_or(0, |limit| limit.0),
            })
        })
        .collect()
}

/// One line for each card: the old and the new size.
fn describe(before: &Allocation, now: &Allocation) -> String {
    now.grants
        .iter()
        .map(|grant| {
            let before = before.grants.iter().find(|old| old.card == grant.card);
            let (before, size) = (before.map_or_else(String::new, size_text), size_text(grant));
            let (name, card) = (EscapedText(&now.name), EscapedText(&grant.card));
            format!("{name}: {before} -> {size} on {card}\n")
        })
        .collect()
}

/// The limit of a grant, or what is guaranteed and the limit above that.
fn size_text(grant: &v1::Grant) -> String {
    let (guaranteed, ceiling) = (cards::guaranteed(grant), cards::ceiling(grant));
    if cards::is_elastic(grant) {
        format!("{guaranteed} up to {ceiling}")
    } else {
        ceiling.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list() -> ListReply {
        let allocation = |id: &str, name: &str| Allocation {
            id: id.into(),
            name: name.into(),
            ..Allocation::default()
        };
        let allocations = vec![
            allocation("1", "a"),
            allocation("2", "b"),
            allocation("3", "b"),
        ];
        ListReply {
            allocations,
            ..ListReply::default()
        }
    }

    #[test]
    fn an_allocation_goes_by_its_name_or_id() {
        assert_eq!(find(&list(), "a").unwrap().id, "1");
        assert_eq!(find(&list(), "3").unwrap().id, "3");
    }

    #[test]
    fn a_name_that_several_have_needs_an_id() {
        let error = find(&list(), "b").unwrap_err().to_string();
        assert!(
            error.contains("2 allocations") && error.ends_with("2, 3"),
            "{error}"
        );
        assert!(
            find(&list(), "c")
                .unwrap_err()
                .to_string()
                .contains("no allocation")
        );
    }
}

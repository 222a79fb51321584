//! The agent's list for users: a table of cards and a table of allocations.

use apportion_abi::Bytes;
use apportion_proto::v1::{Allocation, Card, Grant, ListReply, SuspensionState};

use crate::cards as grants;
use crate::report::lower;
use crate::table::{CellAlignment, TableColumn, lay_out};

/// Cards and allocations, with a heading line.
pub(crate) fn whole(list: &ListReply) -> String {
    let allocations = match list.allocations.len() {
        0 => "no allocations\n".to_owned(),
        _ => lay_out(&columns_of(list), &shares(list)),
    };
    format!("{}\n\n{}\n{allocations}", heading(list), cards(list))
}

pub(crate) fn cards(list: &ListReply) -> String {
    lay_out(CARDS, &list.cards)
}

fn heading(list: &ListReply) -> String {
    let node = list.node.clone().unwrap_or_default();
    let kind = if node.simulated { " (simulated)" } else { "" };
    let metrics = match node.metrics_address.as_str() {
        "" => String::new(),
        address => format!(", metrics http://{address}/metrics"),
    };
    format!(
        "apportion-agent {}, driver {}{kind}, policy {}{metrics}",
        node.agent_version,
        node.driver_version,
        lower(node.policy().as_str_name(), "OFFENDER_POLICY_"),
    )
}

const CARDS: &[TableColumn<Card>] = &[
    TableColumn {
        title: "GPU",
        cell: |card| card.index.to_string(),
        side: CellAlignment::Left,
    },
    TableColumn {
        title: "MODEL",
        cell: |card| card.model.clone(),
        side: CellAlignment::Left,
    },
    TableColumn {
        title: "TOTAL",
        cell: |card| bytes(card.total_bytes),
        side: CellAlignment::Right,
    },
    TableColumn {
        title: "ALLOCATABLE",
        cell: |card| bytes(card.allocatable_bytes),
        side: CellAlignment::Right,
    },
    TableColumn {
        title: "GRANTED",
        cell: |card| bytes(card.granted_bytes),
        side: CellAlignment::Right,
    },
    TableColumn {
        title: "FREE",
        cell: |card| bytes(card.free_bytes),
        side: CellAlignment::Right,
    },
    TableColumn {
        title: "USED",
        cell: |card| bytes(card.used_bytes),
        side: CellAlignment::Right,
    },
    TableColumn {
        title: "UNMANAGED",
        cell: |card| bytes(card.unmanaged_bytes),
        side: CellAlignment::Right,
    },
    TableColumn {
        title: "UTIL",
        cell: |card| percent(card.utilisation_percent),
        side: CellAlignment::Right,
    },
    TableColumn {
        title: "HEALTH",
        cell: health,
        side: CellAlignment::Left,
    },
    TableColumn {
        title: "UUID",
        cell: |card| card.uuid.clone(),
        side: CellAlignment::Left,
    },
];

/// An allocation's share of one card. Each is one line.
struct AllocationRow<'a> {
    allocation: &'a Allocation,
    grant: &'a Grant,
    card: String,
}

fn shares(list: &ListReply) -> Vec<AllocationRow<'_>> {
    let mut shares = Vec::new();
    for allocation in &list.allocations {
        for grant in &allocation.grants {
            let card = list.cards.iter().find(|card| card.uuid == grant.card);
            let card = card.map_or_else(|| grant.card.clone(), |card| card.index.to_string());
            shares.push(AllocationRow {
                allocation,
                grant,
                card,
            });
        }
    }
    shares
}

/// The columns, with those of guarantees only where a limit is above one.
fn columns_of<'a>(list: &ListReply) -> Vec<TableColumn<AllocationRow<'a>>> {
    let mut columns = Vec::from(columns());
    let mut all = list.allocations.iter().flat_map(|of| &of.grants);
    let limit = columns.iter().position(|column| column.title == "LIMIT");
    if let Some(limit) = limit.filter(|_| all.any(grants::is_elastic)) {
        let allowance = TableColumn::<AllocationRow<'a>> {
            title: "ALLOWANCE",
            cell: |share| bytes(share.grant.limit_bytes),
            side: CellAlignment::Right,
        };
        let guaranteed = TableColumn::<AllocationRow<'a>> {
            title: "GUARANTEED",
            cell: |share| grants::guaranteed(share.grant).to_string(),
            side: CellAlignment::Right,
        };
        columns.insert(limit + 1, allowance);
        columns.insert(limit, guaranteed);
    }
    columns
}

/// This is a function because its rows borrow from the list.
fn columns<'a>() -> [TableColumn<AllocationRow<'a>>; 10] {
    [
        TableColumn {
            title: "ALLOCATION",
            cell: |share| share.allocation.name.clone(),
            side: CellAlignment::Left,
        },
        TableColumn {
            title: "STATE",
            cell: state,
            side: CellAlignment::Left,
        },
        TableColumn {
            title: "GPU",
            cell: |share| share.card.clone(),
            side: CellAlignment::Left,
        },
        TableColumn {
            title: "LIMIT",
            cell: |share| grants::ceiling(share.grant).to_string(),
            side: CellAlignment::Right,
        },
        TableColumn {
            title: "USED",
            cell: |share| bytes(share.grant.used_bytes),
            side: CellAlignment::Right,
        },
        TableColumn {
            title: "OVERHEAD",
            cell: |share| bytes(share.grant.overhead_bytes),
            side: CellAlignment::Right,
        },
        TableColumn {
            title: "PEAK",
            cell: |share| bytes(share.grant.peak_bytes),
            side: CellAlignment::Right,
        },
        TableColumn {
            title: "DENIED",
            cell: |share| share.grant.denied_count.to_string(),
            side: CellAlignment::Right,
        },
        TableColumn {
            title: "ENFORCEMENT",
            cell: enforcement,
            side: CellAlignment::Left,
        },
        TableColumn {
            title: "PROCESSES",
            cell: processes,
            side: CellAlignment::Left,
        },
    ]
}

fn bytes(amount: u64) -> String {
    Bytes(amount).to_string()
}

fn percent(amount: Option<u32>) -> String {
    amount.map_or_else(|| "-".to_owned(), |amount| format!("{amount}%"))
}

fn health(card: &Card) -> String {
    lower(card.health().as_str_name(), "CARD_HEALTH_")
}

/// What a suspended allocation does is of more interest than that it is allocated.
fn state(share: &AllocationRow<'_>) -> String {
    let suspension = share.allocation.suspension();
    match suspension {
        SuspensionState::Unspecified | SuspensionState::Running => {}
        SuspensionState::Suspended if share.allocation.called_in => return "called-in".to_owned(),
        SuspensionState::Suspended if share.allocation.waits_to_wake => {
            return "waiting".to_owned();
        }
        SuspensionState::Suspended if share.allocation.idle => return "idle".to_owned(),
        SuspensionState::Suspending | SuspensionState::Suspended | SuspensionState::Resuming => {
            return lower(suspension.as_str_name(), "SUSPENSION_STATE_");
        }
    }
    lower(share.allocation.state().as_str_name(), "ALLOCATION_STATE_")
}

fn enforcement(share: &AllocationRow<'_>) -> String {
    lower(
        share.grant.enforcement().as_str_name(),
        "ENFORCEMENT_STATE_",
    )
}

/// The processes that use this card, each with its name. Processes that do not use it yet are not shown.
fn processes(share: &AllocationRow<'_>) -> String {
    let here = share.allocation.processes.iter().filter(|process| {
        let mut uses = process.uses.iter();
        uses.any(|used| used.card == share.grant.card)
    });
    let names = here.map(|process| format!("{} {}", process.pid, process.name));
    names.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use apportion_proto::v1::{EnforcementState, Process, ProcessUse};

    const MIB: u64 = 1 << 20;

    fn list() -> ListReply {
        let card = Card {
            uuid: "GPU-a".into(),
            index: 3,
            total_bytes: 8000 * MIB,
            ..Card::default()
        };
        let grant = Grant {
            card: "GPU-a".into(),
            limit_bytes: 2000 * MIB,
            used_bytes: 1984 * MIB,
            denied_count: 7,
            enforcement: EnforcementState::Bypassed.into(),
            ..Grant::default()
        };
        let uses = vec![ProcessUse {
            card: "GPU-a".into(),
            ..ProcessUse::default()
        }];
        let process = Process {
            pid: 42,
            name: "python".into(),
            uses,
        };
        let idle = Process {
            pid: 43,
            name: "sh".into(),
            uses: vec![],
        };
        let train = Allocation {
            name: "train".into(),
            grants: vec![grant],
            processes: vec![process, idle],
            ..Allocation::default()
        };
        ListReply {
            cards: vec![card],
            allocations: vec![train],
            ..ListReply::default()
        }
    }

    #[test]
    fn an_allocation_is_one_line_with_its_numbers() {
        let text = whole(&list());
        let line = text.lines().find(|line| line.starts_with("train")).unwrap();
        let words: Vec<_> = line.split_whitespace().collect();
        let numbers = [
            "3", "2000", "MiB", "1984", "MiB", "0", "MiB", "0", "MiB", "7", "bypassed",
        ];
        assert!(
            words.windows(numbers.len()).any(|part| part == numbers),
            "{line}"
        );
        assert!(line.ends_with("42 python"), "{line}");
    }

    #[test]
    fn a_suspended_allocation_says_so_as_its_state() {
        let mut list = list();
        list.allocations[0].suspension = SuspensionState::Suspended.into();
        let text = whole(&list);
        let line = text.lines().find(|line| line.starts_with("train")).unwrap();
        assert_eq!(line.split_whitespace().nth(1), Some("suspended"), "{line}");
    }

    #[test]
    fn an_idle_machine_says_so() {
        assert!(whole(&ListReply::default()).ends_with("no allocations\n"));
    }
}

//! Resizes of elastic shares: the account has what was saved, whenever the agent ends.

use std::ffi::CString;
use std::fs;
use std::path::{Path, PathBuf};

use apportion_abi::account::{BurstMap, LimitsMap};
use apportion_proto::AgentClient;
use apportion_proto::v1::{
    Allocation, ResizeReply, ResizeRequest, Share, allocate_reply, resize_reply,
};
use tonic::{Code, Status};

use crate::checkpoint::BlockedCheckpoint;
use crate::host::{Host, MIB, allocate, find, wish};

/// An elastic share of the first card.
async fn elastic(client: &mut AgentClient, name: &str, numbers: [u64; 2]) -> Allocation {
    let mut request = wish(client, name, numbers[0]).await;
    request.shares[0].limit_bytes = numbers[1] * MIB;
    let reply = client.allocate(request).await.expect("the agent answers");
    match reply.into_inner().result {
        Some(allocate_reply::Result::Allocation(allocation)) => allocation,
        other => panic!("it fits: {other:?}"),
    }
}

async fn resize(
    client: &mut AgentClient,
    of: &Allocation,
    [mib, limit]: [u64; 2],
) -> Result<ResizeReply, Status> {
    let share = Share {
        card: of.grants[0].card.clone(),
        bytes: mib * MIB,
        limit_bytes: limit * MIB,
    };
    let (id, shares) = (of.id.clone(), vec![share]);
    let reply = client.resize(ResizeRequest { id, shares }).await?;
    Ok(reply.into_inner())
}

/// The guarantee, the allowance and the limit of a share in MiB: as the agent says, and as its programs read them.
async fn numbers(client: &mut AgentClient, of: &Allocation) -> [u64; 3] {
    let found = find(client, &of.id).await.expect("it is there");
    let grant = &found.grants[0];
    let said = [
        grant.guaranteed_bytes,
        grant.limit_bytes,
        grant.ceiling_bytes,
    ];
    let path = |name: &str| {
        let path = Path::new(&of.account_dir).join(name);
        CString::new(path.to_str().expect("it is text")).expect("it has no zero")
    };
    let limits = LimitsMap::adopt(&path("limits")).expect("it is an account");
    let burst = BurstMap::adopt(&path("burst")).expect("it is elastic");
    let words = &burst.cards()[0];
    let read = [
        words.guaranteed().unwrap_or_default(),
        limits.cards()[0].limits().limit,
        words.ceiling(),
    ];
    assert_eq!(read.map(|bytes| bytes.0), said);
    let shown = words.reachable();
    assert!(shown >= read[1] && shown <= read[2], "{shown} of {said:?}");
    said.map(|bytes| bytes / MIB)
}

fn is_refused(reply: Result<ResizeReply, Status>, words: &str) -> Code {
    match reply {
        Err(status) => {
            assert!(status.message().contains(words), "{status}");
            status.code()
        }
        Ok(reply) => match reply.result {
            Some(resize_reply::Result::Shortfall(shortfall)) => {
                assert!(shortfall.sentence.contains(words), "{}", shortfall.sentence);
                Code::ResourceExhausted
            }
            other => panic!("not refused: {other:?}"),
        },
    }
}

#[tokio::test]
async fn an_elastic_share_gets_other_numbers_while_it_runs() {
    let host = Host::new(1);
    let (_agent, mut client) = host.agent(&["--gpu-memory-overcommit", "1.5"]).await;
    let serve = elastic(&mut client, "serve", [2000, 8000]).await;
    let fixed = allocate(&mut client, "train", 2000).await.unwrap();
    for (asked, expected) in [
        // A limit of zero stays.
        ([3000, 0], [3000, 3000, 8000]),
        ([1000, 6000], [1000, 3000, 6000]),
        ([1000, 2000], [1000, 2000, 2000]),
        ([4000, 4000], [4000, 4000, 4000]),
        // Now both are one number.
        ([3000, 0], [3000, 3000, 3000]),
        ([2, 9000], [2, 3000, 9000]),
    ] {
        let reply = resize(&mut client, &serve, asked).await.unwrap();
        assert!(matches!(
            reply.result,
            Some(resize_reply::Result::Allocation(_))
        ));
        assert_eq!(numbers(&mut client, &serve).await, expected, "{asked:?}");
    }
    let before = numbers(&mut client, &serve).await;
    for (asked, words, code) in [
        (
            [15_000, 15_000],
            "held by train with 2000 MiB",
            Code::ResourceExhausted,
        ),
        (
            [100, 50],
            "a limit is at least the request",
            Code::InvalidArgument,
        ),
        ([100, 99_000], "is above the", Code::InvalidArgument),
        ([1, 9000], "at least 2 MiB", Code::InvalidArgument),
    ] {
        let reply = resize(&mut client, &serve, asked).await;
        assert_eq!(is_refused(reply, words), code, "{asked:?}");
    }
    let reply = resize(&mut client, &fixed, [2000, 4000]).await;
    let words = "was made without a limit above its request";
    assert_eq!(is_refused(reply, words), Code::FailedPrecondition);
    let other = elastic(&mut client, "other", [2, 10_000]).await;
    let reply = resize(&mut client, &other, [2, 14_000]).await;
    assert_eq!(
        is_refused(reply, "would add up to"),
        Code::FailedPrecondition
    );
    assert_eq!(
        numbers(&mut client, &serve).await,
        before,
        "nothing has changed"
    );
}

#[tokio::test]
async fn a_resize_of_an_elastic_share_that_cannot_be_saved_is_not_made() {
    let host = Host::new(1);
    let (_agent, mut client) = host.agent(&[]).await;
    let serve = elastic(&mut client, "serve", [2000, 8000]).await;
    for asked in [[4000, 9000], [1000, 1500]] {
        let blocked = BlockedCheckpoint::new(&host);
        let reply = resize(&mut client, &serve, asked).await;
        is_refused(reply, "checkpoint.json");
        drop(blocked);
        assert_eq!(numbers(&mut client, &serve).await, [2000, 2000, 8000]);
    }
}

#[tokio::test]
async fn an_agent_that_is_killed_in_a_resize_has_made_it_or_not() {
    let host = Host::new(1);
    for (asked, expected) in [
        ([4000, 9000], [4000, 4000, 9000]),
        ([1000, 1500], [1000, 1500, 1500]),
    ] {
        let (mut agent, mut client) = host.agent(&[]).await;
        let name = format!("serve-{}", asked[0]);
        let serve = elastic(&mut client, &name, [2000, 8000]).await;
        let files: [PathBuf; 2] =
            ["limits", "burst"].map(|name| Path::new(&serve.account_dir).join(name));
        let before = files.each_ref().map(|file| fs::read(file).unwrap());
        resize(&mut client, &serve, asked).await.unwrap();
        agent.kill();
        // As if it had saved the resize, and had not written the account.
        for (file, bytes) in files.iter().zip(before) {
            fs::write(file, bytes).unwrap();
        }
        let (mut agent, mut client) = host.agent(&[]).await;
        assert_eq!(numbers(&mut client, &serve).await, expected);
        agent.kill();
    }
}
